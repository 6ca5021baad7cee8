"""How a value tree grows: rollout trees, or another value tree, are added to its nodes and backed up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import ROOT, Status, Tree
from lit_treerl.trees.value_keys import action_key
from lit_treerl.trees.value_node import PrefixNode, Rules


def counted_leaves(tree: Tree) -> list[int]:
    """For each node of ``tree`` the number of leaves at or below it that did not fail; all 0 where only a root is."""
    below, inner = [0] * len(tree), set(tree.parent)
    for node in range(len(tree) - 1, ROOT, -1):
        if node not in inner:
            below[node] = int(tree.status[node] is not Status.FAILED)
        below[tree.parent[node]] += below[node]
    return below


def check_rewards(task: Task, tree: Tree, below: Sequence[int]) -> None:
    """Raise ValueError naming the task where the reward of a counted node is not finite."""
    for node in range(ROOT + 1, len(tree)):
        if below[node] and not math.isfinite(tree.reward[node]):
            raise ValueError(
                f"task {task.id!r}: node {node} of tree {tree.index} has reward {tree.reward[node]}, must be finite"
            )


class Growth:
    """One round of growing: remembers which nodes changed, so that only they are backed up.

    Args:
        roots: nodes by task key; grown in place.
        rules: how samples count.

    Attributes:
        created: number of new nodes.
    """

    def __init__(self, roots: dict[str, PrefixNode], rules: Rules) -> None:
        self.roots, self.rules, self.created = roots, rules, 0
        self._levels: list[dict[int, PrefixNode]] = []  # by depth: the nodes at which something was sampled

    def add(self, task_key: str, tree: Tree, below: Sequence[int], version: int) -> None:
        """Add the counted samples of one rollout tree: each edge is one sample of its action at its parent's prefix."""
        if not below or not below[ROOT]:
            return
        inner = set(tree.parent)
        root = self._child(self.roots, task_key, version)
        root.arrive(0.0, True, version, self.rules)
        at: list[tuple[PrefixNode, int]] = [(root, 0)] * len(tree)
        for node in range(ROOT + 1, len(tree)):
            if below[node]:
                parent, depth = at[tree.parent[node]]
                self._mark(parent, depth)
                child = self._child(parent.children, action_key(tree.action_key[node]), version)
                child.arrive(tree.reward[node], node in inner, version, self.rules)
                at[node] = (child, depth + 1)

    def absorb(self, roots: dict[str, PrefixNode]) -> None:
        """Add the samples of another tree's nodes, which stay as they are."""
        pairs, depth = [(self._child(self.roots, key, root.touched), root) for key, root in roots.items()], 0
        while pairs:
            below = []
            for mine, theirs in pairs:
                mine.absorb(theirs, self.rules)
                self._mark(mine, depth)
                for key, child in theirs.children.items():
                    below.append((self._child(mine.children, key, child.touched), child))
            pairs, depth = below, depth + 1

    def back_up(self) -> None:
        """Recompute the values of the nodes that changed, the deepest first."""
        for level in reversed(self._levels):
            for node in level.values():
                node.back_up(self.rules)

    def _mark(self, node: PrefixNode, depth: int) -> None:
        if depth == len(self._levels):
            self._levels.append({})
        self._levels[depth][id(node)] = node

    def _child(self, siblings: dict[str, PrefixNode], key: str, version: int) -> PrefixNode:
        child = siblings.get(key)
        if child is None:
            child = siblings[key] = PrefixNode(touched=version)
            self.created += 1
        return child
