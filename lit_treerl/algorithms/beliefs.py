"""Beliefs matched with the trees they are about, and checked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_treerl.algorithms.base import Beliefs
from lit_treerl.trees.tree import RolloutGroup, Tree

Believed = list[list[tuple[Tree, Beliefs]]]

SOURCES = {
    "value": "the critic",
    "token_value": "the critic, token by token",
    "mean": "the value tree",
    "trust": "the value tree",
    "count": "the value tree",
    "prior": "the value tree",
    "others": "the value tree",
}


def match_beliefs(
    groups: Sequence[RolloutGroup], beliefs: Sequence[Sequence[Beliefs]] | None, needs: Sequence[str]
) -> Believed:
    """Each tree with its beliefs, nested as ``groups``; empty beliefs where none are given and none are needed.

    Args:
        groups: the iteration's trees.
        beliefs: one per tree, nested likewise.
        needs: fields of :class:`Beliefs` that must be there.

    Raises:
        ValueError: naming the task, where a needed field is missing or beliefs do not fit their trees.
    """
    if beliefs is None:
        beliefs = [[Beliefs()] * len(group.trees) for group in groups]
    if len(beliefs) != len(groups):
        raise ValueError(f"{len(groups)} groups but beliefs of {len(beliefs)}")
    out: Believed = []
    for group, some in zip(groups, beliefs, strict=True):
        if len(some) != len(group.trees):
            raise ValueError(f"task {group.task.id!r}: {len(group.trees)} trees but beliefs of {len(some)}")
        for tree, belief in zip(group.trees, some, strict=True):
            _check(tree, belief, needs)
        out.append(list(zip(group.trees, some, strict=True)))
    return out


def finite(values: Tensor | None, tree: Tree, where: Tensor, name: str) -> Tensor:
    """``values`` [nodes] in float64; they are there, as :func:`match_beliefs` saw to.

    Raises:
        ValueError: naming the task, where one is not finite among the nodes ``where`` [nodes] says True.
    """
    assert values is not None
    if bool((bad := where & ~torch.isfinite(values)).any()):
        node = int(bad.nonzero()[0])
        raise ValueError(
            f"task {tree.task_id!r}, tree {tree.index}: {name} of node {node} is {float(values[node])}, not finite"
        )
    return values.double()


def _check(tree: Tree, belief: Beliefs, needs: Sequence[str]) -> None:
    for name in needs:
        found = getattr(belief, name)
        if found is None:
            raise ValueError(
                f"task {tree.task_id!r}, tree {tree.index}: the estimator needs Beliefs.{name}, "
                f"of {SOURCES[name]}, and there is none"
            )
        if name not in ("prior", "others") and len(found) != len(tree):
            raise ValueError(
                f"task {tree.task_id!r}, tree {tree.index}: {len(tree)} nodes but Beliefs.{name} of {len(found)}"
            )
