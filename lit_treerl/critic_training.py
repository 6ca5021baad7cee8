"""The critic's side of an iteration: what it believes of the trees, and the packs that it learns from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import counted_nodes
from lit_treerl.algorithms.base import Beliefs, Credit
from lit_treerl.algorithms.gae import monte_carlo_values
from lit_treerl.algorithms.value_loss import ValueLossConfig, explained_variance
from lit_treerl.modeling.forest import Place
from lit_treerl.modeling.value_packs import ValuePack, value_packs
from lit_treerl.optimizers import OptimizerConfig, check_rate
from lit_treerl.settings import check_positive
from lit_treerl.trees.tree import ROOT, RolloutGroup
from lit_treerl.trees.value_tree import ValueTree
from lit_treerl.updates import mini_batches

Outputs = Callable[[ValuePack], Tensor]
Targets = list[list[tuple[Tensor, Tensor]]]
"""(target [nodes], weight [nodes]) of every tree, nested as groups and trees."""


@dataclass(frozen=True)
class CriticConfig:
    """How the critic is built and trained; it is only built where something asks for it.

    Args:
        policy: Hugging Face model folder or hub name that it starts from; the actor's own when null.
        backbone: ``own`` weights, or ``shared``: a second LoRA adapter on the actor's frozen base.
        dtype: of the weights.
        gradient_checkpointing: compute activations again in the backward pass, to save memory.
        lora: arguments of ``peft.LoraConfig`` of the critic's adapter; null trains all of its own weights, and takes
            the actor's settings where the backbone is shared.
        lr: learning rate.
        optimizer: AdamW and its schedule, counted in the critic's optimizer steps.
        loss: error and clipping.
        mini_batches: optimizer steps per pass over the iteration's tasks.
        passes: passes over the iteration's trees.
        max_tokens_per_pack: most unique tokens in one forward pass.
        weight_saturation: samples from which on a target of the value tree has full weight, where the algorithm brings
            no targets of its own.
    """

    policy: str | None = None
    backbone: Literal["own", "shared"] = "own"
    dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    lora: dict[str, Any] | None = None
    lr: float = 1e-5
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: ValueLossConfig = field(default_factory=ValueLossConfig)
    mini_batches: int = 2
    passes: int = 1
    max_tokens_per_pack: int = 8192
    weight_saturation: float = 4.0

    def __post_init__(self) -> None:
        for name in ("mini_batches", "passes", "max_tokens_per_pack"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.critic.{name} must be at least 1, got {getattr(self, name)}")
        check_positive("model.critic.weight_saturation", self.weight_saturation)
        check_rate("model.critic.lr", self.lr)
        if self.backbone == "shared" and self.policy is not None:
            raise ValueError("model.critic.policy goes with backbone 'own'; a shared one is the actor's")


# ---- beliefs ----


def tree_values(
    groups: Sequence[RolloutGroup], packs: Sequence[ValuePack], outputs: Sequence[Tensor]
) -> list[list[Beliefs]]:
    """The critic's values by node, from its values [M] of each pack; 0 where no value was read (ends, failures)."""
    found = [
        [
            Beliefs(
                torch.zeros(len(tree), dtype=torch.float64),
                [torch.zeros(max(size - 1, 0), dtype=torch.float64) for size in tree.action_len],
            )
            for tree in group.trees
        ]
        for group in groups
    ]
    for pack, values in zip(packs, outputs, strict=True):
        for places, value in zip(pack.places, values.double().tolist(), strict=True):
            for place in places:
                belief = found[place.group][place.tree]
                assert belief.value is not None
                assert belief.token_value is not None
                if place.token < 0:
                    belief.value[place.node] = value
                else:
                    belief.token_value[place.node][place.token] = value
    return found


def value_tree_beliefs(
    groups: Sequence[RolloutGroup], value_tree: ValueTree, version: int, beliefs: Sequence[Sequence[Beliefs]]
) -> list[list[Beliefs]]:
    """Add the groups to the value tree, and to each tree's beliefs what it says: priors from before, means from after.

    Args:
        groups: the iteration's trees.
        value_tree: grows.
        version: of the policy that sampled the trees.
        beliefs: nested as groups and trees, taken over.
    """
    general = value_tree.prior()
    known = [value_tree.task_value(group.task) for group in groups]
    value_tree.add(groups, version)
    priors = [general if before is None else before.mean for before in known]
    beliefs = [[replace(b, prior=prior) for b in some] for some, prior in zip(beliefs, priors, strict=True)]
    return read_value_tree(groups, value_tree, beliefs)


def with_others(
    groups: Sequence[RolloutGroup], value_tree: ValueTree, beliefs: Sequence[Sequence[Beliefs]]
) -> list[list[Beliefs]]:
    """Beliefs with what all other episodes say of each leaf's states; of groups that were just added."""
    out = []
    for group, some in zip(groups, beliefs, strict=True):
        leaves = [tree.training_leaves() for tree in group.trees]
        others = [[value_tree.others(group, i, leaf) for leaf in mine] for i, mine in enumerate(leaves)]
        out.append([replace(b, others=other) for b, other in zip(some, others, strict=True)])
    return out


