"""What the leaves below a node add up to: all that the loss needs to know of a shared token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lit_treerl.trees.tree import Tree

if TYPE_CHECKING:
    from lit_treerl.algorithms.base import Credit

PerToken = float | list[float]
"""One number for all action tokens of a node, or one for each."""


class NodeSums(NamedTuple):
    """Sums over the leaves below each node.

    Attributes:
        positive: of weight * max(advantage, 0).
        negative: of weight * min(advantage, 0).
        weight: of the weights.
    """

    positive: Sequence[PerToken]
    negative: Sequence[PerToken]
    weight: list[float]

    @classmethod
    def zero(cls, nodes: int) -> NodeSums:
        """Of ``nodes`` nodes from which nothing is learned."""
        return cls([0.0] * nodes, [0.0] * nodes, [0.0] * nodes)


def node_sums(tree: Tree, credit: Credit, weight: Tensor) -> NodeSums:
    """Sums of every node of ``tree``.

    Args:
        tree: the tree.
        credit: its credit; where tokens differ, the sums are lists over the node's action tokens.
        weight: of each leaf [L], or of each node as seen from each leaf [nodes, L].

    Raises:
        ValueError: naming the task, where credit and weights do not fit the tree.
    """
    _check(tree, credit, weight)
    seen = torch.where(_on_path(tree, credit.leaves), weight, 0.0)  # [nodes, L]
    total = seen.sum(1)
    if credit.token_advantage is None:
        weighted = credit.advantage * seen
        return NodeSums(weighted.clamp(min=0).sum(1).tolist(), weighted.clamp(max=0).sum(1).tolist(), total.tolist())
    weighted = [tokens * node for tokens, node in zip(credit.token_advantage, total, strict=True)]
    return NodeSums(
        [tokens.clamp(min=0).tolist() for tokens in weighted],
        [tokens.clamp(max=0).tolist() for tokens in weighted],
        total.tolist(),
    )


def has_signal(tree: Tree, credit: Credit) -> Tensor:
    """Whether any action on each leaf's path has an advantage other than 0, bool [L]."""
    if credit.token_advantage is None:
        return credit.advantage.any(dim=0)
    loud = torch.tensor([bool(tokens.any()) for tokens in credit.token_advantage])
    return (_on_path(tree, credit.leaves) & loud[:, None]).any(dim=0)


def per_token(value: PerToken, count: int) -> list[float]:
    """``value`` for each of ``count`` action tokens."""
    return value if isinstance(value, list) else [value] * count


def _on_path(tree: Tree, leaves: Sequence[int]) -> Tensor:
    """Whether each node is on each leaf's path, bool [nodes, L]."""
    out = torch.zeros(len(tree), len(leaves), dtype=torch.bool)
    places = [(node, column) for column, leaf in enumerate(leaves) for node in tree.path(leaf)]
    if places:
        out[tuple(zip(*places, strict=True))] = True
    return out


def _check(tree: Tree, credit: Credit, weight: Tensor) -> None:
    where, nodes, leaves = f"task {tree.task_id!r}, tree {tree.index}", len(tree), len(credit.leaves)
    if tuple(weight.shape) not in ((leaves,), (nodes, leaves)):
        raise ValueError(
            f"{where}: weights of shape {tuple(weight.shape)} for {nodes} nodes and {leaves} leaves; "
            f"right are ({leaves},) and ({nodes}, {leaves})"
        )
    if credit.token_advantage is not None:
        found = [len(tokens) for tokens in credit.token_advantage]
        if found != tree.action_len:
            raise ValueError(f"{where}: actions of {tree.action_len} tokens, but token advantages for {found}")
