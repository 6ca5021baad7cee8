"""Credit on edges: what one step changed in the mean return of its tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_treerl.algorithms.gae import monte_carlo_values
from lit_treerl.trees.tree import ROOT


def edge_values(
    parent: Sequence[int], reward: Sequence[float], counted: Sequence[bool], *, prior: float, weight: float
) -> Tensor:
    """Shrunken mean return-to-go y [nodes] of each state, 0 at ends and where not counted.

    With n the number of counted children of u, V their mean of r_c + V(c) (each child is one sample of the policy,
    forked or not) and k the weight,

    - y(u) = (n V(u) + k (y(parent) - r_u)) / (n + k): without samples, the step to u made no difference;
    - y(root) = (n V(root) + k prior) / (n + k).

    Args:
        parent: of each node.
        reward: of each node's action.
        counted: whether a training leaf is at or below each node.
        prior: expected return of the task.
        weight: k, in samples.
    """
    mean, out = monte_carlo_values(parent, reward, counted).tolist(), [0.0] * len(parent)
    children = [0] * len(parent)
    for node in range(ROOT + 1, len(parent)):
        children[parent[node]] += counted[node]
    for node, n in enumerate(children):
        if n:
            expected = prior if node == ROOT else out[parent[node]] - reward[node]
            out[node] = (n * mean[node] + weight * expected) / (n + weight)
    return torch.tensor(out, dtype=torch.float64)


def edge_advantages(
    parent: Sequence[int], reward: Sequence[float], counted: Sequence[bool], *, prior: float, weight: float
) -> Tensor:
    """Advantage [nodes] of each node's action, A_u = r_u + y(u) - y(parent); 0 at the root and where not counted.

    Along a path they add up to the leaf's return minus y(root), whatever the weight. Arguments as in
    :func:`edge_values`.
    """
    values = edge_values(parent, reward, counted, prior=prior, weight=weight).tolist()
    return torch.tensor(
        [
            reward[node] + values[node] - values[parent[node]] if node != ROOT and counted[node] else 0.0
            for node in range(len(parent))
        ],
        dtype=torch.float64,
    )
