"""The command ``lit-treerl``: answers ``--help`` and ``--version`` at once, else hands over to Lightning's CLI."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import lit_treerl

HELP = """\
usage: lit-treerl [--help] [--version] COMMAND [OPTIONS]

Reinforcement learning of LLM agents from trees of rollouts.

commands:
  fit        train; one epoch is one iteration of rollouts and updates
  validate   evaluate on the validation tasks
  test       evaluate on the held-out test tasks; prints a table and writes JSON
  predict    write every test episode as JSONL
  make-games write generated ALFWorld games
  make-shop  write a generated WebShop catalogue
  check-env  see whether an environment keeps its contract

examples:
  lit-treerl fit --config configs/tree_grpo.yaml
  lit-treerl fit --config configs/tree_grpo.yaml --search.trees 4 --search.expansions 3
  lit-treerl test --config configs/tree_grpo.yaml --ckpt_path runs/tree_grpo/version_0/checkpoints/last.ckpt

options of a command:
  --config FILE         settings; give it several times, later files win
  --print_config        print all settings with their values and stop
  --help                list every parameter; any of them can be given, as in --model.actor_lr 1e-5
  --search.*, --budget.*, --sampler.*, --env.*, --rollout.*, --model.*, --data.*, --trainer.*
"""
COMMANDS = ("fit", "validate", "test", "predict")
PLAIN = {
    "make-games": "lit_treerl.envs.alfworld_games.make",
    "make-shop": "lit_treerl.envs.webshop.make_shop",
    "check-env": "lit_treerl.check_env_command",
}
"""Commands beside those of Lightning's trainer, and the modules whose ``main`` they are."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 2 on wrong settings.

    Args:
        args: arguments without the program's name, those of the process when None.
    """
    args = list(sys.argv[1:] if args is None else args)
    if not args or args[0] in ("-h", "--help"):
        print(HELP, end="")
        return
    if args[0] == "--version":
        print(f"lit-treerl {lit_treerl.__version__}")
        return
    if args[0] not in COMMANDS and args[0] not in PLAIN:
        known = ", ".join((*COMMANDS, *PLAIN))
        sys.stderr.write(f"lit-treerl: error: unknown command {args[0]!r}; commands are {known}\n")
        sys.exit(2)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers reads it when it is imported
    if args[0] in PLAIN:
        import_module(PLAIN[args[0]]).main(args[1:])
        return
    from lit_treerl.command import run

    run(args)
