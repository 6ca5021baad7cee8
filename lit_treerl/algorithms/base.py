"""The advantage estimator contract: trees in, credit out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lit_treerl.trees.tree import RolloutGroup


@dataclass(frozen=True)
class Credit:
    """What the steps of one tree earned.

    Attributes:
        leaves: [L] the tree's training leaves, as node indices.
        advantage: [nodes, L] float64, advantage of a node's action as seen from the episode that ends in each
            leaf; 0 where the node is not on the leaf's path.
    """

    leaves: list[int]
    advantage: Tensor


class AdvantageEstimator(ABC):
    """Turns the groups of one iteration into credit."""

    @abstractmethod
    def __call__(self, groups: Sequence[RolloutGroup]) -> list[list[Credit]]:
        """Return one :class:`Credit` per tree, nested as ``groups`` and their trees are.

        Raises:
            ValueError: naming the task, where a return is not finite.
        """
