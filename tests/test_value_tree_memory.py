"""The value tree stays within bounds, is stored exactly and merges."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from lit_treerl.trees.value_keys import task_key
from lit_treerl.trees.value_tree import TaskValue, ValueTree
from tree_cases import act, chain_tree, keyed_groups


def task(name: str) -> Task:
    return Task(name, "test", name)


def path(*keys: str, name: str = "t", reward: float = 1.0) -> RolloutGroup:
    """One episode with these actions."""
    tree = Tree(name)
    tree.add_root([1])
    node = 0
    for key in keys[:-1]:
        node = act(tree, node, key)
    act(tree, node, keys[-1], reward, Status.TERMINAL)
    return RolloutGroup(task(name), [tree])


def kept(values: ValueTree) -> set[tuple[str, ...]]:
    """Every prefix in the tree: the task's name, then the actions."""
    names = {task_key(task(name)): name for name in "abcdt"}
    nodes, paths = values.state_dict()["nodes"], []
    for key, parent in zip(nodes["keys"], nodes["parent"].tolist(), strict=True):
        paths.append((names[key],) if parent < 0 else (*paths[parent], key))
    assert len(set(paths)) == len(paths) == len(values)
    return set(paths)


# ---- bound ----


def test_oldest_goes_first_then_least_visited_from_the_leaves_up():
    values = ValueTree(half_life=None, max_nodes=10)
    values.add([path("x", "y", "z"), path("v"), path("w"), path("v")], 0)
    values.add([path("p", "q")], 1)  # t, x, xy, xyz, v, w, p, pq
    assert len(values) == 8
    values.add([path("r"), path("s")], 2)
    assert len(values) == 10
    values.add([path("r"), path("n")], 3)  # the eleventh: down to nine; of the single visits the deepest, then above it
    assert kept(values) == {("t",), *(("t", *word) for word in ("x", "v", "w", "p", "pq", "r", "s", "n"))}
    values.add([path("m"), path("o")], 4)  # eleven again: v stays, it has two visits
    assert kept(values) == {("t",), *(("t", *word) for word in ("v", "p", "pq", "r", "s", "n", "m", "o"))}
    assert values.task_value(task("t")) == TaskValue(11.0, 1.0, 0.0)


def test_roots_outlive_other_old_nodes():
    values = ValueTree(max_nodes=10)
    for version, name in enumerate("abcd"):
        values.add([path("x", "y", name=name, reward=version)], version)
    # twelve nodes: the paths below a and half of b's go
    assert kept(values) == {("a",), ("b",), ("b", "x"), *((n, *end) for n in "cd" for end in ("", "x", "xy"))}
    assert values.task_value(task("a")) == TaskValue(2**-0.375, 0.0, 0.0)
    values.add([path("x", "y", name="t")], 9)
    assert ("a",) in kept(values)
    small = ValueTree(max_nodes=4)
    small.load_state_dict(values.state_dict())
    assert kept(small) == {("t",), ("t", "x"), ("t", "x", "y")}  # to a tenth below: every old root has gone


def test_the_newest_version_is_kept_unless_it_alone_is_too_large():
    values = ValueTree(max_nodes=3)
    values.add([path("o", name="a")], 0)
    values.add([path("x", "y")], 1)  # five nodes: everything old goes, nothing new
    assert kept(values) == {("t",), ("t", "x"), ("t", "x", "y")}
    values.add([path("x", "y", "z")], 2)  # four nodes of one version: one must go
    assert kept(values) == {("t",), ("t", "x"), ("t", "x", "y")}
    assert values.task_value(task("t")) == TaskValue(pytest.approx(1 + 2**-0.125), 1.0, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [1, 2, 5, 30])
def test_the_bound_holds_over_a_long_run(bound):
    values = ValueTree(max_nodes=bound)
    for version in range(60):
        groups = keyed_groups(version, tasks=12, keys="abcdefgh")
        values.add(groups, version)
        assert len(values) <= bound
        assert len(values.state_dict()["nodes"]["keys"]) == len(values)
        for g in groups:
            for mean, trust in values.beliefs(g, prior=0.5):
                assert all(0 <= value <= 9 for value in mean if value == value)
                assert all(0 <= value < 1 for value in trust)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_values_that_stay_do_not_change(seed, bound):
    full, cut = ValueTree(discount=0.9), ValueTree(discount=0.9, max_nodes=bound)
    rng, asked = random.Random(seed), []
    for version in range(5):
        groups = keyed_groups(rng.randrange(10**6))
        full.add(groups, version)
        asked += groups
    cut.load_state_dict(full.state_dict())
    assert len(cut) <= bound
    left = [g for g in asked if cut.task_value(g.task) is not None]
    assert all(cut.task_value(g.task) == full.task_value(g.task) for g in left)
    # and what is added under new keys changes both alike, later versions too
    for version in (6, 11):
        fresh = [RolloutGroup(g.task, [chain_tree(0.7, 0.1)]) for g in left]
        for i, g in enumerate(fresh):
            g.trees[0].action_key = ["", f"new {version} {i}", f"newer {version} {i}"]
        cut.max_nodes = 1000
        full.add(fresh, version)
        cut.add(fresh, version)
        for g in left:
            one, two = cut.task_value(g.task), full.task_value(g.task)
            assert one is not None
            assert two is not None
            assert (one.count, one.mean) == pytest.approx((two.count, two.mean), abs=1e-12)
            assert one.variance == pytest.approx(two.variance, abs=1e-12)


