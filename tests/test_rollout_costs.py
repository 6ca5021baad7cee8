"""What a tree is expected to cost."""

from __future__ import annotations

import pytest

from lit_treerl.rollout.costs import MOMENTUM, TreeCosts
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree


def tree(*chain: int, forks: tuple[int, ...] = ()) -> Tree:
    """A chain of actions of so many tokens, each with two tokens of observation, and forced forks at the root."""
    out = Tree("t")
    out.add_root([1, 2, 3])
    node = 0
    for tokens in chain:
        node = out.add_action(node, [4] * tokens, [-1.0] * tokens, 0)
        out.observe(node, [5, 6])
    out.status[node] = Status.TERMINAL if chain else Status.TRUNCATED
    for tokens in forks:
        fork = out.add_action(0, [4] * tokens, [-1.0] * tokens, 0, natural=False)
        out.observe(fork, status=Status.TERMINAL)
    return out


def group(*trees: Tree, source: str = "a") -> RolloutGroup:
    return RolloutGroup(Task("t", source, "?"), list(trees))


def expected(costs: TreeCosts, source: str = "a") -> float | None:
    return costs.expected(Task("other", source, "another"))


def test_a_tree_costs_its_sampled_tokens_those_of_forks_included():
    costs = TreeCosts()
    assert expected(costs) is None
    costs.observe([group(tree(3, 4), tree(5, forks=(90,))), group(tree(6))])
    assert expected(costs) == pytest.approx((7 + 95 + 6) / 3)


def test_sources_are_kept_apart():
    costs = TreeCosts()
    costs.observe([group(tree(3)), group(tree(9), source="b"), group(tree(5))])
    assert (expected(costs), expected(costs, "b"), expected(costs, "c")) == (4.0, 9.0, None)


def test_iterations_are_averaged_exponentially_and_silence_changes_nothing():
    costs = TreeCosts()
    costs.observe([group(tree(10))])
    costs.observe([group(tree(20), tree(40))])
    after = MOMENTUM * 10 + (1 - MOMENTUM) * 30
    assert expected(costs) == pytest.approx(after)
    costs.observe([])
    costs.observe([group()])
    costs.observe([group(tree())])  # no episode: the prompt was too long
    failed = tree(77)
    failed.status[1] = Status.FAILED
    costs.observe([group(failed)])
    assert expected(costs) == pytest.approx(after)


def test_an_episode_without_tokens_has_no_cost_to_divide_by():
    costs = TreeCosts()
    costs.observe([group(tree(0))])
    assert expected(costs) is None


def test_state_comes_back_and_is_a_copy():
    costs, again = TreeCosts(), TreeCosts()
    costs.observe([group(tree(10)), group(tree(3), source="b")])
    state = costs.state_dict()
    assert state == {"a": 10.0, "b": 3.0}
    again.load_state_dict(state)
    costs.observe([group(tree(20))])
    assert state == {"a": 10.0, "b": 3.0}
    assert expected(again) == 10.0
    again.observe([group(tree(20))])
    assert expected(again) == expected(costs)
    assert state == {"a": 10.0, "b": 3.0}
