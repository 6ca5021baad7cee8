"""A path of the value tree as it would be had one episode not been added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_treerl.trees.value_node import PrefixNode, Rules

_NOTHING = 1e-12  # share of a weight below which a difference of float64 is rounding


@dataclass(frozen=True)
class Step:
    """One step of a path, from a prefix to the next.

    Attributes:
        reward: of the step.
        onward: the episode went on after it.
        own: the sample is the episode's own and is taken out.
    """

    reward: float
    onward: bool
    own: bool


def path_without(
    nodes: Sequence[PrefixNode | None], steps: Sequence[Step], version: int, rules: Rules
) -> list[tuple[float, float]]:
    """(n, V) along one path of the tree without the path's own samples; n as of ``version``.

    Args:
        nodes: the prefixes, root first; None where unknown (nothing was sampled there, or it was dropped).
        steps: from each node to the next, one fewer.
        version: that added the episode, the newest.
        rules: how samples count.

    Raises:
        ValueError: where ``version`` brought no episode to the end of an own step.
    """
    out = [_as_is(nodes[-1], version, rules)]
    for node, child, step in zip(nodes[-2::-1], nodes[:0:-1], steps[::-1], strict=True):
        if node is None or child is None:  # of a dropped child no single sample can be told apart
            out.append(_as_is(node, version, rules))
        else:
            out.append(_without(node, child, step, out[-1][1], version, rules))
    return out[::-1]


def _as_is(node: PrefixNode | None, version: int, rules: Rules) -> tuple[float, float]:
    return (0.0, 0.0) if node is None else (node.samples * rules.fade(version - node.version), node.mean)


def _without(
    node: PrefixNode, child: PrefixNode, step: Step, mean: float, version: int, rules: Rules
) -> tuple[float, float]:
    """(n, V) of ``node`` when V of ``child`` becomes ``mean`` and the step's sample goes if it is its own."""
    if step.own and child.touched != version:
        raise ValueError(f"version {version} added no such episode")
    onward = child.onward - (step.own and step.onward)
    before, _ = child.to_come(rules)
    after = child.reward - step.own * step.reward + rules.discount * onward * mean
    share = rules.fade(node.version - child.touched)
    samples = node.samples - share * step.own
    if samples <= _NOTHING * node.samples:
        return 0.0, 0.0
    total = node.samples * node.mean + share * (after - before)
    return samples * rules.fade(version - node.version), total / samples
