"""Group-relative advantages as pure functions on tensors, and their spreading over a tree's nodes.

Legend: G leaves of one group, L training leaves of one tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lit_treerl.algorithms.base import Credit
from lit_treerl.trees.tree import ROOT, RolloutGroup, Tree

Normalisation = Literal["group_std", "none", "batch"]
Singletons = Literal["zero", "published"]

STD_EPSILON = 1e-6  # added to a group's std, as published
RELATIVE_SPREAD = 1e-5  # a std below this share of the largest return is float residue


def is_silent(returns: Tensor) -> bool:
    """Whether returns [G] are all equal up to float residue: unbiased std <= max(1e-6, 1e-5 * max |return|).

    Such a group counts as having zero variance; without the floor its residue of 1e-17 or so would be divided by an
    equally small std and train at full strength.
    """
    if len(returns) < 2:
        return True
    return float(returns.std()) <= max(STD_EPSILON, RELATIVE_SPREAD * float(returns.abs().max()))


def group_normalise(returns: Tensor, *, std: bool = False, singletons: Singletons = "zero") -> Tensor:
    """Advantage [G] of each return [G] over its group's mean, divided by the unbiased std + 1e-6 with ``std``.

    A group without variance gives exact zeros. A group of one gives 0, or with ``published`` the raw return: the
    public Tree-GRPO code takes mean 0 and std 1 there.
    """
    if len(returns) == 1 and singletons == "published":
        return returns.clone()
    if is_silent(returns):
        return torch.zeros_like(returns)
    centred = returns - returns.mean()
    return centred / (returns.std() + STD_EPSILON) if std else centred


def leave_one_out(returns: Tensor, *, std: bool = False, singletons: Singletons = "zero") -> Tensor:
    """RLOO: each return [G] over the mean of the others, which is G/(G-1) times the distance to the group's mean."""
    count = len(returns)
    scale = count / (count - 1) if count > 1 else 1.0
    return group_normalise(returns, std=std, singletons=singletons) * scale


def batch_scale(advantages: Sequence[Tensor], std_floor: float) -> float:
    """Divisor for a whole iteration: the root mean square over all leaves' advantages, at least ``std_floor``."""
    flat = torch.cat(list(advantages)) if advantages else torch.zeros(0)
    rms = float(flat.pow(2).mean().sqrt()) if len(flat) else 0.0
    return max(rms, std_floor)


def tree_returns(group: RolloutGroup) -> list[Tensor]:
    """Returns [L] of the training leaves of each tree, float64.

    Raises:
        ValueError: naming the task, where a return is not finite.
    """
    for tree, leaf in group.leaves():
        if not math.isfinite(value := tree.leaf_return(leaf)):
            raise ValueError(
                f"task {group.task.id!r}, tree {tree.index}: the episode that ends in node {leaf} has return {value}; "
                f"rewards must be finite numbers"
            )
    return [
        torch.tensor([tree.leaf_return(leaf) for leaf in tree.training_leaves()], dtype=torch.float64)
        for tree in group.trees
    ]


def spread(tree: Tree, advantages: Tensor) -> Credit:
    """Credit that gives every action on a leaf's path the leaf's own advantage [L]."""
    leaves = tree.training_leaves()
    credit = torch.zeros(len(tree), len(leaves), dtype=torch.float64)
    for column, leaf in enumerate(leaves):
        credit[[node for node in tree.path(leaf) if node != ROOT], column] = advantages[column]
    return Credit(leaves, credit)


def counted_nodes(tree: Tree) -> list[bool]:
    """Whether each node lies on a training leaf's path; the others (failed or pruned) teach nothing."""
    on_path = {node for leaf in tree.training_leaves() for node in tree.path(leaf)}
    return [node in on_path for node in range(len(tree))]


def spread_nodes(tree: Tree, advantages: Tensor, token_advantages: list[Tensor] | None = None) -> Credit:
    """Credit that gives every leaf below a node the node's own advantage [nodes], and its tokens their own."""
    leaves = tree.training_leaves()
    credit = torch.zeros(len(tree), len(leaves), dtype=torch.float64)
    for column, leaf in enumerate(leaves):
        path = [node for node in tree.path(leaf) if node != ROOT]
        credit[path, column] = advantages[path]
    return Credit(leaves, credit, token_advantages)


def is_zero_signal(credits: Sequence[Credit]) -> bool:
    """Whether one group has leaves, and all of its advantages are exactly 0."""
    return any(credit.leaves for credit in credits) and not any(
        bool(some.any()) for credit in credits for some in (credit.advantage, *(credit.token_advantage or ()))
    )


def zero_signal(credits: Sequence[Sequence[Credit]]) -> int:
    """Number of groups whose advantages are all 0: nothing is learned from them but by KL and entropy."""
    return sum(is_zero_signal(group) for group in credits)
