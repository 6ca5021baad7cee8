from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from lit_treerl.trees.value_keys import action_key
from lit_treerl.trees.value_tree import TaskValue, ValueTree
from tree_cases import act, chain_tree, group, keyed_groups

END = Status.TERMINAL


def rooted(index: int = 0) -> Tree:
    tree = Tree("t", index=index)
    tree.add_root([1])
    return tree


def golden() -> Tree:
    """root -a-> 1 (0.5) -b-> 2 ends 1; 1 -c-> 3 (fork) ends 0; root -d-> 4 ends 0.25; root -a-> 5 -b-> 6 ends 0."""
    tree = rooted()
    first = act(tree, 0, "a", 0.5)
    act(tree, first, "b", 1.0, END)
    act(tree, first, "c", 0.0, END, natural=False)
    act(tree, 0, "d", 0.25, Status.TRUNCATED, natural=False)
    act(tree, act(tree, 0, "A ", natural=False), "b", 0.0, END)
    return tree


def test_golden_tree_by_hand():
    values = ValueTree(shrinkage=2.0)
    trees = group(golden())
    values.add([trees], version=0)
    # at prefix a: b twice (1, 0), c once (0): V = 1/3, n = 3; at the root: a twice (0.5, 0), d once (0.25)
    a = 1 / 3
    root = ((0.5 + a) + (0.0 + a) + 0.25) / 3
    assert values.prior() == pytest.approx(root, abs=1e-15)
    y_root = (3 * root + 2 * root) / 5
    y_a = (3 * a + 2 * y_root) / 5
    [(mean, trust)] = values.beliefs(trees)
    assert mean == pytest.approx([y_root, y_a, 0, 0, 0, y_a, 0], abs=1e-15)
    assert trust == pytest.approx([0.6, 0.6, 0, 0, 0, 0.6, 0], abs=1e-15)
    # E[G^2] at a: 1/3; at the root E[(r + G)^2] = E[r^2] + 2 E[r] V + E[G^2] with r in (0.5, 0) for a, and 0.25^2
    square = (0.25 + 2 * 0.5 * a + 2 * a + 0.25**2) / 3
    known = values.task_value(trees.task)
    assert known is not None
    assert (known.count, known.mean) == (3.0, pytest.approx(root, abs=1e-15))
    assert known.variance == pytest.approx(square - root**2, abs=1e-15)
    assert len(values) == 5  # root, a, d, ab, ac
    assert values.tasks() == 1
    assert values.visits_mean() == 3.0


def test_a_given_prior_takes_the_place_of_the_mean_over_tasks():
    values, trees = ValueTree(shrinkage=1.0), group(golden())
    values.add([trees], 0)
    own = values.prior()
    [(mean, trust)] = values.beliefs(trees, prior=-2.0)
    assert mean[0] == pytest.approx((3 * own - 2.0) / 4, abs=1e-15)
    assert mean[1] == pytest.approx((3 * (1 / 3) + mean[0]) / 4, abs=1e-15)
    assert trust[:2] == [0.75, 0.75]
    assert values.beliefs(trees, prior=math.nan) == values.beliefs(trees) == values.beliefs(trees, prior=own)


def test_discount_applies_once_a_step():
    values = ValueTree(discount=0.5)
    tree = rooted()
    act(tree, act(tree, act(tree, 0, "a", 1.0), "b", 2.0), "c", 4.0, END)
    values.add([group(tree)], 0)
    assert values.task_value(group().task) == TaskValue(1.0, 1.0 + 0.5 * 2.0 + 0.25 * 4.0, 0.0)


def test_without_shared_prefixes_mean_and_variance_are_those_of_the_returns():
    returns = [0.0, 1.0, 0.2, 1.0]
    tree = rooted()
    for i, value in enumerate(returns):
        act(tree, act(tree, 0, f"a{i}", 0.1), "b", value - 0.1, END)
    values = ValueTree()
    values.add([group(tree)], 0)
    known = values.task_value(group().task)
    assert known is not None
    mean = sum(returns) / 4
    assert known.mean == pytest.approx(mean, abs=1e-15)
    assert known.variance == pytest.approx(sum((value - mean) ** 2 for value in returns) / 4, abs=1e-15)


