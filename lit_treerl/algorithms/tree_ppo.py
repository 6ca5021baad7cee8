"""TreePPO, a reconstruction: PPO on trees whose critic learns from the value tree as well as from returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.base import Beliefs
from lit_treerl.algorithms.beliefs import finite
from lit_treerl.algorithms.ppo import PPO, Estimate, GAELevel, PPONormalisation
from lit_treerl.settings import check_choice, check_positive
from lit_treerl.trees.tree import Tree
from lit_treerl.trees.value_tree import ValueTree

Values = Literal["critic", "mixture"]


class TreePPO(PPO):
    """Tree GAE along edges; critic targets mix the value tree's means with lambda returns.

    OUR RECONSTRUCTION: of TreePPO only the abstract is public. Known from it: trajectories that share action prefixes
    are organised in an Action-Prefix Value Tree (APVT), the terminal rewards of a prefix's continuations are averaged
    as the empirical value target of that state, the APVT supervises critic warm-up, and on-policy rollouts go on
    extending it. How target and return are combined in the policy phase, the weights and the advantages are ours.

    With a_u the trust in the value tree's mean y(u), and n_u the decayed samples behind it,

    - target(u) = a_u y(u) + (1 - a_u) G(u), G the lambda return;
    - weight(u) = min(1, sqrt(n_u / n0)); each node counts once.

    With ``values: critic`` the advantages are tree GAE over the critic's values alone, as in PPO. With ``values:
    mixture``, ours too, they are GAE along each leaf's path over

        V'(u) = (n V_others(u) + k V(u)) / (n + k),

    n and V_others those of the value tree without the leaf's own episode: other rollouts from the same state, where
    there are any, correct the critic. A shared action takes the mean over the leaves below it. Meant for chains: with
    forks that mean leans towards children with more leaves, and what others say of a shared action's state contains
    that action.

    The value tree needs the same ``discount`` (:func:`check_discounts`).
    Token-level targets are lambda returns alone: the value tree knows states before actions only.

    Args:
        level: ``turn``: one step is a whole action; ``token``: one step is an action token.
        discount: of future rewards, per step.
        gae_lambda: 0 trusts the critic's next value alone, 1 the sampled return alone.
        normalisation: ``batch`` divides by the standard deviation over the iteration's action tokens, each counted
            once; ``none`` does not.
        std_floor: least divisor of ``batch``.
        centre: ``batch`` also subtracts the mean over those tokens; else the divisor is their root mean square.
        mixture: False is the ablation without the value tree: lambda returns as targets, of weight 1, as in PPO.
        weight_saturation: n0, samples from which on a target has full weight.
        values: what advantages are measured by, ``critic`` or ``mixture``.
        prior_weight: k, episodes that the critic's value counts for in the mixture.

    Raises:
        ValueError: where a setting is out of range.
    """

    value_tree_optional = True

    def __init__(
        self,
        level: GAELevel = "turn",
        discount: float = 1.0,
        gae_lambda: float = 0.95,
        normalisation: PPONormalisation = "batch",
        std_floor: float = 0.05,
        centre: bool = True,
        mixture: bool = True,
        weight_saturation: float = 4.0,
        values: Values = "critic",
        prior_weight: float = 2.0,
    ) -> None:
        super().__init__(level, discount, gae_lambda, normalisation, std_floor, centre)
        check_positive("weight_saturation", weight_saturation)
        check_choice("values", values, get_args(Values))
        if values == "mixture" and level == "token":
            raise ValueError("values 'mixture' is about states before actions: it needs level 'turn'")
        check_positive("prior_weight", prior_weight)
        self.uses_value_tree = mixture
        self.uses_others, self.prior_weight = values == "mixture", prior_weight
        self.weight_saturation = weight_saturation

    def needs(self) -> list[str]:
        """Fields of :class:`Beliefs` that must be there."""
        needs = super().needs() + (["mean", "trust", "count"] if self.uses_value_tree else [])
        return [*needs, "others"] if self.uses_others else needs

    def _estimate(self, tree: Tree, beliefs: Beliefs) -> Estimate:
        estimate = super()._estimate(tree, beliefs)
        return replace(estimate, advantage=self._corrected(tree, beliefs)) if self.uses_others else estimate

    def _corrected(self, tree: Tree, beliefs: Beliefs) -> Tensor:
        """Advantage [nodes] over the mixture, the mean over the leaves below each node."""
        assert beliefs.value is not None
        assert beliefs.others is not None
        total, count, critic, k = [0.0] * len(tree), [0] * len(tree), beliefs.value.tolist(), self.prior_weight
        for leaf, others in zip(tree.training_leaves(), beliefs.others, strict=True):
            path = tree.path(leaf)
            values = [(n * mean + k * critic[node]) / (n + k) for node, (n, mean) in zip(path, others, strict=True)]
            values[-1] = after = 0.0  # the episode ends there
            for i in range(len(path) - 1, 0, -1):
                delta = tree.reward[path[i]] + self.discount * values[i] - values[i - 1]
                after = delta + self.discount * self.gae_lambda * after
                total[path[i]] += after
                count[path[i]] += 1
        return torch.tensor([a / max(n, 1) for a, n in zip(total, count, strict=True)], dtype=torch.float64)

    def targets(self, estimate: Estimate) -> tuple[Tensor, Tensor]:
        """Targets [nodes] of the critic and their weights [nodes]; nan and 0 where there is nothing to learn."""
        if not self.uses_value_tree:
            return super().targets(estimate)
        beliefs, learns = estimate.beliefs, ~estimate.target.isnan()
        trust = finite(beliefs.trust, estimate.tree, learns, "the value tree's trust")
        count = finite(beliefs.count, estimate.tree, learns, "the value tree's count")
        mean = finite(beliefs.mean, estimate.tree, learns & (trust != 0), "the value tree's mean")
        mixed = torch.where(trust == 0, estimate.target, trust * mean + (1 - trust) * estimate.target)
        weight = (count.clamp(min=0.0) / self.weight_saturation).sqrt().clamp(max=1.0)
        nothing = torch.full_like(mixed, float("nan"))
        return torch.where(learns, mixed, nothing), torch.where(learns, weight, torch.zeros_like(weight))


def check_discounts(algorithm: TreePPO, value_tree: ValueTree) -> None:
    """Raise ValueError where the two parts of a mixed target would mean different returns."""
    if algorithm.discount != value_tree.discount:
        raise ValueError(
            f"model.algorithm.discount is {algorithm.discount} and model.value_tree.discount {value_tree.discount}: "
            "the critic's targets mix both, so give them the same value"
        )
    if algorithm.token_level and algorithm.discount < 1:
        raise ValueError(
            f"model.algorithm.discount {algorithm.discount} counts tokens with level 'token', and the value tree "
            "counts steps: use discount 1, level 'turn', or model.algorithm.mixture false"
        )
