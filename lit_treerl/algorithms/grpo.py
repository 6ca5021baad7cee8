"""GRPO: leaves against the mean of their task."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import Normalisation, Singletons, group_normalise
from lit_treerl.algorithms.baselines import Baseline, shrunken_mean
from lit_treerl.algorithms.group_relative import CreditTo, GroupRelativeEstimator


class GRPO(GroupRelativeEstimator):
    """A = R - mean(R of the task's leaves), normalised.

    With another ``baseline`` A = R - (sum of R + k v) / (n + k), and with ``credit`` on edges each action has its own;
    both are ours, and :class:`~lit_treerl.algorithms.group_relative.GroupRelativeEstimator` says how.

    Args:
        normalisation: ``group_std`` divides each group by its unbiased std + 1e-6, as published; ``none`` does
            not; ``batch`` divides all advantages of an iteration by their common root mean square.
        singletons: advantage of a group of one: ``zero``, or ``published``: the raw return.
        std_floor: least divisor of ``batch``, so that near-silent iterations are not blown up.
        baseline: ``group``: the task's own mean, as published. The others shrink that towards a prior v: ``apvt``, the
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

    def compare(self, returns: list[Tensor]) -> list[Tensor]:
        """One group: all leaves of all trees of the task."""
        values = group_normalise(torch.cat(returns), std=self.divides_by_std, singletons=self.singletons)
        return list(values.split([len(tree) for tree in returns]))

    def over_baseline(self, returns: list[Tensor], prior: float) -> list[Tensor]:
        """One baseline for the whole task."""
        baseline = shrunken_mean(torch.cat(returns), prior, self.baseline_weight)
        return [tree - baseline for tree in returns]