def test_forks_below_a_child_do_not_change_its_weight_and_the_leaf_mean_does():
    tree = rooted()
    good = act(tree, 0, "good")
    for _ in range(9):
        act(tree, good, "x", 1.0, END)
    act(tree, 0, "bad", 0.0, END)
    values = ValueTree()
    values.add([group(tree)], 0)
    assert values.task_value(group().task) == TaskValue(2.0, 0.5, 0.25)
    assert sum(map(tree.leaf_return, tree.leaves())) / 10 == 0.9


def test_an_end_is_no_sample_of_the_states_that_go_on():
    """Half of the arrivals at a end there; forks of the other half weigh neither on a nor on the root."""
    tree = rooted()
    act(tree, 0, "a", 0.0, Status.TRUNCATED)
    going = act(tree, 0, "a")
    for _ in range(3):
        act(tree, going, "b", 1.0, END, natural=False)
    values, trees = ValueTree(shrinkage=1e-12), group(tree)
    values.add([trees], 0)
    [(mean, trust)] = values.beliefs(trees)
    assert mean[:3] == pytest.approx([0.5, 0.0, 1.0], abs=1e-9)
    assert trust[1] == 0.0


# ---- what counts ----


def test_failed_episodes_are_left_out():
    tree = golden()
    tree.status[6] = Status.FAILED  # and with it node 5, below which nothing else is
    tree.status[3] = Status.FAILED
    plain = rooted()
    act(plain, act(plain, 0, "a", 0.5), "b", 1.0, END)
    act(plain, 0, "d", 0.25, Status.TRUNCATED)
    values, expected = ValueTree(), ValueTree()
    values.add([group(tree)], 0)
    expected.add([group(plain)], 0)
    assert values.state_dict()["nodes"]["keys"] == expected.state_dict()["nodes"]["keys"]
    assert values.task_value(group().task) == expected.task_value(group().task) == TaskValue(2.0, 0.875, 0.390625)
    [(mean, trust)] = values.beliefs(group(tree))
    assert [math.isnan(y) for y in mean] == [node in (3, 6) for node in range(7)]
    assert (trust[3], trust[6]) == (0.0, 0.0)
    assert mean[5] == mean[1]  # its state is known from node 1 all the same


def test_a_task_of_which_everything_failed_stays_unknown():
    lost, values = chain_tree(1.0), ValueTree()
    lost.status[1] = Status.FAILED
    unrooted, failed = Tree("t"), rooted()
    failed.status[0] = Status.FAILED
    values.add([group(lost, unrooted, failed, rooted())], 0)
    assert (len(values), values.tasks(), values.visits_mean()) == (0, 0, 0.0)
    assert values.task_value(group().task) is None
    assert math.isnan(values.prior())
    mean, trust = values.beliefs(group(chain_tree(1.0)))[0]
    assert math.isnan(mean[0])
    assert (mean[1], trust) == (0.0, [0.0, 0.0])
    assert values.beliefs(group(unrooted)) == [([], [])]


def test_leaves_that_pruning_left_out_count():
    tree, pruned, values, expected = golden(), golden(), ValueTree(), ValueTree()
    pruned.kept_leaves = [2]
    values.add([group(pruned)], 0)
    expected.add([group(tree)], 0)
    assert values.task_value(group().task) == expected.task_value(group().task)


def test_a_leaf_still_open_counts_as_an_end():
    tree, values = rooted(), ValueTree(shrinkage=1.0)
    act(tree, 0, "a", 0.75)
    values.add([group(tree)], 0)
    assert values.task_value(group().task) == TaskValue(1.0, 0.75, 0.0)
    assert values.beliefs(group(tree)) == [([0.75, 0.75], [0.5, 0.0])]  # its own state is not known


def test_an_unsampled_prefix_believes_what_its_parent_does():
    values, other = ValueTree(), rooted()
    values.add([group(golden())], 0)
    act(other, act(other, act(other, 0, "a"), "new"), "b", 1.0, END)
    (mean, trust) = values.beliefs(group(other))[0]
    assert mean[2] == mean[1]
    assert trust[1:] == [0.6, 0.0, 0.0]


