"""Budgets: how many trees each task gets in an iteration, and what a budget may know of the tasks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_treerl.trees.task import Task


@dataclass(frozen=True)
class TaskBelief:
    """What value tree and critic believe of one task before it is rolled out.

    Attributes:
        count: episodes of the task in the value tree, decayed; 0 where it never met the task.
        mean: their mean return; of no meaning where ``count`` is 0.
        variance: of their return; None where unknown.
        value: the critic's value of the task's root state, in units of the return; None without a critic.
        tokens: expected sampled tokens of one tree, forks included; None where unknown.

    Raises:
        ValueError: where a number is not finite, ``count`` is negative or ``tokens`` is not positive.
    """

    count: float = 0.0
    mean: float = 0.0
    variance: float | None = None
    value: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        for name in ("count", "mean", "variance", "value", "tokens"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"TaskBelief.{name} must be finite, got {number}")
        if self.count < 0:
            raise ValueError(f"TaskBelief.count must be at least 0, got {self.count}")
        if self.tokens is not None and self.tokens <= 0:
            raise ValueError(f"TaskBelief.tokens must be above 0, got {self.tokens}")


@dataclass(frozen=True)
class Outlook:
    """What is believed of an iteration's tasks.

    Attributes:
        tasks: one belief per task, in the order of the tasks.
        explained_variance: of the critic, as last measured; None where it is unknown.
    """

    tasks: list[TaskBelief] = field(default_factory=list)
    explained_variance: float | None = None


class Budget(ABC):
    """Shares a fixed total out over the tasks of one iteration.

    Budgets count trees: with chains (``search.expansions`` 0) a tree is one rollout, with forks it is
    ``search.leaves_per_tree`` of them.

    Attributes:
        uses_outlook: ``allocate`` wants to know what is believed of the tasks.
    """

    uses_outlook: bool = False

    @abstractmethod
    def allocate(self, tasks: Sequence[Task], trees_per_task: int, outlook: Outlook | None = None) -> list[int]:
        """Trees for each task.

        Their sum is exactly ``len(tasks) * trees_per_task``, save where a budget counts in another unit and says so;
        the cost of that many trees in its own unit is then never exceeded.

        Args:
            tasks: of the iteration.
            trees_per_task: mean number of trees.
            outlook: what is believed of the tasks; budgets with ``uses_outlook`` False ignore it.
        """


class UniformBudget(Budget):
    """Every task gets the same number of trees."""

    def allocate(self, tasks: Sequence[Task], trees_per_task: int, outlook: Outlook | None = None) -> list[int]:
        """``trees_per_task`` for each."""
        return [trees_per_task] * len(tasks)
