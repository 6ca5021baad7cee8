import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.tree import NO_PARENT, Status, Tree
from tree_cases import chain_tree, group, random_tree


def golden(context: str = "growing") -> Tree:
    """root [1 2] -> a [3 4 | 5] -> b [6 | 7], c [8 9 | ] ; root -> d [10 | 11 12]."""
    tree = Tree("gold", context=context)  # type: ignore[arg-type]
    tree.add_root([1, 2])
    for parent, action, seen, reward in ((0, [3, 4], [5], 0.25), (1, [6], [7], 1.0), (1, [8, 9], [], 0.5)):
        node = tree.add_action(parent, action, [-0.5] * len(action), version=3)
        tree.observe(node, seen, action_key=f"key{node}", reward=reward, info={"turn": node})
    fork = tree.add_action(0, [10], [-2.0], version=3, natural=False)
    tree.observe(fork, [11, 12], status=Status.TRUNCATED, reward=-1.0)
    return tree


def test_golden_tree_derives_paths_leaves_returns_and_contexts():
    tree = golden()
    assert tree.parent == [NO_PARENT, 0, 1, 1, 0]
    assert tree.children() == [[1, 4], [2, 3], [], [], []]
    assert tree.leaves() == [2, 3, 4]
    assert [tree.path(leaf) for leaf in tree.leaves()] == [[0, 1, 2], [0, 1, 3], [0, 4]]
    assert [tree.depth(node) for node in range(5)] == [0, 1, 2, 2, 1]
    assert [tree.leaf_return(leaf) for leaf in tree.leaves()] == [1.25, 0.75, -1.0]
    assert tree.context_ids(2) == [1, 2, 3, 4, 5, 6, 7]
    assert tree.context_ids(4) == [1, 2, 10, 11, 12]
    assert tree.sampled_tokens() == 6
    assert tree.mean_action_entropy(1) == 0.5
    assert tree.mean_action_entropy(0) == 0.0
    assert tree.natural == [True, True, True, True, False]


def test_window_context_is_the_fresh_prompt_alone():
    tree = golden("window")
    assert tree.context_ids(0) == [1, 2]
    assert tree.context_ids(1) == [5]
    assert tree.context_ids(4) == [11, 12]


def test_failed_and_pruned_leaves_are_not_trained_on():
    tree = golden()
    tree.status[3] = Status.FAILED
    assert tree.training_leaves() == [2, 4]
    tree.kept_leaves = [3, 4]
    assert tree.training_leaves() == [4]
    assert tree.leaves() == [2, 3, 4]
    other = chain_tree(1.0)
    assert group(tree, other).leaves() == [(tree, 4), (other, 1)]


def test_nothing_follows_a_closed_node_and_inputs_are_checked():
    tree = golden()
    with pytest.raises(ValueError, match="node 4 is truncated"):
        tree.add_action(4, [1], [-1.0], 0)
    with pytest.raises(ValueError, match="2 action tokens but 1 log-probs"):
        tree.add_action(0, [1, 2], [-1.0], 0)
    with pytest.raises(ValueError, match="parent 9"):
        tree.add_action(9, [1], [-1.0], 0)
    with pytest.raises(ValueError, match="already has a root"):
        tree.add_root([1])


def test_reordering_renumbers_parents_and_kept_leaves():
    tree = golden()
    tree.kept_leaves = [2, 4]
    tree.reorder([0, 4, 1, 3, 2])
    assert tree.parent == [NO_PARENT, 0, 0, 2, 2]
    assert [step[:1] for step in tree.ids] == [[1], [10], [3], [8], [6]]
    assert tree.reward == [0.0, -1.0, 0.25, 0.5, 1.0]
    assert tree.kept_leaves == [1, 4]
    for order in ([0, 2, 1, 3, 4], [0, 1, 2, 3], [0, 1, 1, 3, 4]):
        with pytest.raises(ValueError, match=r"parent|permute"):
            golden().reorder(order)


@given(st.integers(0, 10_000), st.sampled_from(["growing", "window"]))
def test_json_round_trip_keeps_everything_but_snapshots(seed, context):
    tree = random_tree(random.Random(seed), context=context, failures=0.3)
    tree.snapshot[0] = object()
    again = Tree.from_json(json.loads(json.dumps(tree.to_json())))
    tree.drop_snapshots()
    assert again == tree
    assert all(isinstance(status, Status) for status in again.status)


@given(st.integers(0, 10_000))
def test_every_node_lies_on_the_path_of_a_leaf_and_tokens_add_up(seed):
    tree = random_tree(random.Random(seed))
    paths = [tree.path(leaf) for leaf in tree.leaves()]
    assert set().union(*paths) == set(range(len(tree)))
    for path in paths:
        assert path[0] == 0
        assert all(a < b for a, b in itertools.pairwise(path))
        assert len(tree.context_ids(path[-1])) == sum(len(tree.ids[node]) for node in path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("reward", [0.0], "'reward' has 1 entries for 5 nodes"),
        ("parent", [-1, 0, 3, 1, 0], "node 2 has parent 3"),
        ("parent", [0, 0, 1, 1, 0], "node 0 has parent 0"),
        ("action_len", [0, 9, 1, 2, 1], "node 1: 9 action tokens"),
        ("colour", [], "unknown tree fields \\['colour'\\]"),
    ],
)
def test_broken_json_is_named(key, value, message):
    with pytest.raises(ValueError, match=message):
        Tree.from_json(golden().to_json() | {key: value})


def test_seeds_depend_on_every_part_and_on_nothing_else():
    assert derive_seed(0, "a", 1) == derive_seed(0, "a", 1)
    assert len({derive_seed(0, "a", 1), derive_seed(0, "a", 2), derive_seed(0, "b", 1), derive_seed(1, "a", 1)}) == 4
    assert derive_seed("ab", "c") != derive_seed("a", "bc")
    assert 0 <= derive_seed("x") < 2**63
