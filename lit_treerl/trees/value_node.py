"""A node of the value tree: one action prefix of one task, what came to it and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rules:
    """How samples count.

    Attributes:
        discount: of the return, per step.
        half_life: policy versions after which a sample counts half; None for no decay.
    """

    discount: float = 1.0
    half_life: float | None = None

    def fade(self, age: int) -> float:
        """Weight of a sample that is ``age`` policy versions old: 2^(-age / half_life)."""
        return 1.0 if self.half_life is None or age == 0 else 0.5 ** (age / self.half_life)


@dataclass(slots=True, eq=False)
class PrefixNode:
    """Sums over the samples of one action prefix. Each sum is as of a version of its own, so that decay costs nothing
    until the sum is touched; what is never touched keeps its exact numbers.

    Attributes:
        touched: version of the newest episode that came here; the arrivals' sums are as of it.
        weight: decayed number of times the action that leads here was sampled; trees, at a root.
        reward: sum of weight * reward of that step.
        reward_sq: sum of weight * reward^2.
        onward: the part of ``weight`` whose episode went on below.
        onward_reward: sum of weight * reward over that part.
        version: version of the newest episode that went on; ``samples`` is as of it.
        samples: decayed number n of actions sampled here.
        mean: V, mean return-to-go of the state, over the episodes that went on.
        square: mean square of the return-to-go.
        folded_version: what the folded sums are as of.
        folded: n of children that were dropped, of which only sums are left.
        folded_first: sum of weight * return-to-go over these.
        folded_second: sum of weight * return-to-go^2 over these.
        children: by action key.
    """

    touched: int = 0
    weight: float = 0.0
    reward: float = 0.0
    reward_sq: float = 0.0
    onward: float = 0.0
    onward_reward: float = 0.0
    version: int = 0
    samples: float = 0.0
    mean: float = 0.0
    square: float = 0.0
    folded_version: int = 0
    folded: float = 0.0
    folded_first: float = 0.0
    folded_second: float = 0.0
    children: dict[str, PrefixNode] = field(default_factory=dict)

    def arrive(self, reward: float, onward: bool, version: int, rules: Rules) -> None:
        """Add one sample of the action that leads here."""
        self._age_arrivals(version, rules)
        weight = rules.fade(self.touched - version)  # 1, unless the sample is older than the newest
        self.weight += weight
        self.reward += weight * reward
        self.reward_sq += weight * reward * reward
        if onward:
            self.onward += weight
            self.onward_reward += weight * reward

    def to_come(self, rules: Rules) -> tuple[float, float]:
        """Sums over the arrivals of weight * G and weight * G^2, G = step reward + discount * return-to-go here.

        The step's reward and what follows count as independent given this prefix.
        """
        gamma = rules.discount
        first = self.reward + gamma * self.onward * self.mean
        second = self.reward_sq + 2.0 * gamma * self.onward_reward * self.mean
        return first, second + gamma * gamma * self.onward * self.square

    def back_up(self, rules: Rules) -> None:
        """Recompute ``samples``, ``mean`` and ``square`` from the children and what was folded."""
        children = self.children.values()
        newest = [child.touched for child in children] + [self.folded_version] * (self.folded > 0)
        if not newest:
            return  # every episode ended here
        version = max(newest)
        share = rules.fade(version - self.folded_version) if self.folded > 0 else 0.0
        samples, first, second = share * self.folded, share * self.folded_first, share * self.folded_second
        for child in children:
            share = rules.fade(version - child.touched)
            child_first, child_second = child.to_come(rules)
            samples += share * child.weight
            first += share * child_first
            second += share * child_second
        self.version, self.samples = version, samples
        if samples > 0:
            self.mean, self.square = first / samples, second / samples

    def fold(self, key: str, rules: Rules) -> None:
        """Drop the child ``key`` and keep its sums: no value changes, now or later."""
        child = self.children.pop(key)
        self._add_folded(child.touched, child.weight, *child.to_come(rules), rules=rules)

    def absorb(self, other: PrefixNode, rules: Rules) -> None:
        """Add the samples of ``other``, of the same prefix, but for its children's; to be backed up afterwards."""
        self._age_arrivals(other.touched, rules)
        share = rules.fade(self.touched - other.touched)
        self.weight += share * other.weight
        self.reward += share * other.reward
        self.reward_sq += share * other.reward_sq
        self.onward += share * other.onward
        self.onward_reward += share * other.onward_reward
        if other.folded > 0:
            sums = (other.folded, other.folded_first, other.folded_second)
            self._add_folded(other.folded_version, *sums, rules=rules)

    def _age_arrivals(self, version: int, rules: Rules) -> None:
        if version <= self.touched:
            return
        share = rules.fade(version - self.touched)
        self.touched = version
        self.weight *= share
        self.reward *= share
        self.reward_sq *= share
        self.onward *= share
        self.onward_reward *= share

    def _add_folded(self, version: int, weight: float, first: float, second: float, *, rules: Rules) -> None:
        newest = max(version, self.folded_version) if self.folded > 0 else version
        old = rules.fade(newest - self.folded_version) if self.folded > 0 else 0.0
        new = rules.fade(newest - version)
        self.folded_version = newest
        self.folded = old * self.folded + new * weight
        self.folded_first = old * self.folded_first + new * first
        self.folded_second = old * self.folded_second + new * second


def walk(roots: dict[str, PrefixNode]) -> Iterator[tuple[int, str, PrefixNode]]:
    """(index of the parent or -1, key, node) of every node, parents first, siblings in order."""
    stack = [(-1, key, node) for key, node in reversed(roots.items())]
    index = 0
    while stack:
        parent, key, node = stack.pop()
        yield parent, key, node
        stack += [(index, child_key, child) for child_key, child in reversed(node.children.items())]
        index += 1


def along(root: PrefixNode | None, keys: Iterable[str]) -> list[PrefixNode | None]:
    """The nodes that ``keys`` lead through from ``root``, which comes first; None from where nothing is known."""
    nodes = [root]
    for key in keys:
        node = nodes[-1]
        nodes.append(None if node is None else node.children.get(key))
    return nodes
