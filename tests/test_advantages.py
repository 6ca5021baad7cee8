import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.algorithms.advantages import (
    batch_scale,
    group_normalise,
    is_silent,
    leave_one_out,
    spread,
    zero_signal,
)
from lit_treerl.algorithms.aggregation import leaf_weights, step_total
from lit_treerl.algorithms.base import AdvantageEstimator, Credit
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.rloo import RLOO
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from tree_cases import chain_tree, group, random_tree

ESTIMATORS = [
    GRPO,
    RLOO,
    TreeGRPO,
    lambda **options: TreeGRPO(level="intra", **options),
    lambda **options: TreeGRPO(level="inter", **options),
]
NORMALISATIONS = ["group_std", "none", "batch"]


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalars(credits: list[list[Credit]]) -> list[list[list[float]]]:
    """The advantage that each leaf's last action got."""
    return [[c.advantage[c.leaves, range(len(c.leaves))].tolist() for c in trees] for trees in credits]


# ---- one group ----


def test_group_normalise_by_hand():
    returns = f64(0, 0, 1, 3)  # mean 1, deviations -1 -1 0 2, unbiased variance 6 / 3 = 2
    assert group_normalise(returns).tolist() == [-1, -1, 0, 2]
    scale = math.sqrt(2) + 1e-6
    assert group_normalise(returns, std=True).tolist() == pytest.approx([-1 / scale, -1 / scale, 0, 2 / scale], abs=0)


def test_leave_one_out_by_hand():
    assert leave_one_out(f64(0, 0, 1, 3)).tolist() == pytest.approx([0 - 4 / 3, 0 - 4 / 3, 1 - 1, 3 - 1 / 3])


def test_singletons_and_empty_groups():
    assert group_normalise(f64(0.7), std=True).tolist() == [0]
    assert group_normalise(f64(0.7), std=True, singletons="published").tolist() == [0.7]
    assert leave_one_out(f64(0.7)).tolist() == [0]
    assert leave_one_out(f64(0.7), singletons="published").tolist() == [0.7]
    assert group_normalise(f64()).tolist() == []


@pytest.mark.parametrize("std", [True, False])
def test_equal_returns_with_float_residue_give_exact_zeros(std):
    residue = f64(0.1 + 0.2, 0.3, 0.3, 0.3)  # 0.30000000000000004 among 0.3
    assert float(residue.std()) > 0
    assert is_silent(residue)
    assert group_normalise(residue, std=std).tolist() == [0, 0, 0, 0]
    assert group_normalise(f64(0.1 + 0.2 - 0.3, 0.0), std=std).tolist() == [0, 0]
    single = torch.tensor([50.1, 50.1 + 4e-6], dtype=torch.float32).double()  # one float32 step apart
    assert group_normalise(single, std=std).tolist() == [0, 0]


def test_small_but_real_differences_are_kept():
    assert not is_silent(f64(0.5, 0.501))
    assert group_normalise(f64(0.5, 0.501), std=True)[1] == pytest.approx(1 / math.sqrt(2), rel=1e-2)


def test_batch_scale_by_hand():
    assert batch_scale([f64(3, -4), f64(0, 0)], 0.05) == pytest.approx(2.5)
    assert batch_scale([f64(0.001, -0.001)], 0.05) == 0.05
    assert batch_scale([], 0.05) == 0.05


# ---- estimators ----


def two_tasks() -> list[RolloutGroup]:
    """Task a: trees with returns (1, 0) and (1, 1); task b: one tree with returns (0.5, 0.5)."""
    a = group(chain_tree(1, 0, task_id="a"), chain_tree(1, 1, task_id="a", index=1), task_id="a")
    return [a, group(chain_tree(0.5, 0.5, task_id="b"), task_id="b")]


def test_grpo_by_hand():
    assert scalars(GRPO("none")(two_tasks())) == [[[0.25, -0.75], [0.25, 0.25]], [[0, 0]]]
    s = 0.5 + 1e-6  # unbiased std of 1 0 1 1
    assert scalars(GRPO("group_std")(two_tasks()))[0] == [
        pytest.approx([0.25 / s, -0.75 / s]),
        pytest.approx([0.25 / s] * 2),
    ]
    rms = math.sqrt((3 * 0.25**2 + 0.75**2) / 6)  # over all 6 leaves of the iteration
    assert scalars(GRPO("batch")(two_tasks()))[0][0] == pytest.approx([0.25 / rms, -0.75 / rms])
    assert scalars(GRPO("batch", std_floor=10.0)(two_tasks()))[0][0] == pytest.approx([0.025, -0.075])


