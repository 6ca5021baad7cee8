"""Weights of nodes as seen from leaves: a shared token counted once for every leaf below it, or once in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.aggregation import Aggregation, ZeroSignal, kept_leaves, leaf_weights, step_total
from lit_treerl.algorithms.base import Credit
from lit_treerl.settings import check_choice
from lit_treerl.trees.tree import RolloutGroup, Tree

TokenCount = Literal["per_leaf", "once"]


def node_step_total(
    groups: Sequence[RolloutGroup],
    credits: Sequence[Sequence[Credit]],
    mode: Aggregation = "token_mean",
    count: TokenCount = "per_leaf",
    zero_signal_groups: ZeroSignal = "keep",
) -> int:
    """What an optimizer step's losses are divided by.

    For ``token_mean`` and ``once`` that is the number of its unique action tokens; otherwise it is
    :func:`~lit_treerl.algorithms.aggregation.step_total`. Over several processes, sum their totals and hand the sum to
    :func:`node_weights`.
    """
    if mode != "token_mean" or count == "per_leaf":
        return step_total(groups, credits, mode, zero_signal_groups)
    unique = {
        (id(tree), node): tree.action_len[node]
        for tree, leaf in kept_leaves(groups, credits, zero_signal_groups)
        for node in tree.path(leaf)
    }
    return sum(unique.values())


def node_weights(
    groups: Sequence[RolloutGroup],
    credits: Sequence[Sequence[Credit]],
    mode: Aggregation = "token_mean",
    fixed_length: int | None = None,
    *,
    count: TokenCount = "per_leaf",
    zero_signal_groups: ZeroSignal = "keep",
    total: float | None = None,
) -> list[list[Tensor]]:
    """Weight of each node's tokens as seen from each leaf, float64 [nodes, L] per tree; 0 off the leaf's path.

    - ``per_leaf``: the leaf's weight (:func:`~lit_treerl.algorithms.aggregation.leaf_weights`), so that a token with c
      leaves below it weighs as much as c tokens of its own, as where every trajectory is trained apart.
    - ``once``: that divided by c, so that a shared token weighs as much as any other and its advantage is the mean
      over its leaves. ``token_mean`` then divides by the step's unique action tokens; ``sequence_mean`` and
      ``fixed_length`` keep the divisors of their leaves.

    Args:
        groups: the step's groups.
        credits: their credit.
        mode: how leaf losses are averaged.
        fixed_length: divisor in tokens for ``fixed_length``.
        count: see above.
        zero_signal_groups: ``drop`` gives groups whose advantages are all 0 no weight.
        total: the divisor over all processes, from :func:`node_step_total`; this process's own when None.

    Raises:
        ValueError: for an unknown choice, or a missing or needless ``fixed_length``.
    """
    check_choice("count", count, get_args(TokenCount))
    if total is None and count == "once" and mode == "token_mean":
        total = node_step_total(groups, credits, mode, count, zero_signal_groups)
    leaves = leaf_weights(groups, credits, mode, fixed_length, zero_signal_groups=zero_signal_groups, total=total)
    return [
        [_per_node(tree, credit.leaves, weight, count) for tree, credit, weight in zip(group.trees, c, w, strict=True)]
        for group, c, w in zip(groups, credits, leaves, strict=True)
    ]


def _per_node(tree: Tree, leaves: Sequence[int], weight: Tensor, count: TokenCount) -> Tensor:
    on_path = torch.zeros(len(tree), len(leaves), dtype=torch.float64)
    for column, leaf in enumerate(leaves):
        on_path[tree.path(leaf), column] = 1.0
    below = on_path.sum(1, keepdim=True).clamp(min=1.0)
    return on_path * weight / (below if count == "once" else 1.0)