def test_content_makes_the_task_whatever_its_id():
    values = ValueTree()
    values.add([RolloutGroup(Task("one", "test", "same?"), [chain_tree(1.0)])], 0)
    values.add([RolloutGroup(Task("two", "test", "same?"), [chain_tree(0.0)])], 0)
    values.add([RolloutGroup(Task("one", "test", "other?"), [chain_tree(0.0)])], 0)
    assert values.tasks() == 2
    assert values.task_value(Task("three", "test", "same?")) == TaskValue(2.0, 0.5, 0.25)
    assert values.prior() == 0.25  # a task counts once, though one has two samples


def test_a_reward_that_is_not_finite_names_the_task_and_adds_nothing():
    bad, values = golden(), ValueTree()
    bad.reward[2] = math.nan
    with pytest.raises(ValueError, match="task 't': node 2 of tree 0 has reward nan, must be finite"):
        values.add([group(golden()), group(bad)], 3)
    assert len(values) == 0
    bad.status[2] = Status.FAILED
    values.add([group(bad)], 3)
    assert values.tasks() == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("half_life", value) for value in (0.0, -1.0, math.nan)),
        *(("shrinkage", value) for value in (0.0, -1.0, math.nan, math.inf)),
        *(("discount", value) for value in (0.0, 1.01, math.nan)),
        ("max_nodes", 0),
    ],
)
def test_settings_are_checked(key, value):
    with pytest.raises(ValueError, match=rf"model\.value_tree\.{key} must be .*, got {value}"):
        ValueTree(**{key: value})


# ---- decay ----


def test_decay_halves_a_sample_every_half_life():
    values, task = ValueTree(half_life=4.0, shrinkage=1.0), group().task
    values.add([group(chain_tree(1.0))], 10)
    values.add([group(chain_tree(0.0))], 12)
    weight = 2**-0.5
    assert values.task_value(task).count == pytest.approx(1 + weight, abs=1e-15)  # type: ignore[union-attr]
    assert values.task_value(task).mean == pytest.approx(weight / (1 + weight), abs=1e-15)  # type: ignore[union-attr]
    values.add([], 16)  # time goes by: n fades, V stays, trust falls
    n = 0.5 + 2**-1.5
    assert values.task_value(task).count == pytest.approx(n, abs=1e-15)  # type: ignore[union-attr]
    assert values.task_value(task).mean == pytest.approx(weight / (1 + weight), abs=1e-15)  # type: ignore[union-attr]
    assert values.visits_mean() == pytest.approx(n, abs=1e-15)
    [(mean, trust)] = values.beliefs(group(chain_tree(0.0)), prior=1.0)
    assert trust[0] == pytest.approx(n / (n + 1), abs=1e-15)
    assert mean[0] == pytest.approx((n * weight / (1 + weight) + 1) / (n + 1), abs=1e-15)


def test_without_half_life_nothing_fades():
    values = ValueTree(half_life=None)
    values.add([group(chain_tree(1.0))], 0)
    values.add([group(chain_tree(0.0))], 10**6)
    assert values.task_value(group().task) == TaskValue(2.0, 0.5, 0.25)


def test_a_task_fades_from_the_prior():
    values = ValueTree(half_life=1.0)
    values.add([group(chain_tree(1.0, 1.0)), RolloutGroup(Task("u", "test", "u"), [chain_tree(0.0)])], 0)
    assert values.prior() == 0.5
    values.add([RolloutGroup(Task("u", "test", "u"), [chain_tree(0.0)])], 3)  # t: n = 2/8; u: n = 1 + 1/8
    assert values.prior() == 0.25 / 1.25


def test_samples_that_come_late_count_as_old_as_they_are():
    early, late = ValueTree(half_life=2.0), ValueTree(half_life=2.0)
    for version in (0, 3, 7):
        early.add(keyed_groups(version), version)
    for version in (7, 0, 3):
        late.add(keyed_groups(version), version)
    for groups in map(keyed_groups, (0, 3, 7)):
        for g in groups:
            assert_same(early.beliefs(g), late.beliefs(g))


def test_ages_beyond_float_range_lose_to_the_newest_sample():
    values = ValueTree(half_life=0.001)
    for version, reward in ((0, 1.0), (1, 0.5), (10**6, 0.25)):
        values.add([group(chain_tree(reward))], version)
    assert values.task_value(group().task) == TaskValue(1.0, 0.25, 0.0)
    values.add([group(chain_tree(1.0))], 0)
    assert values.task_value(group().task) == TaskValue(1.0, 0.25, 0.0)


