"""Trees of a task as a forest of token runs in which equal contexts are held once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from lit_treerl.modeling.node_sums import NodeSums, PerToken, has_signal, node_sums
from lit_treerl.trees.tree import ROOT, RolloutGroup, Tree

if TYPE_CHECKING:
    from lit_treerl.algorithms.base import Credit


CONTEXT = 8192  # about 6 times the hidden size of a model of 1.5B, where attention costs as much as all the rest


class Place(NamedTuple):
    """What a critic's value is about: the state of a node, or the situation before one of its action's tokens.

    Attributes:
        group: index of the task among those packed together.
        tree: index of the tree in its group.
        node: the node.
        token: -1 for the node's state, else t for what lies between the action's tokens t and t + 1.
    """

    group: int
    tree: int
    node: int
    token: int = -1


@dataclass(eq=False)
class Run:
    """Tokens without a fork between them: a prompt, or an action and what was observed after it.

    Attributes:
        ids: its tokens, the action's first.
        action_len: how many of them the policy sampled.
        logprobs: the sampler's log-prob of each action token.
        positive: summed weight * max(advantage, 0) of the leaves below, for each action token, or one number for all.
        negative: summed weight * min(advantage, 0), likewise.
        weight: summed weight, of each action token.
        context_weight: weight of each other token (supervised training only).
        children: runs that continue it.
        reads: values wanted at its tokens, as (index of the token in the run, -1 for the last; what it is for).
    """

    ids: list[int]
    action_len: int = 0
    logprobs: list[float] = field(default_factory=list)
    positive: PerToken = 0.0
    negative: PerToken = 0.0
    weight: float = 0.0
    context_weight: float = 0.0
    children: list[Run] = field(default_factory=list)
    reads: list[tuple[int, Place]] = field(default_factory=list)

    def size(self) -> int:
        """Tokens of the run and of everything below it."""
        return sum(len(run.ids) for run, _ in self._walk())

    def cost(self) -> float:
        """What it takes to compute, in tokens: attention to ``CONTEXT`` tokens doubles what a token costs."""
        return sum(len(run.ids) * (1 + (before + len(run.ids) / 2) / CONTEXT) for run, before in self._walk())

    def _walk(self) -> Iterator[tuple[Run, int]]:
        """Itself and every run below, with the tokens before it."""
        stack: list[tuple[Run, int]] = [(self, 0)]
        while stack:
            run, before = stack.pop()
            yield run, before
            stack.extend((child, before + len(run.ids)) for child in run.children)


def plant(
    group: RolloutGroup, credits: Sequence[Credit], weights: Sequence[Tensor], *, skip_zero: bool = False
) -> list[Run]:
    """Roots of a task's forest; each root is a context that starts at position 0.

    Trees with equal prompts grow from one root, and in the ``window`` style every fresh prompt is a root of its own,
    shared where the text is the same. Nodes on no weighted leaf's path are left out, and so is what was observed after
    a leaf's last action: it is context to nothing.

    Args:
        group: the task's trees.
        credits: one per tree.
        weights: one per tree, of each leaf [L], or of each node as seen from each leaf [nodes, L].
        skip_zero: also leave out leaves whose advantages are all 0.

    Raises:
        ValueError: where a context holds no token, or credit and weights do not fit the tree.
    """
    roots: dict[tuple[int, ...], Run] = {}
    for tree, credit, weight in zip(group.trees, credits, weights, strict=True):
        sums = node_sums(tree, credit, weight)
        kept = (weight if weight.dim() == 2 else weight[None]).any(dim=0)
        if skip_zero:
            kept = kept & has_signal(tree, credit)
        leaves = [leaf for leaf, keep in zip(credit.leaves, kept.tolist(), strict=True) if keep]
        _plant_tree(roots, tree, sums, leaves)
    return list(roots.values())


def plant_states(group: RolloutGroup, number: int, *, token_level: bool = False) -> list[Run]:
    """Roots of a task's forest with every state in which a training leaf's path goes on marked in ``Run.reads``.

    Args:
        group: the task's trees.
        number: the group's index, for :class:`Place`.
        token_level: also mark what lies between the tokens of an action; else actions that are context to no state,
            which are the last ones of leaves and in the ``window`` style all, are left out.
    """
    roots: dict[tuple[int, ...], Run] = {}
    for index, tree in enumerate(group.trees):
        leaves = tree.training_leaves()
        own, after = _plant_tree(roots, tree, NodeSums.zero(len(tree)), leaves)
        inner = {tree.parent[node] for node in after if node != ROOT}
        for node in inner:
            after[node].reads.append((-1, Place(number, index, node)))
        for node, run in own.items():
            if token_level:
                run.reads += [(t, Place(number, index, node, t)) for t in range(run.action_len - 1)]
            elif node not in inner or tree.context == "window":
                after[tree.parent[node]].children.remove(run)
    return list(roots.values())


def split(root: Run, max_tokens: int) -> list[Run]:
    """``root`` as several forests of at most ``max_tokens`` tokens where its runs allow.

    A forest that begins below the root repeats the path to where it goes on, as context alone: nothing is learned or
    read there again. What fits a forest of its own is not parted.
    """
    if root.size() <= max_tokens:
        return [root]
    parts: list[Run] = []
    placed: dict[int, Run] = {}  # what the forest under way holds of each run
    size = 0
    stack: list[tuple[Run, tuple[Run, ...]]] = [(root, ())]
    while stack:
        run, path = stack.pop()
        above, whole = sum(len(r.ids) for r in path), run.size()
        full = size + whole > max_tokens and (above + whole <= max_tokens or size + len(run.ids) > max_tokens)
        if full and size > above:
            placed, size = {}, above
            for number, ancestor in enumerate(path):
                placed[id(ancestor)] = again = Run(ancestor.ids)
                (placed[id(path[number - 1])].children if number else parts).append(again)
        placed[id(run)] = mine = replace(run, children=[])
        (placed[id(path[-1])].children if path else parts).append(mine)
        size += len(run.ids)
        stack.extend((child, (*path, run)) for child in reversed(run.children))
    return parts


def _plant_tree(
    roots: dict[tuple[int, ...], Run], tree: Tree, sums: NodeSums, leaves: Sequence[int]
) -> tuple[dict[int, Run], dict[int, Run]]:
    """Plant the paths to ``leaves``; returns the run of each node's action, and that which its children continue."""

    def context(node: int, ids: list[int]) -> Run:
        """The run of a context's tokens, one for all places that begin with the same."""
        if not ids:
            raise ValueError(f"task {tree.task_id!r}, tree {tree.index}: the context after node {node} has no tokens")
        return roots.setdefault(tuple(ids), Run(list(ids)))

    needed = sorted({node for leaf in leaves for node in tree.path(leaf)})
    inner = {tree.parent[node] for node in needed}
    own: dict[int, Run] = {}
    after: dict[int, Run] = {}
    for node in needed:
        ids, action_len = tree.ids[node], tree.action_len[node]
        if node == ROOT:
            after[node] = context(node, ids)
            continue
        whole = node in inner and tree.context == "growing"
        run = Run(ids if whole else ids[:action_len], action_len, tree.logprobs[node])
        run.positive, run.negative, run.weight = sums.positive[node], sums.negative[node], sums.weight[node]
        after[tree.parent[node]].children.append(run)
        own[node] = run
        after[node] = context(node, ids[action_len:]) if node in inner and not whole else run
    return own, after
