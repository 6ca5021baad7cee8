"""GRPO: leaves against the mean of their task."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import Normalisation, Singletons, group_normalise
from lit_treerl.algorithms.leafwise import LeafwiseEstimator


class GRPO(LeafwiseEstimator):
    """A = R - mean(R of the task's leaves), normalised.

    Args:
        normalisation: ``group_std`` divides each group by its unbiased std + 1e-6, as published; ``none`` does
            not; ``batch`` divides all advantages of an iteration by their common root mean square.
        singletons: advantage of a group of one: ``zero``, or ``published``: the raw return.
        std_floor: least divisor of ``batch``, so that near-silent iterations are not blown up.
    """

    def __init__(
        self, normalisation: Normalisation = "batch", singletons: Singletons = "zero", std_floor: float = 0.05
    ) -> None:
        super().__init__(normalisation, singletons, std_floor)

    def compare(self, returns: list[Tensor]) -> list[Tensor]:
        """One group: all leaves of all trees of the task."""
        values = group_normalise(torch.cat(returns), std=self.divides_by_std, singletons=self.singletons)
        return list(values.split([len(tree) for tree in returns]))
