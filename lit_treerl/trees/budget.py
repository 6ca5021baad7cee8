"""Budgets: how many trees each task gets in an iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lit_treerl.trees.task import Task


class Budget(ABC):
    """Shares a fixed total of trees out over the tasks of one iteration."""

    @abstractmethod
    def allocate(self, tasks: Sequence[Task], trees_per_task: int) -> list[int]:
        """Trees for each task; the sum is exactly ``len(tasks) * trees_per_task``."""


class UniformBudget(Budget):
    """Every task gets the same number of trees."""

    def allocate(self, tasks: Sequence[Task], trees_per_task: int) -> list[int]:
        """``trees_per_task`` for each."""
        return [trees_per_task] * len(tasks)
