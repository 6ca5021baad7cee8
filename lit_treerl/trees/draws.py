"""Draws: at which nodes of a tree the next forks are made."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from lit_treerl.trees.tree import ROOT, Status, Tree


def candidates(tree: Tree, *, include_root: bool = True) -> list[int]:
    """The root and every node that has a child, by index; never one whose episode is over or failed."""
    inner = set(tree.parent) | {ROOT}
    first = ROOT if include_root else ROOT + 1
    return [node for node in range(first, len(tree)) if node in inner and tree.status[node] is Status.OPEN]


def draw_uniform(nodes: list[int], n: int, rng: random.Random, *, replacement: bool = True) -> list[int]:
    """``n`` of ``nodes``, uniformly; without replacement a new shuffle begins when all have been drawn."""
    if replacement:
        return [rng.choice(nodes) for _ in range(n)]
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += rng.sample(nodes, min(len(nodes), n - len(drawn)))
    return drawn


def draw_by_entropy(tree: Tree, nodes: list[int], n: int) -> list[int]:
    """``n`` of ``nodes``, those first whose children's mean action entropy is highest, ties by index, going round."""
    children = tree.children()

    def uncertainty(node: int) -> float:
        entropies = [tree.mean_action_entropy(child) for child in children[node] if tree.logprobs[child]]
        return sum(entropies) / len(entropies) if entropies else 0.0

    return _highest_first(nodes, n, uncertainty)


def draw_by_critic(nodes: list[int], n: int, values: Sequence[float]) -> list[int]:
    """``n`` of ``nodes``, those first of which the critic is least sure: v (1 - v), ties by index, going round.

    Beyond the papers, ours. v (1 - v) is the variance of an outcome that succeeds with probability v.

    Args:
        nodes: to choose from.
        n: how many.
        values: [nodes of the tree] the critic's values, clipped to [0, 1]; nan, where it was not asked, comes last.
    """

    def uncertainty(node: int) -> float:
        """v (1 - v), below all others where v is unknown."""
        if math.isnan(values[node]):
            return -1.0
        value = min(1.0, max(0.0, float(values[node])))
        return value * (1 - value)

    return _highest_first(nodes, n, uncertainty)


def draw_by_gap(nodes: list[int], n: int, values: Sequence[float], means: Sequence[float]) -> list[int]:
    """``n`` of ``nodes``, those first where critic and value tree differ most, ties by index, going round.

    Beyond the papers, ours.

    Args:
        nodes: to choose from.
        n: how many.
        values: [nodes of the tree] the critic's values; nan, where it was not asked, counts as no gap.
        means: [nodes of the tree] the value tree's mean returns; nan, where it has none, counts as no gap.
    """

    def gap(node: int) -> float:
        difference = abs(float(values[node]) - float(means[node]))
        return 0.0 if math.isnan(difference) else difference

    return _highest_first(nodes, n, gap)


def _highest_first(nodes: list[int], n: int, score: Callable[[int], float]) -> list[int]:
    ranked = sorted(nodes, key=lambda node: (-score(node), node))
    return [ranked[i % len(ranked)] for i in range(n)]
