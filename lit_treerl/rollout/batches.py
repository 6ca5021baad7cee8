"""A batch of tasks to evaluate, and the trees that the sampler callback attaches to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup


@dataclass
class TaskBatch:
    """Tasks; ``groups`` is None until the sampler callback has rolled them out."""

    tasks: list[Task]
    groups: list[RolloutGroup] | None = None

    def to(self, *_: Any, **__: Any) -> TaskBatch:
        """Nothing here lives on a device."""
        return self

    def done(self) -> list[RolloutGroup]:
        """The trees.

        Raises:
            RuntimeError: where no callback has attached them.
        """
        if self.groups is None:
            raise RuntimeError("no trees were attached to the batch: the trainer needs the TreeSampler callback")
        return self.groups
