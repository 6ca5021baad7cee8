"""From an iteration's trees to the packs of its optimizer steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lit_treerl.algorithms.base import Credit
from lit_treerl.algorithms.losses import LossConfig
from lit_treerl.algorithms.node_weights import node_weights
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs
from lit_treerl.trees.tree import RolloutGroup


@dataclass(frozen=True)
class UpdateConfig:
    """How an iteration's trees become optimizer steps.

    Args:
        mini_batches: optimizer steps per pass over the iteration's tasks.
        inner_epochs: passes over the iteration's trees.
        aggregation: how token losses are averaged: over all leaves' tokens (``token_mean``), over leaves of their
            own token mean (``sequence_mean``, the paper's), or over leaves of the sum over ``fixed_length``.
        fixed_length: the constant of ``fixed_length``, in tokens.
        token_count: a token that several leaves share counts once for each of them (``per_leaf``, as where every
            trajectory is trained apart), or like any other token, with the mean of their advantages (``once``).
        zero_signal_groups: ``keep`` counts tasks without any advantage in the average, ``drop`` leaves them out.
        max_tokens_per_pack: most unique tokens in one forward pass.
    """

    mini_batches: int = 2
    inner_epochs: int = 1
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    fixed_length: int | None = None
    token_count: Literal["per_leaf", "once"] = "per_leaf"
    zero_signal_groups: Literal["keep", "drop"] = "keep"
    max_tokens_per_pack: int = 8192

    def __post_init__(self) -> None:
        for name in ("mini_batches", "inner_epochs", "max_tokens_per_pack"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.update.{name} must be at least 1, got {getattr(self, name)}")
        if (self.aggregation == "fixed_length") != (self.fixed_length is not None):
            raise ValueError("model.update.fixed_length goes with aggregation 'fixed_length', and only with it")


def plan_packs(
    groups: Sequence[RolloutGroup],
    credits: Sequence[Sequence[Credit]],
    config: UpdateConfig,
    loss: LossConfig,
    rng: random.Random,
) -> list[Pack]:
    """Shuffle the tasks into mini-batches and pack each; the last pack of a mini-batch ends an optimizer step."""
    packs: list[Pack] = []
    for _ in range(config.inner_epochs):
        order = list(range(len(groups)))
        rng.shuffle(order)
        for batch in mini_batches(order, config.mini_batches):
            some, some_credits = [groups[i] for i in batch], [credits[i] for i in batch]
            weights = node_weights(
                some,
                some_credits,
                config.aggregation,
                fixed_length=config.fixed_length,
                count=config.token_count,
                zero_signal_groups=config.zero_signal_groups,
            )
            packs += build_packs(
                some, some_credits, weights, max_tokens=config.max_tokens_per_pack, skip_zero=loss.skips_zero
            )
    return packs


def mini_batches(order: Sequence[int], count: int) -> list[Sequence[int]]:
    """``order`` in ``count`` runs whose lengths differ by at most one; empty runs are left out.

    >>> mini_batches([0, 1, 2, 3, 4], 2)
    [[0, 1, 2], [3, 4]]
    """
    size, extra = divmod(len(order), count)
    ends = [size * (i + 1) + min(i + 1, extra) for i in range(count)]
    runs = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [run for run in runs if run]