def test_rloo_by_hand():
    assert scalars(RLOO("none")(two_tasks()))[0] == [pytest.approx([1 / 3, -1]), pytest.approx([1 / 3, 1 / 3])]


def test_tree_grpo_by_hand():
    assert scalars(TreeGRPO("intra", "none")(two_tasks()))[0] == [[0.5, -0.5], [0, 0]]
    assert scalars(TreeGRPO("inter", "none")(two_tasks()))[0] == [[0.25, -0.75], [0.25, 0.25]]
    assert scalars(TreeGRPO("both", "none")(two_tasks()))[0] == [[0.75, -1.25], [0.25, 0.25]]
    intra, inter = math.sqrt(0.5) + 1e-6, 0.5 + 1e-6
    expected = [0.5 / intra + 0.25 / inter, -0.5 / intra - 0.75 / inter]
    assert scalars(TreeGRPO("both", "group_std")(two_tasks()))[0][0] == pytest.approx(expected)
    rms = math.sqrt((0.75**2 + 1.25**2 + 2 * 0.25**2) / 6)  # of the sums of both levels
    assert scalars(TreeGRPO("both", "batch")(two_tasks()))[0][0] == pytest.approx([0.75 / rms, -1.25 / rms])


def test_published_singletons_leak_the_raw_return():
    chains = [group(chain_tree(1), chain_tree(0))]
    assert scalars(TreeGRPO("both", "none")(chains)) == [[[0.5], [-0.5]]]
    assert scalars(TreeGRPO("both", "none", "published")(chains)) == [[[1.5], [-0.5]]]
    assert scalars(GRPO("none", "published")([group(chain_tree(0.8))])) == [[[0.8]]]
    assert scalars(GRPO("none")([group(chain_tree(0.8))])) == [[[0.0]]]


def test_credit_covers_the_whole_path_but_not_the_root():
    tree = Tree("t")
    tree.add_root([1])
    for parent in (0, 1, 1, 0):
        tree.add_action(parent, [2], [-1.0], 0)
    tree.reward[3] = 1.0
    credit = spread(tree, f64(10, 20, 30))
    assert credit.leaves == [2, 3, 4]
    assert credit.advantage.tolist() == [[0, 0, 0], [10, 20, 0], [10, 0, 0], [0, 20, 0], [0, 0, 30]]


def test_failed_and_pruned_leaves_are_outside_everything():
    tree, clean = chain_tree(1, 0, 55, -99), chain_tree(1, 0)
    tree.status[3] = Status.FAILED
    tree.kept_leaves = [1, 2, 3]
    for estimator in (GRPO("batch"), RLOO("none"), TreeGRPO("both", "group_std")):
        credit, expected = estimator([group(tree)])[0][0], estimator([group(clean)])[0][0]
        assert credit.leaves == [1, 2]
        assert credit.advantage[:3].tolist() == expected.advantage.tolist()
        assert credit.advantage[3:].abs().sum() == 0


def test_a_task_whose_leaves_all_failed_gets_empty_credit():
    tree = chain_tree(1, 0)
    tree.status[1] = tree.status[2] = Status.FAILED
    for build in ESTIMATORS:
        ((credit,),) = build()([group(tree)])
        assert (credit.leaves, list(credit.advantage.shape)) == ([], [3, 0])
    assert GRPO()([]) == []


@pytest.mark.parametrize("build", ESTIMATORS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_bad_reward_is_named_and_does_not_spread(build, value):
    groups = [group(chain_tree(1, 0)), group(chain_tree(1, value, task_id="bad-7"), task_id="bad-7")]
    with pytest.raises(ValueError, match=r"task 'bad-7', tree 0: .* node 2 has return (nan|inf)"):
        build()(groups)
    groups[1].trees[0].status[2] = Status.FAILED  # a failed branch's reward is nobody's
    assert all(bool(torch.isfinite(c.advantage).all()) for trees in build()(groups) for c in trees)


@settings(max_examples=40)
@given(
    st.integers(0, 10_000), st.sampled_from(range(len(ESTIMATORS))), st.sampled_from(NORMALISATIONS), st.floats(-5, 5)
)
def test_shifting_all_rewards_changes_nothing_and_order_does_not_matter(seed, which, normalisation, shift):
    rng = random.Random(seed)
    rewards = [[rng.choice([0.0, 0.2, 1.0]) for _ in range(rng.randint(1, 4))] for _ in range(3)]
    estimator: AdvantageEstimator = ESTIMATORS[which](normalisation=normalisation)
    plain = scalars(estimator([group(*(chain_tree(*tree) for tree in rewards))]))[0]
    shifted = scalars(estimator([group(*(chain_tree(*[r + shift for r in tree]) for tree in rewards))]))[0]
    for tree, other in zip(plain, shifted, strict=True):
        assert tree == pytest.approx(other, abs=1e-9)
    turned = scalars(estimator([group(*(chain_tree(*tree[::-1]) for tree in rewards[::-1]))]))[0]
    for tree, other in zip(plain, turned[::-1], strict=True):
        assert tree == pytest.approx(other[::-1], abs=1e-9)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(NORMALISATIONS))