def test_a_dropped_prefix_can_come_back():
    values = ValueTree(half_life=None, shrinkage=1e-9, max_nodes=4)
    values.add([path("x", "y", reward=1.0)], 0)
    values.add([path("b", "c", reward=0.0)], 1)  # x, y are dropped
    assert kept(values) == {("t",), ("t", "b"), ("t", "b", "c")}
    assert values.task_value(task("t")) == TaskValue(2.0, 0.5, 0.25)
    values.max_nodes = 100
    again = path("x", "y", reward=0.0)
    values.add([again], 2)
    assert values.task_value(task("t")) == TaskValue(3.0, pytest.approx(1 / 3), pytest.approx(2 / 9))  # type: ignore[arg-type]
    [(mean, _)] = values.beliefs(again)
    assert mean[1] == pytest.approx(0.0, abs=1e-8)  # only what came after the drop


# ---- storing ----


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same_state(one: dict[str, Any], two: dict[str, Any]) -> bool:
    nodes, others = one.pop("nodes"), two.pop("nodes")
    columns = nodes.keys() - {"keys"}
    return (
        one == two
        and nodes["keys"] == others["keys"]
        and nodes.keys() == others.keys()
        and all(torch.equal(nodes[name], others[name]) for name in columns)
    )


@given(st.integers(0, 10**6), st.sampled_from([None, 3.0]), st.sampled_from([12, 1000]))
def test_a_stored_tree_goes_on_exactly_as_the_original(seed, half_life, bound):
    values, loaded = ValueTree(half_life, max_nodes=bound), ValueTree(half_life, max_nodes=bound)
    for version in (0, 2, 3):
        values.add(keyed_groups(seed + version), version)
    values.add([], 7)  # decay that nothing was touched by yet
    loaded.add(keyed_groups(1), 50)  # is forgotten
    loaded.load_state_dict(through_file(values.state_dict()))
    assert same_state(loaded.state_dict(), values.state_dict())
    for version in (7, 9):
        assert (loaded.prior(), len(loaded), loaded.tasks(), loaded.visits_mean()) == pytest.approx(
            (values.prior(), len(values), values.tasks(), values.visits_mean()), abs=0, rel=0, nan_ok=True
        )
        for tree in (values, loaded):
            tree.add(keyed_groups(seed + version), version)
    assert same_state(loaded.state_dict(), values.state_dict())


def test_an_empty_tree_is_stored_too():
    values = ValueTree()
    values.add([path("x")], 3)
    values.load_state_dict(through_file(ValueTree().state_dict()))
    assert (len(values), values.tasks()) == (0, 0)
    values.add([path("x")], 0)
    assert values.task_value(task("t")) == TaskValue(1.0, 1.0, 0.0)


def test_a_state_is_plain_and_stays_when_the_tree_grows():
    values = ValueTree()
    values.add([path("x", "y")], 0)
    state = values.state_dict()
    assert state["nodes"]["keys"] == [task_key(task("t")), "x", "y"]
    assert state["nodes"]["parent"].tolist() == [-1, 0, 1]
    values.add([path("x", "y", reward=0.0)], 1)
    assert state["nodes"]["weight"].tolist() == [1.0, 1.0, 1.0]


