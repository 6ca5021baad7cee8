"""What GRPO, RLOO and Tree-GRPO share: one advantage per leaf, spread over the whole path."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import get_args

from torch import Tensor

from lit_treerl.algorithms.advantages import Normalisation, Singletons, batch_scale, spread, tree_returns
from lit_treerl.algorithms.base import AdvantageEstimator, Beliefs, Credit
from lit_treerl.settings import check_choice, check_positive
from lit_treerl.trees.tree import RolloutGroup


class LeafwiseEstimator(AdvantageEstimator):
    """Compares the returns of a task's leaves; failed and pruned leaves are outside every mean and std.

    Subclasses say how the returns of one group become advantages in :meth:`compare`.
    """

    def __init__(self, normalisation: Normalisation, singletons: Singletons, std_floor: float) -> None:
        check_choice("normalisation", normalisation, get_args(Normalisation))
        check_choice("singletons", singletons, get_args(Singletons))
        check_positive("std_floor", std_floor)
        self.normalisation: Normalisation = normalisation
        self.singletons: Singletons = singletons
        self.std_floor = std_floor

    def __call__(
        self, groups: Sequence[RolloutGroup], beliefs: Sequence[Sequence[Beliefs]] | None = None
    ) -> list[list[Credit]]:
        """Return one credit per tree; see :class:`AdvantageEstimator`."""
        advantages = self.scaled([self.compare(tree_returns(group)) if group.trees else [] for group in groups])
        return [
            [spread(tree, values) for tree, values in zip(group.trees, trees, strict=True)]
            for group, trees in zip(groups, advantages, strict=True)
        ]

    def scaled(self, advantages: list[list[Tensor]]) -> list[list[Tensor]]:
        """The iteration's advantages with the ``batch`` normalisation, where that is chosen."""
        if self.normalisation != "batch":
            return advantages
        scale = batch_scale([tree for group in advantages for tree in group], self.std_floor)
        return [[tree / scale for tree in group] for group in advantages]

    @property
    def divides_by_std(self) -> bool:
        """Whether each group is divided by its own std."""
        return self.normalisation == "group_std"

    @abstractmethod
    def compare(self, returns: list[Tensor]) -> list[Tensor]:
        """Advantages of one task's leaves from their returns, both one [L] tensor per tree, before batch scaling."""
