"""PPO: generalised advantages from a critic, on chains and on trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import counted_nodes, spread_nodes, tree_returns
from lit_treerl.algorithms.base import AdvantageEstimator, Beliefs, Credit
from lit_treerl.algorithms.beliefs import finite, match_beliefs
from lit_treerl.algorithms.gae import lambda_returns, token_gae, tree_gae
from lit_treerl.settings import check_choice, check_positive
from lit_treerl.trees.tree import RolloutGroup, Tree

GAELevel = Literal["turn", "token"]
PPONormalisation = Literal["batch", "none"]


@dataclass(frozen=True)
class Estimate:
    """What GAE says of one tree, before normalisation.

    Attributes:
        tree: the tree.
        beliefs: what it was estimated from.
        counted: per node, whether it lies on a training leaf's path.
        advantage: [nodes], at the token level the mean over the node's tokens.
        token_advantage: per node [action_len], at the token level.
        target: [nodes] lambda returns; nan at ends and where not counted.
        token_target: per node, at the token level.
    """

    tree: Tree
    beliefs: Beliefs
    counted: list[bool]
    advantage: Tensor
    token_advantage: list[Tensor] | None
    target: Tensor
    token_target: list[Tensor] | None

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Advantages of the counted nodes and the action tokens each stands for."""
        nodes = [node for node, counts in enumerate(self.counted) if counts and self.tree.action_len[node]]
        if self.token_advantage is not None:
            tokens = torch.cat([torch.zeros(0, dtype=torch.float64), *(self.token_advantage[node] for node in nodes)])
            return tokens, torch.ones_like(tokens)
        lengths = torch.tensor([self.tree.action_len[node] for node in nodes], dtype=torch.float64)
        return self.advantage[nodes], lengths

    def rescaled(self, shift: float, scale: float) -> Estimate:
        """The same with advantages less ``shift``, divided by ``scale``; tokens that do not count stay at 0."""
        tokens = self.token_advantage
        if tokens is not None:
            tokens = [(some - shift) / scale if c else some for some, c in zip(tokens, self.counted, strict=True)]
        return replace(self, advantage=(self.advantage - shift) / scale, token_advantage=tokens)


class PPO(AdvantageEstimator):
    """Generalised advantage estimation; the critic learns lambda returns.

    Works on chains and on trees, where the recursion runs along edges (see ``algorithms/gae.py``). Advantages are
    normalised ONCE for the whole iteration, not per mini-batch. Every state on a training leaf's path but the ends is
    a target of weight 1. The critic's values of states inside observations are never asked for: GAE over every token
    of a transcript, observations included, is known to be weak and is not offered.

    Args:
        level: ``turn``: one step is a whole action, whose tokens share its advantage; ``token``: one step is an
            action token, and discount and lambda apply per token.
        discount: of future rewards, per step.
        gae_lambda: 0 trusts the critic's next value alone, 1 the sampled return alone.
        normalisation: ``batch`` divides by the standard deviation over the iteration's action tokens, each counted
            once; ``none`` does not.
        std_floor: least divisor of ``batch``. Where all episodes end alike the advantages are the critic's errors
            alone, and a small floor would blow them up to a whole step.
        centre: ``batch`` also subtracts the mean over those tokens; else the divisor is their root mean square.

    Raises:
        ValueError: where a setting is out of range.
    """

    uses_critic = True

    def __init__(
        self,
        level: GAELevel = "turn",
        discount: float = 1.0,
        gae_lambda: float = 0.95,
        normalisation: PPONormalisation = "batch",
        std_floor: float = 0.05,
        centre: bool = True,
    ) -> None:
        check_choice("level", level, get_args(GAELevel))
        check_choice("normalisation", normalisation, get_args(PPONormalisation))
        if not 0 < discount <= 1 or not 0 <= gae_lambda <= 1:
            raise ValueError(f"discount must be in (0, 1] and gae_lambda in [0, 1], got {discount} and {gae_lambda}")
        check_positive("std_floor", std_floor)
        self.token_level = level == "token"
        self.discount, self.gae_lambda = discount, gae_lambda
        self.normalisation: PPONormalisation = normalisation
        self.std_floor, self.centre = std_floor, centre

    def __call__(
        self, groups: Sequence[RolloutGroup], beliefs: Sequence[Sequence[Beliefs]] | None = None
    ) -> list[list[Credit]]:
        """Return one credit per tree, targets of the critic included; see :class:`AdvantageEstimator`."""
        for group in groups:
            tree_returns(group)  # complains of returns that are not finite
        pairs = match_beliefs(groups, beliefs, self.needs())
        estimates = [[self._estimate(tree, some) for tree, some in group] for group in pairs]
        shift, scale = self._normaliser([estimate for group in estimates for estimate in group])
        return [[self._credit(estimate.rescaled(shift, scale)) for estimate in group] for group in estimates]

    def needs(self) -> list[str]:
        """Fields of :class:`Beliefs` that must be there."""
        return ["value", "token_value"] if self.token_level else ["value"]

    def targets(self, estimate: Estimate) -> tuple[Tensor, Tensor]:
        """Targets [nodes] of the critic and their weights [nodes]; nan and 0 where there is nothing to learn."""
        return estimate.target, (~estimate.target.isnan()).double()

    def _estimate(self, tree: Tree, beliefs: Beliefs) -> Estimate:
        counted = counted_nodes(tree)
        inner = torch.zeros(len(tree), dtype=torch.bool)
        inner[[tree.parent[node] for node in range(1, len(tree)) if counted[node]]] = True
        value = finite(beliefs.value, tree, inner, "the critic's value")
        settings = {"discount": self.discount, "gae_lambda": self.gae_lambda, "counted": counted}
        if not self.token_level:
            advantage = tree_gae(tree.parent, tree.reward, value, **settings)
            target = lambda_returns(tree.parent, value, advantage, counted)
            return Estimate(tree, beliefs, counted, advantage, None, target, None)
        assert beliefs.token_value is not None
        for node, values in enumerate(beliefs.token_value):
            finite(values, tree, torch.full((len(values),), counted[node]), f"a token value in node {node}, token")
        found = token_gae(tree.parent, tree.reward, value, beliefs.token_value, tree.action_len, **settings)
        means = torch.stack([some.mean() if len(some) else some.sum() for some in found.advantage])
        return Estimate(tree, beliefs, counted, means, found.advantage, found.target, found.token_target)

    def _normaliser(self, estimates: list[Estimate]) -> tuple[float, float]:
        """What is subtracted from all advantages, and what they are divided by."""
        pairs = [estimate.weighted() for estimate in estimates]
        total = sum(float(weights.sum()) for _, weights in pairs)
        if self.normalisation == "none" or not total:
            return 0.0, 1.0
        values, weights = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        shift = float((values * weights).sum()) / total if self.centre else 0.0
        return shift, max(float(((values - shift).square() * weights).sum() / total) ** 0.5, self.std_floor)

    def _credit(self, estimate: Estimate) -> Credit:
        target, weight = self.targets(estimate)
        credit = spread_nodes(estimate.tree, estimate.advantage, estimate.token_advantage)
        return replace(credit, target=target, target_weight=weight, token_target=estimate.token_target)