def read_value_tree(
    groups: Sequence[RolloutGroup], value_tree: ValueTree, beliefs: Sequence[Sequence[Beliefs]]
) -> list[list[Beliefs]]:
    """Beliefs with what the value tree says of states of groups that it has met; nested as groups and trees."""
    return [
        [_with(b, *one, value_tree.shrinkage) for b, one in zip(some, value_tree.beliefs(group), strict=True)]
        for group, some in zip(groups, beliefs, strict=True)
    ]


def _with(belief: Beliefs, mean: list[float], trust: list[float], shrinkage: float) -> Beliefs:
    share = torch.tensor(trust, dtype=torch.float64)
    count = shrinkage * share / (1 - share)
    return replace(belief, mean=torch.tensor(mean, dtype=torch.float64), trust=share, count=count)


# ---- targets ----


def state_targets(
    groups: Sequence[RolloutGroup], beliefs: Sequence[Sequence[Beliefs]], weight_saturation: float
) -> Targets:
    """What the critic should say of each state, whatever the algorithm: the value tree's mean y(u) where there is one.

    Its weight is min(1, sqrt(n / n0)) for n samples. Without a value tree it is the mean return-to-go in the tree, with
    weight 1. nan and 0 where the path goes on in no training leaf.
    """
    out: Targets = []
    for group, group_beliefs in zip(groups, beliefs, strict=True):
        rows = []
        for tree, belief in zip(group.trees, group_beliefs, strict=True):
            sampled = monte_carlo_values(tree.parent, tree.reward, counted_nodes(tree))
            learns = ~sampled.isnan()
            if belief.mean is None or belief.count is None:
                rows.append((sampled, learns.double()))
                continue
            weight = (belief.count.clamp(min=0.0) / weight_saturation).sqrt().clamp(max=1.0)
            learns &= weight > 0
            rows.append((torch.where(learns, belief.mean, torch.nan), torch.where(learns, weight, 0.0)))
        out.append(rows)
    return out


def measure(values: Sequence[Sequence[Beliefs]], targets: Targets) -> float:
    """Explained variance of the critic's values over all states of some groups; nan where nothing varies.

    A task's trees share their first state, which counts once, as in training.
    """
    pairs = []
    for some, goals in zip(values, targets, strict=True):
        for belief, (target, weight) in zip(some, goals, strict=True):
            if belief.value is not None:
                shared = torch.ones_like(weight)
                shared[ROOT] = 1 / len(some)
                pairs.append((belief.value, target, weight * shared))
    if not pairs:
        return float("nan")
    return explained_variance(*(torch.cat(parts) for parts in zip(*pairs, strict=True)))


def credit_targets(credits: Sequence[Sequence[Credit]]) -> Targets | None:
    """The targets that the algorithm brings; None where it brings none."""
    rows = [[(c.target, c.target_weight) for c in group] for group in credits]
    if any(target is None or weight is None for group in rows for target, weight in group):
        return None
    return rows  # type: ignore[return-value]


# ---- packs ----


def plan_value_packs(
    groups: Sequence[RolloutGroup],
    targets: Targets,
    credits: Sequence[Sequence[Credit]] | None,
    config: CriticConfig,
    rng: random.Random,
    outputs: Outputs,
) -> list[ValuePack]:
    """Packs of the critic's optimizer steps: ``passes`` times, shuffled, in ``mini_batches``.

    Args:
        groups: the trees.
        targets: of their states.
        credits: token-level targets are taken from here where there are any.
        config: settings.
        rng: shuffles.
        outputs: the critic as it stands, for the old values where the loss is clipped.
    """
    token_level = any(c.token_target is not None for group in credits or () for c in group)

    def look_up(place: Place) -> tuple[float, float]:
        """(target, weight) of the value read at ``place``."""
        if place.token < 0:
            target, weight = targets[place.group][place.tree]
            return float(target[place.node]), float(weight[place.node])
        tokens = credits[place.group][place.tree].token_target if credits else None
        value = float(tokens[place.node][place.token]) if tokens else float("nan")
        return value, 0.0 if value != value else 1.0

    packs: list[ValuePack] = []
    for _ in range(config.passes):
        order = list(range(len(groups)))
        rng.shuffle(order)
        for batch in mini_batches(order, config.mini_batches):
            some = value_packs(
                [groups[i] for i in batch], max_tokens=config.max_tokens_per_pack, token_level=token_level
            )
            packs += _weighed(some, lambda place, batch=batch: look_up(place._replace(group=batch[place.group])))
    if config.loss.clip is None:
        return packs
    return [replace(pack, old=outputs(pack)) for pack in packs]


def _weighed(packs: Sequence[ValuePack], look_up: Callable[[Place], tuple[float, float]]) -> list[ValuePack]:
    """The packs of one step with targets, their weights divided by the step's sum; none where there is no weight."""
    packs = [pack.with_targets(look_up) for pack in packs]
    total = sum(float(pack.weight.sum()) for pack in packs if pack.weight is not None)
    if not total:
        return []
    return [replace(pack, weight=pack.weight / total) for pack in packs if pack.weight is not None]
