"""Tree-GRPO: leaves against the mean of their tree and against the mean of their task."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import Normalisation, Singletons, group_normalise
from lit_treerl.algorithms.baselines import Baseline, shrunken_mean
from lit_treerl.algorithms.group_relative import CreditTo, GroupRelativeEstimator
from lit_treerl.settings import check_choice

Level = Literal["both", "intra", "inter"]


class TreeGRPO(GroupRelativeEstimator):
    """A = (R - mean of the tree) + (R - mean of the task), each level normalised (arXiv 2509.21240).

    With another ``baseline`` (ours) each mean is shrunken, the tree's towards the task's: with n returns of the task, m
    of the tree, v the prior and k the weight,

    - inter: R - b with b = (sum over the task + k v) / (n + k),
    - intra: R - (sum over the tree + k b) / (m + k).

    With ``credit`` on edges (ours) each action has its own advantage, and ``level`` says nothing.
    :class:`~lit_treerl.algorithms.group_relative.GroupRelativeEstimator` tells more of both.

    Args:
        level: ``both`` sums the two levels unweighted, as published; ``intra`` compares inside each tree only,
            ``inter`` over all leaves of the task only.
        normalisation: ``group_std`` divides each level by its group's unbiased std + 1e-6, as published; ``none``
            does not; ``batch`` divides the sums of an iteration by their common root mean square.
        singletons: advantage of a group of one (a tree with one leaf): ``zero``, or ``published``: the raw return.
        std_floor: least divisor of ``batch``, so that near-silent iterations are not blown up.
        baseline: ``group``: the group's own mean, as published. The others shrink that towards a prior v: ``apvt``, the
            value tree's mean of the task over earlier iterations; ``critic``, the critic's value of its first state;
            ``running_mean``, of all tasks' returns over earlier iterations.
        baseline_weight: k, how many returns the prior counts for.
        credit: ``leaf``: an episode's actions share its advantage, as published; ``edge``: each action has what it
            changed in the mean return of its tree.
        edge_weight: how many children the parent's value counts for where edges are credited.
        momentum: share of the running mean that one iteration leaves in place.
    """

    def __init__(
        self,
        level: Level = "both",
        normalisation: Normalisation = "batch",
        singletons: Singletons = "zero",
        std_floor: float = 0.05,
        baseline: Baseline = "group",
        baseline_weight: float = 2.0,
        credit: CreditTo = "leaf",
        edge_weight: float = 1.0,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(normalisation, singletons, std_floor, baseline, baseline_weight, credit, edge_weight, momentum)
        check_choice("level", level, get_args(Level))
        self.level: Level = level

    def compare(self, returns: list[Tensor]) -> list[Tensor]:
        """Groups: each tree, and the task."""
        std, singletons = self.divides_by_std, self.singletons
        intra = torch.cat([group_normalise(tree, std=std, singletons=singletons) for tree in returns])
        inter = group_normalise(torch.cat(returns), std=std, singletons=singletons)
        values = {"both": intra + inter, "intra": intra, "inter": inter}[self.level]
        return list(values.split([len(tree) for tree in returns]))

    def over_baseline(self, returns: list[Tensor], prior: float) -> list[Tensor]:
        """The task's baseline, and each tree's shrunken towards it."""
        task = shrunken_mean(torch.cat(returns), prior, self.baseline_weight)
        out = []
        for tree in returns:
            intra, inter = tree - shrunken_mean(tree, task, self.baseline_weight), tree - task
            out.append({"both": intra + inter, "intra": intra, "inter": inter}[self.level])
        return out
