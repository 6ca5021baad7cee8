"""The same training job through TRL's GRPOTrainer and through this project: what it takes to reach a target.

    pip install trl
    python -m benchmarks.trl [--seeds 5] [--targets 0.3] [--max-tokens 60000] [--out trl.json]
    python -m benchmarks.trl --check-loss

Three sides: ``trl`` (chains, GRPOTrainer with a ``rollout_func``), ``grpo`` (chains, `lit-treerl fit` on
configs/grpo.yaml) and ``tree_grpo`` (trees, configs/tree_grpo.yaml). Equal are the policy, its tokenizer and its
weights at the start, the environment and its limits, the reward, the questions and their order, 32 questions and two
optimizer steps an iteration, 4 chains a question (the trees have 6 leaves for the tokens of about 4.4), temperature,
AdamW and its settings, the constant learning rate, the clipping of gradients and ratios, the mean over the tokens of
an optimizer step, advantages over the group's standard deviation (`--scaling` chooses others), float32, one thread.
After every iteration the greedy exact match on the 200 validation questions is taken, for all sides by the same code,
with the clock stopped. Runs take turns, each in a process of its own; those in the file of ``--out`` are kept
(a run to a higher target serves for a lower one too).

Printed are wall seconds, the processor's seconds (better where other work runs on the machine) and sampled tokens
until the exact match first reached each target, and seconds for 1,000 sampled tokens: medians over the seeds, with
ranges, and ratios to TRL. A dash stands for a target that was not reached.

What differs:

- TRL's rollouts use Transformers' ``generate`` on the trainer's model, as its trainer does without vLLM: each turn is
  taken by all unfinished episodes together, waits for the last of them, and computes its whole context anew. Ours use
  TransformersSampler: continuous batching, and keys and values of earlier turns, of the prompt's other chains and of
  forks are kept. TRL is spared stop strings (each is one token here) and the sampler's log-probs, which it needs for
  vLLM only.
- TRL trains every chain as a padded row, without or with an advantage; ours packs unique tokens and leaves out chains
  without advantage, which changes no gradient.
- TRL takes old log-probs for both optimizer steps, ours only for the second, in the first they are the new ones.
- TRL shares the chains of an iteration out over the two steps at random, ours keeps a question's chains together.
- With ``--scaling group`` TRL divides by std + 1e-4 and ours by std + 1e-6. With ``batch`` TRL divides by the standard
  deviation of all rewards and ours by the root mean square of all advantages.
- Ours corrects for a sampler whose log-probs differ from the trainer's (here by less than 1e-6).
- Random numbers: episodes of equal seeds are not the same.
- Our time includes what the config asks for beside training: a checkpoint, CSV and TensorBoard after every iteration.
  TRL saves nothing and reports to nobody. Copying the weights to our sampler falls into the examination (0.3 million
  numbers). Neither time includes imports and loading.
- TRL's ``rollout_func`` is experimental, and a GPU with vLLM, for which TRL is made, may show other ratios.

``--check-loss`` rolls out one batch of chains, moves the weights a little and prints loss and gradient of both sides:
ours through packs and policy loss, TRL's through its own advantages, masks, old log-probs and ``compute_loss``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from benchmarks.trl.job import Job, Scaling, Side
from benchmarks.trl.report import line, report
from benchmarks.trl.runs import run_apart
from benchmarks.trl.theirs import check_trl

PACKAGES = ("trl", "transformers", "torch", "lit-treerl")
TOLERANCE = 1e-5


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.trl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", choices=get_args(Side), nargs="+", default=list(get_args(Side)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.3], help="a run ends at the highest")
    parser.add_argument("--max-tokens", type=int, default=60_000, help="sampled tokens after which a run ends too")
    parser.add_argument("--scaling", choices=get_args(Scaling), default="group")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--tasks", type=int, default=32, help="questions of an iteration")
    parser.add_argument("--validation", type=int, default=200, help="validation questions")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check-loss", action="store_true", help="compare the losses of one frozen batch instead")
    return parser.parse_args(args)


def serves(run: dict[str, Any], job: Job) -> bool:
    """Whether a run is the job's, or went on to a higher target."""
    return asdict(replace(job, target=run["target"])).items() <= run.items() and run["target"] >= job.target


def check_losses(tasks: int) -> None:
    """Print both losses for each scaling that both sides know.

    Raises:
        SystemExit: where they differ.
    """
    from benchmarks.trl.check_loss import check

    for scaling in ("none", "group"):
        found = check(scaling, tasks)
        print(json.dumps({"scaling": scaling} | found), flush=True)
        if found["difference"] >= TOLERANCE or found["gradient difference"] >= TOLERANCE:
            raise SystemExit(f"the losses differ by {TOLERANCE} or more")


def main(args: Sequence[str] | None = None) -> None:
    """Check that TRL is there, and do what was asked for."""
    given = parse(args)
    check_trl()
    if given.check_loss:
        check_losses(given.tasks)
    else:
        compare(given)


def compare(given: argparse.Namespace) -> None:
    """Run what is not there yet, and print the comparison."""
    more = (max(given.targets), given.max_tokens, given.scaling, given.lr, given.tasks, given.validation)
    jobs = [Job(side, seed, *more) for seed in range(given.seeds) for side in given.sides]
    kept = json.loads(given.out.read_text(encoding="utf-8"))["runs"] if given.out and given.out.is_file() else []
    runs: list[dict[str, Any]] = []
    for job in jobs:
        done = [run for run in kept if serves(run, job)]
        runs.append(done[0] if done else run_apart(job))
        rows = report(runs, given.targets)
        if given.out and not done:
            content = {"versions": {name: version(name) for name in PACKAGES}, "runs": runs, "report": rows}
            given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(line(row) for row in rows))


if __name__ == "__main__":
    main()
