"""What a value tree says as of one policy version: values shrunken along the path, the prior, one episode left out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

from lit_treerl.trees.tree import ROOT, Status, Tree
from lit_treerl.trees.value_growth import counted_leaves
from lit_treerl.trees.value_keys import action_key
from lit_treerl.trees.value_node import PrefixNode, Rules, along, walk
from lit_treerl.trees.value_without import Step, path_without

_ENDED = (Status.TERMINAL, Status.TRUNCATED)


class Reading:
    """Answers from the nodes as they are; stale once they change.

    Args:
        roots: nodes by task key.
        rules: how samples count.
        shrinkage: k, samples that the belief about the parent's state is worth.
        version: now.
    """

    def __init__(self, roots: dict[str, PrefixNode], rules: Rules, shrinkage: float, version: int) -> None:
        self.roots, self.rules, self.shrinkage, self.version = roots, rules, shrinkage, version

    def samples(self, node: PrefixNode) -> float:
        """n of ``node``, decayed to now."""
        return node.samples * self.rules.fade(self.version - node.version)

    def visits_mean(self) -> float:
        """Mean of n over the prefixes at which an action was sampled; 0 when there are none."""
        visits = [self.samples(node) for _, _, node in walk(self.roots) if node.samples > 0]
        return sum(visits) / len(visits) if visits else 0.0

    @cached_property
    def prior(self) -> float:
        """Mean of V over the roots, each weighted by min(n, 1); nan without roots."""
        return _ratio(*self._root_sums)

    def beliefs(self, tree: Tree, root: PrefixNode | None, prior: float) -> tuple[list[float], list[float]]:
        """(y, trust) of the states of ``tree``'s nodes, the root shrunken towards ``prior``."""
        at: list[PrefixNode | None] = []
        believed: list[float] = []
        values, trusts = [], []
        for node, (parent, status) in enumerate(zip(tree.parent, tree.status, strict=True)):
            if node == ROOT:
                here, above = root, prior
            else:
                over, above = at[parent], believed[parent]
                here = None if over is None else over.children.get(action_key(tree.action_key[node]))
            value, trust = (above, 0.0) if here is None else self._shrink(self.samples(here), here.mean, above)
            at.append(here)
            believed.append(value)
            values.append(_at_end(status, value))
            trusts.append(trust if status is Status.OPEN else 0.0)
        return values, trusts

    def leave_one_out(self, tree: Tree, root: PrefixNode | None, leaf: int, prior: float | None) -> list[float]:
        """y of the nodes on the path to ``leaf`` without its episode; without ``prior`` that leaves it out, too.

        Raises:
            ValueError: where the episode was not added in this version.
        """
        path, without = tree.path(leaf), self.others(tree, root, leaf)
        above = self._prior_without(root, *without[0]) if prior is None else prior
        out = []
        for node, (samples, mean) in zip(path, without, strict=True):
            above, _ = self._shrink(samples, mean, above)
            out.append(_at_end(tree.status[node], above))
        return out

    def others(self, tree: Tree, root: PrefixNode | None, leaf: int) -> list[tuple[float, float]]:
        """(n, V) of the nodes on the path to ``leaf`` without its episode, not shrunken.

        Raises:
            ValueError: where the episode was not added in this version.
        """
        below, path = counted_leaves(tree), tree.path(leaf)
        nodes = along(root, (action_key(tree.action_key[node]) for node in path[1:]))
        steps = [Step(tree.reward[node], node != leaf, below[leaf] == below[node] == 1) for node in path[1:]]
        return path_without(nodes, steps, self.version, self.rules)

    def _shrink(self, samples: float, mean: float, above: float) -> tuple[float, float]:
        trust = samples / (samples + self.shrinkage)
        return (above + trust * (mean - above), trust) if samples > 0 else (above, 0.0)

    @cached_property
    def _root_sums(self) -> tuple[float, float]:
        return self._sum_roots(self.roots.values())

    def _sum_roots(self, roots: Iterable[PrefixNode]) -> tuple[float, float]:
        weights = [(min(self.samples(root), 1.0), root.mean) for root in roots]
        return sum(weight for weight, _ in weights), sum(weight * mean for weight, mean in weights)

    def _prior_without(self, root: PrefixNode | None, samples: float, mean: float) -> float:
        """The prior were n and V of ``root`` ``samples`` and ``mean``."""
        if root is None:
            return self.prior
        own, (weight, total) = min(self.samples(root), 1.0), self._root_sums
        weight, total = weight - own, total - own * root.mean
        if weight < 1e-3 * own:  # little else is known: a difference would be rounding errors
            weight, total = self._sum_roots(other for other in self.roots.values() if other is not root)
        share = min(samples, 1.0)
        return _ratio(weight + share, total + share * mean)


def _at_end(status: Status, value: float) -> float:
    """0 where nothing is to come, nan at a failed node, else ``value``."""
    return 0.0 if status in _ENDED else math.nan if status is Status.FAILED else value


def _ratio(weight: float, total: float) -> float:
    return total / weight if weight > 0 else math.nan
