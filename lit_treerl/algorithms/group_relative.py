"""Group-relative estimators with a choice of baseline and of where the credit goes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import (
    Normalisation,
    Singletons,
    batch_scale,
    counted_nodes,
    is_silent,
    spread,
    spread_nodes,
    tree_returns,
)
from lit_treerl.algorithms.base import Beliefs, Credit
from lit_treerl.algorithms.baselines import NEEDS, Baseline, Priors, shrunken_mean
from lit_treerl.algorithms.beliefs import match_beliefs
from lit_treerl.algorithms.edge import edge_advantages
from lit_treerl.algorithms.gae import monte_carlo_values
from lit_treerl.algorithms.leafwise import LeafwiseEstimator
from lit_treerl.settings import check_choice
from lit_treerl.trees.tree import ROOT, RolloutGroup, Tree

CreditTo = Literal["leaf", "edge"]

RESIDUE = 1e-9  # advantages below this share of the task's largest return, or of 1, are float residue


class GroupRelativeEstimator(LeafwiseEstimator):
    """What GRPO and Tree-GRPO offer beside the published form, which is baseline ``group`` with credit ``leaf``.

    Ours, with n returns of a task, v its prior (:class:`~lit_treerl.algorithms.baselines.Priors`) and k the baseline's
    weight:

    - The task's baseline is b = (sum of returns + k v) / (n + k), so that a task of equal returns is not silent. A
      leaf's own return is in b. For leaves that share no node this only scales: R - b equals (n + k - 1) / (n + k)
      times R less the same b without that leaf. Leaves of one tree are not independent; nothing is corrected there.
    - With the ``critic`` baseline the critic is trained too, towards the mean return-to-go of each state's subtree in
      which every child weighs the same, see ``algorithms/gae.py`` for what forks do to it.
    - Credit ``edge`` gives an action A = r + y(u) - y(parent), y the shrunken mean return-to-go of its tree's states
      (:func:`~lit_treerl.algorithms.edge.edge_values`), with b at the root, or the plain group mean for ``group``.
      Its ``batch`` divisor is the root mean square over the iteration's edges, each counted once.

    Subclasses compare a task's leaves with their baseline in :meth:`over_baseline`.
    """

    def __init__(
        self,
        normalisation: Normalisation,
        singletons: Singletons,
        std_floor: float,
        baseline: Baseline,
        baseline_weight: float,
        credit: CreditTo,
        edge_weight: float,
        momentum: float,
    ) -> None:
        super().__init__(normalisation, singletons, std_floor)
        check_choice("credit", credit, get_args(CreditTo))
        if not 0 <= baseline_weight < math.inf or not 0 <= edge_weight < math.inf:
            raise ValueError(
                "baseline_weight and edge_weight must not be negative and must be finite, "
                f"got {baseline_weight} and {edge_weight}"
            )
        self.priors = Priors(baseline, momentum)
        self.published = baseline == "group" and credit == "leaf"
        if not self.published and (normalisation == "group_std" or singletons == "published"):
            raise ValueError(
                "normalisation 'group_std' and singletons 'published' go with baseline 'group' and credit 'leaf' "
                f"only, not with baseline {baseline!r} and credit {credit!r}"
            )
        self.credit: CreditTo = credit
        self.baseline_weight, self.edge_weight = baseline_weight, edge_weight
        self.uses_critic, self.uses_value_tree = baseline == "critic", baseline == "apvt"

    @abstractmethod
    def over_baseline(self, returns: list[Tensor], prior: float) -> list[Tensor]:
        """Advantages of one task's leaves over its baseline, both one [L] tensor per tree, before batch scaling."""

    def __call__(
        self, groups: Sequence[RolloutGroup], beliefs: Sequence[Sequence[Beliefs]] | None = None
    ) -> list[list[Credit]]:
        """Return one credit per tree; see :class:`AdvantageEstimator`."""
        if self.published:
            return super().__call__(groups)
        believed = match_beliefs(groups, beliefs, NEEDS[self.priors.kind])
        returns = [tree_returns(group) for group in groups]
        credit = self._edge_credit if self.credit == "edge" else self._leaf_credit
        credits = credit(groups, returns, self.priors(believed, returns))
        if not self.uses_critic:
            return credits
        return [
            [_with_targets(tree, credit) for tree, credit in zip(group.trees, some, strict=True)]
            for group, some in zip(groups, credits, strict=True)
        ]

    def state_dict(self) -> dict[str, float]:
        """The running mean of the returns, once there is one."""
        return self.priors.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.priors.load_state_dict(state)

    def _leaf_credit(
        self, groups: Sequence[RolloutGroup], returns: list[list[Tensor]], priors: list[float | None]
    ) -> list[list[Credit]]:
        found = []
        for some, prior in zip(returns, priors, strict=True):
            advantages = self.over_baseline(some, prior or 0.0) if some else []
            found.append([_without_residue(tree, _joined(some)) for tree in advantages])
        return [
            [spread(tree, values) for tree, values in zip(group.trees, trees, strict=True)]
            for group, trees in zip(groups, self.scaled(found), strict=True)
        ]

    def _edge_credit(
        self, groups: Sequence[RolloutGroup], returns: list[list[Tensor]], priors: list[float | None]
    ) -> list[list[Credit]]:
        found = [
            [self._edges(tree, _joined(some), prior) for tree in group.trees]
            for group, some, prior in zip(groups, returns, priors, strict=True)
        ]
        scale = 1.0
        if self.normalisation == "batch":
            edges = [_edges_of(tree) for group in groups for tree in group.trees]
            flat = [values for group in found for values in group]
            scale = batch_scale([values[some] for values, some in zip(flat, edges, strict=True)], self.std_floor)
        return [
            [spread_nodes(tree, values / scale) for tree, values in zip(group.trees, trees, strict=True)]
            for group, trees in zip(groups, found, strict=True)
        ]

    def _edges(self, tree: Tree, returns: Tensor, prior: float | None) -> Tensor:
        """Advantage [nodes] of each action of one tree; ``returns`` are the whole task's."""
        if prior is None and is_silent(returns):
            return torch.zeros(len(tree), dtype=torch.float64)
        mean = shrunken_mean(returns, prior, self.baseline_weight)
        counted = counted_nodes(tree)
        values = edge_advantages(tree.parent, tree.reward, counted, prior=mean, weight=self.edge_weight)
        return _without_residue(values, returns)


def _joined(returns: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.float64), *returns])


def _edges_of(tree: Tree) -> list[int]:
    return [node for node, counts in enumerate(counted_nodes(tree)) if counts and node != ROOT]


def _without_residue(advantages: Tensor, returns: Tensor) -> Tensor:
    """Exact zeros for what only rounding left over, so that such leaves can be skipped."""
    largest = float(returns.abs().max()) if len(returns) else 0.0
    return torch.where(advantages.abs() <= RESIDUE * max(largest, 1.0), 0.0, advantages)


def _with_targets(tree: Tree, credit: Credit) -> Credit:
    target = monte_carlo_values(tree.parent, tree.reward, counted_nodes(tree))
    return replace(credit, target=target, target_weight=(~target.isnan()).double())
