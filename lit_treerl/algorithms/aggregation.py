"""How leaf losses are averaged over an optimizer step: weights of leaves, normalised over the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.advantages import is_zero_signal
from lit_treerl.algorithms.base import Credit
from lit_treerl.settings import check_choice
from lit_treerl.trees.tree import RolloutGroup, Tree

Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]
ZeroSignal = Literal["keep", "drop"]


def action_length(tree: Tree, leaf: int) -> int:
    """Action tokens on the whole path to ``leaf``."""
    return sum(tree.action_len[node] for node in tree.path(leaf))


def step_total(
    groups: Sequence[RolloutGroup],
    credits: Sequence[Sequence[Credit]],
    mode: Aggregation = "token_mean",
    zero_signal_groups: ZeroSignal = "keep",
) -> int:
    """What an optimizer step's losses are divided by: its leaf-tokens for ``token_mean``, else its leaves.

    Over several processes, sum their totals and hand the sum to :func:`leaf_weights`.
    """
    kept = kept_leaves(groups, credits, zero_signal_groups)
    return sum(action_length(*leaf) for leaf in kept) if mode == "token_mean" else len(kept)


def leaf_weights(
    groups: Sequence[RolloutGroup],
    credits: Sequence[Sequence[Credit]],
    mode: Aggregation = "token_mean",
    fixed_length: int | None = None,
    *,
    zero_signal_groups: ZeroSignal = "keep",
    total: float | None = None,
) -> list[list[Tensor]]:
    """Weight of each token of each leaf of ONE optimizer step, float64 [L] per tree, nested as ``credits``.

    A leaf's length n counts the action tokens of its full path: a shared prefix counts once for every leaf below it,
    as where every trajectory is trained apart. With K leaves in the step, a token of a leaf weighs

    - ``token_mean``: 1 / (sum of n over the step's leaves), every token alike;
    - ``sequence_mean``: 1 / (K * n), every leaf alike;
    - ``fixed_length``: 1 / (K * fixed_length), no bias by length (Dr. GRPO).

    Args:
        groups: the step's groups.
        credits: their credit.
        mode: see above.
        fixed_length: divisor in tokens for ``fixed_length``, for example the longest response allowed.
        zero_signal_groups: ``drop`` gives groups whose advantages are all 0 no weight and leaves them out of the
            divisor too (DAPO), ``keep`` counts them.
        total: the divisor over all processes, from :func:`step_total`; this process's own when None.

    Raises:
        ValueError: for an unknown mode, or a missing or needless ``fixed_length``.
    """
    check_choice("mode", mode, get_args(Aggregation))
    check_choice("zero_signal_groups", zero_signal_groups, get_args(ZeroSignal))
    if (mode == "fixed_length") != (fixed_length is not None) or (fixed_length is not None and fixed_length < 1):
        raise ValueError(
            f"aggregation {mode!r} with fixed_length = {fixed_length}: 'fixed_length' needs a number of tokens of at "
            f"least 1, the other modes take none"
        )
    if total is None:
        total = step_total(groups, credits, mode, zero_signal_groups)

    def weight(tree: Tree, leaf: int) -> float:
        """Of each of the leaf's action tokens."""
        if mode == "sequence_mean":
            return 1.0 / (total * max(action_length(tree, leaf), 1))
        return 1.0 / (total * (fixed_length or 1))

    out = []
    for group, group_credits in zip(groups, credits, strict=True):
        dropped = zero_signal_groups == "drop" and is_zero_signal(group_credits)
        pairs = zip(group.trees, group_credits, strict=True)
        out.append([_tensor([0.0 if dropped else weight(tree, leaf) for leaf in c.leaves]) for tree, c in pairs])
    return out


def kept_leaves(
    groups: Sequence[RolloutGroup], credits: Sequence[Sequence[Credit]], zero_signal_groups: ZeroSignal
) -> list[tuple[Tree, int]]:
    """(tree, leaf) of every leaf that the step's divisor counts."""
    return [
        (tree, leaf)
        for group, group_credits in zip(groups, credits, strict=True)
        if not (zero_signal_groups == "drop" and is_zero_signal(group_credits))
        for tree, credit in zip(group.trees, group_credits, strict=True)
        for leaf in credit.leaves
    ]


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