def test_bad_states_are_errors_and_change_nothing():
    values = ValueTree()
    values.add([path("x", "y")], 0)
    good = values.state_dict()

    def nodes(**changed: Any) -> dict[str, Any]:
        return {**good, "nodes": {**good["nodes"], **changed}}

    task_row = good["nodes"]["keys"][0]
    bad = {
        "lacks version, nodes": {"settings": good["settings"]},
        "lacks weight": {**good, "nodes": {k: v for k, v in good["nodes"].items() if k != "weight"}},
        "3 keys but 2 entries of 'mean'": nodes(mean=torch.zeros(2)),
        "row 1 .* has parent 1; parents come first": nodes(parent=torch.tensor([-1, 1, 0])),
        "row 2 .* repeats the key 'x'": nodes(parent=torch.tensor([-1, 0, 0]), keys=[task_row, "x", "x"]),
        "half_life is 8.0, but .* built with 4.0": {**good, "settings": {"half_life": 4.0, "discount": 1.0}},
        "discount is 1.0, but .* built with None": {**good, "settings": {"half_life": 8.0}},
    }
    for message, state in bad.items():
        for take in (values.load_state_dict, values.merge):
            with pytest.raises(ValueError, match=message):
                take(state)
    assert same_state(values.state_dict(), good)


# ---- merging ----


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=4), st.sampled_from([None, 2.0]), st.booleans())
def test_merged_ranks_equal_one_tree_of_all_episodes(seeds, half_life, stored):
    whole, ranks = ValueTree(half_life), [ValueTree(half_life) for _ in seeds]
    for version in (0, 1, 4):
        for rank, seed in enumerate(seeds):
            if (seed + version) % 3:  # a rank without episodes in some versions
                groups = keyed_groups(seed + version)
                ranks[rank].add(groups, version)
                whole.add(groups, version)
    merges = []
    for order in (ranks, ranks[::-1]):
        merged = ValueTree(half_life)
        for rank in order:
            merged.merge(rank.state_dict() if stored else rank)
        merges.append(merged)
    for merged in merges:
        assert (len(merged), merged.tasks()) == (len(whole), whole.tasks())
        assert merged.prior() == pytest.approx(whole.prior(), abs=1e-12, nan_ok=True)
        assert merged.visits_mean() == pytest.approx(whole.visits_mean(), abs=1e-12)
        for g in (g for seed in seeds for version in (0, 1, 4) for g in keyed_groups(seed + version)):
            for one, two in zip(merged.beliefs(g), whole.beliefs(g), strict=True):
                assert one[0] == pytest.approx(two[0], abs=1e-12, nan_ok=True)
                assert one[1] == pytest.approx(two[1], abs=1e-12)


def test_merging_copies_and_keeps_what_was_folded():
    one, two = ValueTree(half_life=None, max_nodes=3), ValueTree(half_life=None)
    one.add([path("x", reward=1.0), path("y", reward=0.0)], 0)
    one.add([path("z", reward=0.5)], 1)  # x or y is folded into the root
    assert len(one) == 2
    two.add([path("z", reward=1.0)], 2)
    two.merge(one)
    assert two.task_value(task("t")) == TaskValue(4.0, 0.625, pytest.approx((1 + 0 + 0.25 + 1) / 4 - 0.625**2))  # type: ignore[arg-type]
    assert one.task_value(task("t")) == TaskValue(3.0, 0.5, pytest.approx(1 / 6))  # type: ignore[arg-type]
    two.add([path("z", reward=0.0)], 2)
    assert one.task_value(task("t")).mean == 0.5  # type: ignore[union-attr]


def test_merging_holds_the_bound_and_refuses_itself():
    one, two = ValueTree(max_nodes=6), ValueTree()
    for version in range(4):
        one.add([path(f"a{version}")], version)
        two.add([path(f"b{version}")], version)
    one.merge(two)
    assert len(one) <= 6
    assert one.task_value(task("t")).count == pytest.approx(2 * sum(2 ** (-i / 8) for i in range(4)))  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="cannot be merged with itself"):
        one.merge(one)
    with pytest.raises(ValueError, match=r"discount is 0\.9, but the stored tree was built with 1\.0"):
        ValueTree(discount=0.9).merge(one)


def test_episodes_deeper_than_the_call_stack():
    turns, values = 3000, ValueTree(max_nodes=5000)
    long = path(*(f"step {i}" for i in range(turns)), reward=0.5)
    values.add([long], version=torch.tensor(0).numpy()[()])  # a version counted by numpy is stored as a plain number
    values.load_state_dict(through_file(values.state_dict()))
    values.merge(values.state_dict())
    assert len(values) == turns + 1
    assert values.task_value(task("t")) == TaskValue(2.0, 0.5, 0.0)
    assert values.leave_one_out(long, 0, turns, prior=0.0)[-2] == pytest.approx(0.5 * (1 - (2 / 3) ** turns))
    values.max_nodes = 10
    values.add([path("other", name="a")], 1)
    assert len(values) == 9
    assert values.task_value(task("t")) == TaskValue(2 * 2**-0.125, 0.5, 0.0)
