"""What a tree costs, as learned from those sampled so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup

MOMENTUM = 0.8  # share of the running mean that one iteration leaves in place


class TreeCosts:
    """Running mean of the sampled tokens of a tree, forks included, by data source."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def observe(self, groups: Sequence[RolloutGroup]) -> None:
        """Learn from one iteration's trees."""
        seen: dict[str, list[int]] = {}
        for group in groups:
            for tree in group.trees:
                if tree.training_leaves():  # else nothing, or only a failure's beginning
                    seen.setdefault(group.task.data_source, []).append(tree.sampled_tokens())
        for source, tokens in seen.items():
            now = fmean(tokens)
            self._mean[source] = MOMENTUM * self._mean.get(source, now) + (1 - MOMENTUM) * now

    def expected(self, task: Task) -> float | None:
        """Expected sampled tokens of a tree of ``task``; None where its source is new."""
        return self._mean.get(task.data_source) or None

    def state_dict(self) -> dict[str, float]:
        """The means."""
        return dict(self._mean)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._mean = dict(state)
