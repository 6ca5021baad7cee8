"""Tree-GRPO: leaves against the mean of their tree and against the mean of their task."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import Normalisation, Singletons, group_normalise
from lit_treerl.algorithms.leafwise import LeafwiseEstimator, check_choice

Level = Literal["both", "intra", "inter"]


class TreeGRPO(LeafwiseEstimator):
    """A = (R - mean of the tree) + (R - mean of the task), each level normalised (arXiv 2509.21240).

    Args:
        level: ``both`` sums the two levels unweighted, as published; ``intra`` compares inside each tree only,
            ``inter`` over all leaves of the task only.
        normalisation: ``group_std`` divides each level by its group's unbiased std + 1e-6, as published; ``none``
            does not; ``batch`` divides the sums of an iteration by their common root mean square.
        singletons: advantage of a group of one (a tree with one leaf): ``zero``, or ``published``: the raw return.
        std_floor: least divisor of ``batch``, so that near-silent iterations are not blown up.
    """

    def __init__(
        self,
        level: Level = "both",
        normalisation: Normalisation = "batch",
        singletons: Singletons = "zero",
        std_floor: float = 0.05,
    ) -> None:
        super().__init__(normalisation, singletons, std_floor)
        check_choice("level", level, get_args(Level))
        self.level: Level = level

    def compare(self, returns: list[Tensor]) -> list[Tensor]:
        """Groups: each tree, and the task."""
        std, singletons = self.divides_by_std, self.singletons
        intra = torch.cat([group_normalise(tree, std=std, singletons=singletons) for tree in returns])
        inter = group_normalise(torch.cat(returns), std=std, singletons=singletons)
        values = {"both": intra + inter, "intra": intra, "inter": inter}[self.level]
        return list(values.split([len(tree) for tree in returns]))
