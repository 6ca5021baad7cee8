"""On a small MDP with known values, the value tree finds the truth with forced forks too; the leaf mean does not."""

from __future__ import annotations

import math
import random

import pytest

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from lit_treerl.trees.value_tree import ValueTree

DEPTH = 3
LEFT = {"": 0.3, "l": 0.5, "r": 0.7, "ll": 0.5, "lr": 0.2, "rl": 0.6, "rr": 0.5}  # the policy: P(l) at each prefix
GO_ON = {"l": 0.75, "r": 1.0, "ll": 1.0, "lr": 0.6, "rl": 1.0, "rr": 0.9}  # P(the episode does not end on arrival)
WIN = {"lll": 0.9, "llr": 0.8, "lrl": 0.6, "lrr": 0.9, "rll": 0.1, "rlr": 0.0, "rrl": 0.3, "rrr": 0.2}  # P(reward 1)
STEP = {"l": 0.1, "rr": -0.2, "lr": 0.05}  # reward of a step before the last


def truth(prefix: str = "") -> float:
    """V of the states at ``prefix`` in which the policy acts, by enumeration."""
    value = 0.0
    for action, chance in (("l", LEFT[prefix]), ("r", 1 - LEFT[prefix])):
        after = prefix + action
        value += chance * (WIN[after] if after in WIN else STEP.get(after, 0.0) + GO_ON[after] * truth(after))
    return value


def roll(tree: Tree, node: int, prefix: str, rng: random.Random, *, forced: bool = False) -> list[tuple[int, str]]:
    """Sample an episode on from ``node``; returns the (node, prefix) at which the policy acted."""
    acted = []
    while True:
        acted.append((node, prefix))
        prefix += "l" if rng.random() < LEFT[prefix] else "r"
        last = len(prefix) == DEPTH
        reward = float(rng.random() < WIN[prefix]) if last else STEP.get(prefix, 0.0)
        node = tree.add_action(node, [0], [-1.0], 0, natural=not forced)
        ends = last or rng.random() >= GO_ON[prefix]
        tree.observe(node, action_key=prefix[-1], reward=reward, status=Status.TERMINAL if ends else Status.OPEN)
        forced = False
        if ends:
            return acted


def grow(episodes: int, forks: dict[str, int], seed: int) -> RolloutGroup:
    """Trees of one chain each; where it acts at a prefix in ``forks``, that many forced forks follow."""
    rng, trees = random.Random(seed), []
    for index in range(episodes):
        tree = Tree("t", index)
        tree.add_root([0])
        for node, prefix in roll(tree, 0, "", rng):
            for _ in range(forks.get(prefix, 0)):
                roll(tree, node, prefix, rng, forced=True)
        trees.append(tree)
    return RolloutGroup(Task("t", "test", "?"), trees)


def believed(values: ValueTree) -> dict[str, float]:
    """y at every prefix at which the policy can act."""
    tree, at = Tree("t"), {"": 0}
    tree.add_root([0])
    for prefix in sorted(LEFT, key=len)[1:]:
        at[prefix] = tree.add_action(at[prefix[:-1]], [0], [-1.0], 0)
        tree.observe(at[prefix], action_key=prefix[-1])
    [(mean, _)] = values.beliefs(RolloutGroup(Task("t", "test", "?"), [tree]))
    return {prefix: mean[node] for prefix, node in at.items()}


def leaf_mean(group: RolloutGroup) -> float:
    returns = [tree.leaf_return(leaf) for tree, leaf in group.leaves()]
    return sum(returns) / len(returns)


FORKS = {
    "natural sampling": {},
    "forks below the good action": {"l": 4},
    "forks below the bad action": {"r": 2, "rr": 3},
    "forks everywhere": {"": 1, "l": 2, "lr": 5, "rl": 1},
}


@pytest.mark.parametrize("forks", FORKS.values(), ids=FORKS)
def test_targets_converge_to_the_truth(forks):
    """Returns lie in an interval of length 1.4, so their std is below 0.7. A prefix is reached by more than
    n = 4000 * P(prefix) chains and each value's standard error is below 0.7 / sqrt(n): allowed are four of them."""
    reach = {"": 1.0}
    for prefix in sorted(LEFT, key=len)[1:]:
        chance = LEFT[prefix[:-1]] if prefix[-1] == "l" else 1 - LEFT[prefix[:-1]]
        reach[prefix] = reach[prefix[:-1]] * chance * GO_ON[prefix]
    values = ValueTree(half_life=None, shrinkage=1e-9)
    values.add([grow(4000, forks, seed=1)], 0)
    for prefix, found in believed(values).items():
        assert found == pytest.approx(truth(prefix), abs=4 * 0.7 / math.sqrt(4000 * reach[prefix])), prefix


def test_forced_forks_mislead_the_leaf_mean_and_not_the_tree():
    """The leaf mean's error does not go away with more samples; the tree's falls below four standard errors."""
    natural = grow(4000, {}, seed=2)
    assert leaf_mean(natural) == pytest.approx(truth(), abs=0.04)  # alike without forks
    for forks, sign in (({"l": 4}, 1), ({"r": 4}, -1)):
        for episodes in (1000, 8000):
            group, values = grow(episodes, forks, seed=3), ValueTree(half_life=None, shrinkage=1e-9)
            values.add([group], 0)
            assert believed(values)[""] == pytest.approx(truth(), abs=4 * 0.5 / math.sqrt(episodes))
            assert sign * (leaf_mean(group) - truth()) > 0.05


def test_growth_over_versions_with_decay_stays_at_the_truth():
    values = ValueTree(half_life=8.0, shrinkage=1e-9)
    for version in range(40):
        values.add([grow(300, {"l": 2}, seed=100 + version)], version)
    known = values.task_value(Task("t", "test", "?"))
    assert known is not None
    n = 300 * (1 - 2**-5) / (1 - 2 ** (-1 / 8))  # a geometric series
    assert known.count == pytest.approx(n, rel=1e-9)
    assert known.mean == pytest.approx(truth(), abs=4 * 0.5 / math.sqrt(n / 2))  # n^2 / sum w^2 is about 2 n / 1.04
