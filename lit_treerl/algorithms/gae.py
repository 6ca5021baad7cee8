"""Generalised advantage estimation along the edges of one tree, as pure functions (arXiv 1506.02438 on a chain).

Node u holds the action that led to state u, so an edge parent -> u and its node share the index. A state with several
children has seen several actions, each ONE sample of the policy there, drawn on the way or by a forced fork alike:
children weigh the same, however many leaves each has below it. On a chain everything here is the ordinary recursion.

That weighting is consistent over many trees, and unbiased where the number of forks at a state does not depend on
what was sampled there. The searches here draw forks after the first chain has ended, so that a longer chain gets fewer
at each state: where length and return go together, one tree's mean leans towards the returns of longer chains.

Ends are counted nodes without counted children; their value is 0, whatever the critic says. A truncated episode ends
like any other: its reward is real, and nothing is bootstrapped beyond it. Nodes that are not ``counted`` (every leaf
below failed or was pruned) take no part. The root's own reward belongs to no action.

Legend: nodes in an arena with parents first, root 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lit_treerl.trees.tree import ROOT


def back_up(
    parent: Sequence[int], counted: Sequence[bool], edge: Callable[[int, float | None], float]
) -> list[float | None]:
    """Mean over each state's counted children c of ``edge(c, mean at c)``; None at ends and where not counted.

    Raises:
        ValueError: where a node is counted and its parent is not.
    """
    total, number = [0.0] * len(parent), [0] * len(parent)
    for node in range(len(parent) - 1, ROOT, -1):
        if not counted[node]:
            continue
        if not counted[parent[node]]:
            raise ValueError(f"node {node} is counted, but its parent {parent[node]} is not")
        total[parent[node]] += edge(node, total[node] / number[node] if number[node] else None)
        number[parent[node]] += 1
    return [t / n if n else None for t, n in zip(total, number, strict=True)]


def monte_carlo_values(parent: Sequence[int], reward: Sequence[float], counted: Sequence[bool]) -> Tensor:
    """Undiscounted mean return-to-go [nodes] of each state: mean over counted children c of r_c + value of c.

    Equals :func:`lambda_returns` with discount and lambda 1, whatever the critic says. nan at ends and where not
    counted.
    """
    return _tensor(back_up(parent, counted, lambda node, after: reward[node] + (after or 0.0)))


def tree_gae(
    parent: Sequence[int],
    reward: Sequence[float],
    value: Tensor,
    *,
    discount: float,
    gae_lambda: float,
    counted: Sequence[bool],
) -> Tensor:
    """Turn-level advantage [nodes] of each node's action, 0 at the root and where not counted.

    With g the discount and l the lambda, A_u = r_u + g V(u) - V(parent u) + g l * mean over counted children of A_c.

    Args:
        parent: of each node.
        reward: of each node's action.
        value: [nodes] the critic's value of each state.
        discount: g, per turn.
        gae_lambda: l.
        counted: whether a training leaf is at or below each node.
    """
    values, out = value.tolist(), [0.0] * len(parent)

    def advantage(node: int, after: float | None) -> float:
        """A of the action of ``node``, from the mean A of what follows it."""
        beyond = 0.0 if after is None else discount * (values[node] + gae_lambda * after)
        out[node] = reward[node] + beyond - values[parent[node]]
        return out[node]

    back_up(parent, counted, advantage)
    return torch.tensor(out, dtype=torch.float64)


def lambda_returns(parent: Sequence[int], value: Tensor, advantage: Tensor, counted: Sequence[bool]) -> Tensor:
    """What the critic should say of each state [nodes]: V(u) + mean over counted children of A_c; nan as above.

    Args:
        parent: of each node.
        value: [nodes] the values that gave ``advantage``.
        advantage: [nodes] of each node's action, of its FIRST token where tokens differ.
        counted: as in :func:`tree_gae`.
    """
    first = advantage.tolist()
    return value.double() + _tensor(back_up(parent, counted, lambda node, _: first[node]))


class TokenGAE(NamedTuple):
    """Token-level estimates; see :func:`token_gae`.

    Attributes:
        advantage: per node [action_len]; 0 where not counted.
        target: [nodes] lambda returns of the states; nan at ends and where not counted.
        token_target: per node [max(action_len - 1, 0)] lambda returns before each token but the first; nan where not
            counted.
    """

    advantage: list[Tensor]
    target: Tensor
    token_target: list[Tensor]


def token_gae(
    parent: Sequence[int],
    reward: Sequence[float],
    value: Tensor,
    token_value: Sequence[Tensor],
    action_len: Sequence[int],
    *,
    discount: float,
    gae_lambda: float,
    counted: Sequence[bool],
) -> TokenGAE:
    """Token-level estimates: every action token is a step; observation tokens are none, and are skipped.

    Before a node's tokens the values are V(parent), token_value[0], token_value[1], ... The last token earns the
    node's reward, is followed by the value of the node's state, and continues with the mean over the counted
    children of their FIRST token's advantage. Discount and lambda apply per token, as is usual. A node without
    tokens passes on what it gets as one step.

    Args:
        parent: of each node.
        reward: of each node's action.
        value: [nodes] the critic's value of each state.
        token_value: per node [max(action_len - 1, 0)], its value before each token but the first.
        action_len: tokens of each node's action.
        discount: per token.
        gae_lambda: per token.
        counted: whether a training leaf is at or below each node.

    Raises:
        ValueError: where a node's token values are not one fewer than its tokens.
    """
    values = value.tolist()
    advantages, targets = [[0.0] * n for n in action_len], [[float("nan")] * max(n - 1, 0) for n in action_len]

    def first_advantage(node: int, after: float | None) -> float:
        """A of the first token of the action of ``node``, from the mean A of the tokens that follow its last."""
        inside = token_value[node].tolist()
        if len(inside) != max(action_len[node] - 1, 0):
            raise ValueError(f"node {node}: {action_len[node]} action tokens, but {len(inside)} token values")
        before = [values[parent[node]], *inside]
        beyond = 0.0 if after is None else discount * (values[node] + gae_lambda * after)
        found = [reward[node] + beyond - before[-1]]
        for here, there in zip(before[-2::-1], before[:0:-1], strict=True):
            found.append(discount * (there + gae_lambda * found[-1]) - here)
        found.reverse()
        advantages[node] = found[: action_len[node]]
        targets[node] = [v + a for v, a in zip(before[1:], found[1:], strict=True)]
        return found[0]

    means = back_up(parent, counted, first_advantage)
    return TokenGAE(
        [torch.tensor(some, dtype=torch.float64) for some in advantages],
        value.double() + _tensor(means),
        [torch.tensor(some, dtype=torch.float64) for some in targets],
    )


def _tensor(values: Sequence[float | None]) -> Tensor:
    """Float64, nan for None."""
    return torch.tensor([float("nan") if value is None else value for value in values], dtype=torch.float64)