def test_advantages_of_a_task_sum_to_zero(seed, normalisation):
    rng = random.Random(seed)
    members = group(*(random_tree(rng, failures=0.2) for _ in range(3)))
    for build in ESTIMATORS:
        (credits,) = build(normalisation=normalisation)([members])
        total = sum(float(c.advantage[leaf, i]) for c in credits for i, leaf in enumerate(c.leaves))
        assert total == pytest.approx(0, abs=1e-9)


def test_zero_signal_counts_groups_with_leaves_and_no_advantage():
    failed = chain_tree(1)
    failed.status[1] = Status.FAILED
    groups = [*two_tasks(), group(chain_tree(1, 1)), group(failed)]
    assert zero_signal(GRPO()(groups)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalisation": "std"}, "normalisation must be one of 'group_std', 'none', 'batch', got 'std'"),
        ({"singletons": "one"}, "singletons must be one of"),
        ({"std_floor": 0.0}, "std_floor must be above 0"),
        ({"level": "all"}, "level must be one of 'both', 'intra', 'inter', got 'all'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TreeGRPO(**options)


# ---- aggregation ----


def uneven() -> tuple[list[RolloutGroup], list[list[Credit]]]:
    """Task a: a shared step of 2 tokens, then leaves of 1 and 3 (lengths 3 and 5); task b, silent: one of 4."""
    a = Tree("a")
    a.add_root([1])
    for parent, length, reward in ((0, 2, 0.0), (1, 1, 1.0), (1, 3, 0.0)):
        a.observe(a.add_action(parent, [1] * length, [-1.0] * length, 0), [7, 7], reward=reward)
    b = Tree("b")
    b.add_root([1])
    b.add_action(0, [1] * 4, [-1.0] * 4, 0)
    groups = [group(a, task_id="a"), group(b, task_id="b")]
    return groups, GRPO("none")(groups)


@pytest.mark.parametrize(
    ("mode", "length", "kept", "dropped"),
    [
        ("token_mean", None, [1 / 12, 1 / 12, 1 / 12], [1 / 8, 1 / 8, 0]),
        ("sequence_mean", None, [1 / 9, 1 / 15, 1 / 12], [1 / 6, 1 / 10, 0]),
        ("fixed_length", 10, [1 / 30, 1 / 30, 1 / 30], [1 / 20, 1 / 20, 0]),
    ],
)
def test_leaf_weights_by_hand(mode, length, kept, dropped):
    groups, credits = uneven()
    for choice, expected in (("keep", kept), ("drop", dropped)):
        weights = leaf_weights(groups, credits, mode, length, zero_signal_groups=choice)
        assert [len(tree) for trees in weights for tree in trees] == [2, 1]
        assert torch.cat([tree for trees in weights for tree in trees]).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean"])
def test_weights_of_a_step_sum_to_one_over_leaf_tokens(mode):
    groups, credits = uneven()
    (a,), (b,) = leaf_weights(groups, credits, mode)
    assert float(3 * a[0] + 5 * a[1] + 4 * b[0]) == pytest.approx(1)


@pytest.mark.parametrize(("mode", "length"), [("token_mean", None), ("sequence_mean", None), ("fixed_length", 6)])
def test_processes_that_share_a_step_sum_their_totals(mode, length):
    groups, credits = uneven()
    total = sum(step_total(groups[i : i + 1], credits[i : i + 1], mode) for i in range(2))
    parts = [leaf_weights(groups[i : i + 1], credits[i : i + 1], mode, length, total=total)[0] for i in range(2)]
    for part, whole in zip(parts, leaf_weights(groups, credits, mode, length), strict=True):
        assert part[0].tolist() == whole[0].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "mean"}, "mode must be one of 'token_mean', 'sequence_mean', 'fixed_length', got 'mean'"),
        ({"mode": "fixed_length"}, "needs a number of tokens"),
        ({"mode": "fixed_length", "fixed_length": 0}, "at least 1"),
        ({"mode": "token_mean", "fixed_length": 5}, "the other modes take none"),
        ({"zero_signal_groups": "lose"}, "zero_signal_groups must be one of 'keep', 'drop'"),
    ],
)
def test_bad_aggregation_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        leaf_weights([], [], **options)
