"""Small real runs of the embedded policy in the embedded world, and what they leave behind."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import torch

from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
SMALL = [
    *("--data.tasks_per_iteration", "4", "--data.train.n", "40", "--data.train.hops", "[1,2,3]"),
    *("--data.validation.n", "4", "--data.validation.hops", "[1,2]", "--data.test.n", "6", "--data.test.hops", "[1,2]"),
    *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
]
CLOCKS = ("time/rollout", "time/train", "time/sync")


def arguments(command: str, root: Path | str, *args: str, config: str = "tree_grpo") -> list[str]:
    """A small run below ``root``; ``args`` come last and win."""
    return [
        command,
        *("--config", str(CONFIGS / f"{config}.yaml"), *SMALL),
        *("--trainer.check_val_every_n_epoch", "1", "--trainer.default_root_dir", str(root)),
        *args,
    ]


class Run:
    """A finished run: its folder, its trees as plain containers where they were watched, and its metrics."""

    def __init__(self, folder: Path, trees: list[Any]) -> None:
        self.folder, self.trees = folder, trees

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"

    def checkpoint(self) -> dict[str, Any]:
        return torch.load(self.last, weights_only=True)

    def rows(self) -> list[dict[str, str]]:
        """Rows of metrics.csv as text, empty cells left out."""
        with (self.folder / "metrics.csv").open(newline="") as file:
            return [{k: v for k, v in row.items() if v != ""} for row in csv.DictReader(file)]

    def repeatable_rows(self) -> list[dict[str, str]]:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in self.rows()]


def newest(root: Path) -> Path:
    """The newest run folder below ``root``."""
    return max(root.glob("version_*"), key=lambda path: int(path.name.removeprefix("version_")))


def run(monkeypatch_context: Any, command: str, root: Path, *args: str, config: str = "tree_grpo") -> Run:
    """Run a command in this process, writing down the trees of every iteration."""
    trees: list[Any] = []
    collect = TreeSampler.collect

    def watched(self, *arguments):
        groups = collect(self, *arguments)
        trees.append([json.dumps([tree.to_json() for tree in group.trees]) for group in groups])
        return groups

    with monkeypatch_context() as patch:
        patch.setattr(TreeSampler, "collect", watched)
        main(arguments(command, root, *args, config=config))
    return Run(newest(root), trees)


def same(one: Any, other: Any) -> bool:
    """Whether two nested containers hold the same, tensors bit for bit; nan equals nan."""
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def built(monkeypatch: Any, *args: str) -> Any:
    """Parse ``args`` and build everything that they name, but start nothing; returns the command line object."""
    import lit_treerl.command

    made: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(lit_treerl.command.TreeRLCLI, "_run_subcommand", lambda self, _: made.append(self))
        patch.setattr(lit_treerl.command, "policy_path", str)
        main(args)
    return made[0]