# ---- against a plain slow version ----


class SlowTree:
    """Keeps every sample and computes each value anew by its definition."""

    def __init__(self, half_life: float | None, discount: float) -> None:
        self.half_life, self.discount = half_life, discount
        self.rows: list[tuple[str, tuple[str, ...], float, bool, int]] = []

    def add(self, groups: list[RolloutGroup], version: int) -> None:
        for g in groups:
            for tree in g.trees:
                good = [leaf for leaf in tree.leaves() if tree.status[leaf] is not Status.FAILED]
                for node in sorted({node for leaf in good for node in tree.path(leaf)} - {0}):
                    prefix = tuple(action_key(tree.action_key[n]) for n in tree.path(node)[1:])
                    self.rows.append((g.task.question, prefix, tree.reward[node], node not in good, version))

    def value(self, question: str, prefix: tuple[str, ...], now: int) -> tuple[float, float, float]:
        """(n, V, mean square) at ``prefix``."""

        @cache
        def at(prefix: tuple[str, ...]) -> tuple[float, float, float]:
            n = first = second = 0.0
            for asked, path, reward, onward, version in self.rows:
                if asked != question or path[:-1] != prefix:
                    continue
                w = 1.0 if self.half_life is None else 2.0 ** (-(now - version) / self.half_life)
                _, mean, square = at(path) if onward else (0.0, 0.0, 0.0)
                n += w
                first += w * (reward + self.discount * mean)
                second += w * (reward**2 + 2 * self.discount * reward * mean + self.discount**2 * square)
            return (n, first / n, second / n) if n else (0.0, 0.0, 0.0)

        return at(prefix)


def assert_same(one, two, tolerance: float = 1e-10):
    """Equal beliefs: lists of (means, trusts)."""
    for (mean, trust), (other_mean, other_trust) in zip(one, two, strict=True):
        assert mean == pytest.approx(other_mean, abs=tolerance, nan_ok=True)
        assert trust == pytest.approx(other_trust, abs=tolerance)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(-3, 30)), min_size=1, max_size=5),
    st.sampled_from([None, 0.7, 8.0]),
    st.sampled_from([1.0, 0.9]),
    st.sampled_from([0.5, 2.0]),
)
def test_equals_the_definition(adds, half_life, discount, k):
    values, slow = ValueTree(half_life, k, discount), SlowTree(half_life, discount)
    for seed, version in adds:
        values.add(keyed_groups(seed), version)
        slow.add(keyed_groups(seed), version)
    now = max(version for _, version in adds)
    for seed, _ in adds:
        for g in keyed_groups(seed):
            n, v, square = slow.value(g.task.question, (), now)
            known = values.task_value(g.task)
            if known is None:
                assert n == 0
                continue
            assert (known.count, known.mean) == pytest.approx((n, v), abs=1e-10)
            assert known.variance == pytest.approx(square - v * v, abs=1e-10)
            for tree, (mean, trust) in zip(g.trees, values.beliefs(g, prior=0.3), strict=True):
                for node in range(len(tree)):
                    if tree.status[node] is not Status.OPEN:
                        continue
                    y = 0.3
                    for step in range(tree.depth(node) + 1):
                        prefix = tuple(action_key(tree.action_key[i]) for i in tree.path(node)[1 : step + 1])
                        n, v, _ = slow.value(g.task.question, prefix, now)
                        y = (n * v + k * y) / (n + k)
                    assert (mean[node], trust[node]) == pytest.approx((y, n / (n + k)), abs=1e-10)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_incremental_equals_batch_in_any_order(seeds, rng):
    groups = [g for seed in seeds for g in keyed_groups(seed)]
    batch, single = ValueTree(), ValueTree()
    batch.add(groups, 5)
    shuffled = rng.sample(groups, len(groups))
    for g in shuffled:
        for tree in g.trees:
            single.add([RolloutGroup(g.task, [tree])], 5)
    assert (len(single), single.tasks()) == (len(batch), batch.tasks())
    assert single.prior() == pytest.approx(batch.prior(), abs=1e-12, nan_ok=True)
    assert single.visits_mean() == pytest.approx(batch.visits_mean(), abs=1e-12)
    for g in groups:
        assert_same(single.beliefs(g), batch.beliefs(g), 1e-12)
