"""Leaving one episode out equals a tree that was built without it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from lit_treerl.trees.value_tree import ValueTree
from tree_cases import act, chain_tree, group, keyed_groups


def without(tree: Tree, leaf: int) -> Tree:
    """The arena without the nodes that only ``leaf``, among the leaves that did not fail, has above it."""
    good = [other for other in tree.leaves() if tree.status[other] is not Status.FAILED]
    shared = {node for other in good if other != leaf for node in tree.path(other)} | {0}
    gone = set(tree.path(leaf)) - shared if leaf in good else set()
    rest = Tree(tree.task_id, tree.index)
    rest.add_root([1])
    new = {0: 0}
    for node in range(1, len(tree)):
        if tree.parent[node] in new and node not in gone:
            rest.status[new[tree.parent[node]]] = Status.OPEN
            new[node] = act(rest, new[tree.parent[node]], tree.action_key[node], tree.reward[node], tree.status[node])
    return rest


def test_by_hand():
    tree = Tree("t")
    tree.add_root([1])
    shared = act(tree, 0, "a", 0.5)
    one = act(tree, shared, "b", 1.0, Status.TERMINAL)
    two = act(tree, shared, "b", 0.0, Status.TERMINAL)
    lone = act(tree, act(tree, 0, "a", 0.0), "b", 0.25, Status.TERMINAL)
    values, trees = ValueTree(shrinkage=1.0), group(tree)
    values.add([trees], 0)
    # without `one`: prefix a has b with 0 and 0.25, V = 0.125, n = 2; root: two samples of a, 0.5 and 0
    root = 0.25 + 0.125
    y = (2 * root + root) / 3
    expected = [y, (2 * 0.125 + y) / 3, 0.0]
    assert values.leave_one_out(trees, 0, one) == pytest.approx(expected, abs=1e-15)
    # without `two`: b with 1 and 0.25
    expected = [0.25 + 0.625, (2 * 0.625 + 0.25 + 0.625) / 3, 0.0]
    assert values.leave_one_out(trees, 0, two) == pytest.approx(expected, abs=1e-15)
    # without `lone`: prefix a has 1 and 0, the root one sample of a with 0.5
    expected = [1.0, (2 * 0.5 + 1.0) / 3, 0.0]
    assert values.leave_one_out(trees, 0, lone) == pytest.approx(expected, abs=1e-15)
    # a prior of the caller's
    y = (1 * 1.0 + 1 * -1.0) / 2
    assert values.leave_one_out(trees, 0, lone, prior=-1.0) == pytest.approx([y, (2 * 0.5 + y) / 3, 0.0], abs=1e-15)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 6)), max_size=3),
    st.integers(0, 10**6),
    st.sampled_from([None, 1.0, 8.0]),
    st.sampled_from([1.0, 0.8]),
    st.sampled_from([None, 0.25]),
)
def test_equals_a_rebuild(before, seed, half_life, discount, prior):
    """To 1e-9: a sum that holds the own sample, of weight 1, keeps others that weigh 2^-18 to 2^18 * 1e-16."""
    values, rebuilt = ValueTree(half_life, 2.0, discount), ValueTree(half_life, 2.0, discount)
    version = 0
    for past, gap in before:
        values.add(keyed_groups(past), version)
        version += gap
    groups = keyed_groups(seed)
    state = values.state_dict()
    values.add(groups, version)
    for i, g in enumerate(groups):
        for j, tree in enumerate(g.trees):
            for leaf in tree.leaves():
                rest = RolloutGroup(g.task, [*g.trees[:j], without(tree, leaf), *g.trees[j + 1 :]])
                rebuilt.load_state_dict(state)
                rebuilt.add([*groups[:i], rest, *groups[i + 1 :]], version)
                [(mean, _)] = rebuilt.beliefs(RolloutGroup(g.task, [tree]), prior)
                expected = [mean[node] for node in tree.path(leaf)]
                found = values.leave_one_out(g, j, leaf, prior)
                assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_the_only_episode_leaves_nothing_known():
    values, trees = ValueTree(), group(chain_tree(1.0))
    values.add([trees], 0)
    found = values.leave_one_out(trees, 0, 1)
    assert math.isnan(found[0])
    assert found[1] == 0.0
    assert values.leave_one_out(trees, 0, 1, prior=0.5) == [0.5, 0.0]
    values.add([RolloutGroup(Task("u", "test", "u"), [chain_tree(0.25)])], 0)
    assert values.leave_one_out(trees, 0, 1) == [0.25, 0.0]


def test_old_samples_that_hardly_count_leave_no_rounding():
    """What is left beside the own sample weighs 2^-60: the belief is the prior, not a quotient of rounding errors."""
    values, trees = ValueTree(half_life=1.0), group(chain_tree(1e6))
    values.add([group(chain_tree(0.3))], 0)
    values.add([trees, RolloutGroup(Task("u", "test", "u"), [chain_tree(0.5)])], 60)
    assert values.leave_one_out(trees, 0, 1) == pytest.approx([0.5, 0.0], abs=1e-12)


def test_a_failed_leaf_takes_nothing_out():
    tree = chain_tree(1.0, 0.0)
    tree.status[2] = Status.FAILED
    values, trees = ValueTree(shrinkage=1.0), group(tree)
    values.add([trees], 0)
    found = values.leave_one_out(trees, 0, 2)
    assert found[0] == 1.0
    assert math.isnan(found[1])


def test_what_cannot_be_left_out_is_an_error():
    values, trees = ValueTree(), group(chain_tree(1.0, 0.0))
    values.add([trees], 4)
    with pytest.raises(ValueError, match="task 't': node 0 of tree 0 is not a leaf"):
        values.leave_one_out(trees, 0, 0)
    values.add([], 5)
    with pytest.raises(ValueError, match="task 't', leaf 1 of tree 0: version 5 added no such episode"):
        values.leave_one_out(trees, 0, 1)
