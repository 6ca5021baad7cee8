"""Baselines and edge credit of GRPO and Tree-GRPO, against hand numbers and what must hold exactly."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.algorithms.advantages import counted_nodes, zero_signal
from lit_treerl.algorithms.base import AdvantageEstimator, Beliefs, Credit
from lit_treerl.algorithms.baselines import shrunken_mean
from lit_treerl.algorithms.edge import edge_advantages, edge_values
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.rloo import RLOO
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from tree_cases import chain_tree, group, random_tree

NAN = float("nan")


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def leaf_numbers(credits: list[list[Credit]]) -> list[list[list[float]]]:
    """The advantage that each leaf's last action got."""
    return [[c.advantage[c.leaves, range(len(c.leaves))].tolist() for c in trees] for trees in credits]


def two_tasks() -> list[RolloutGroup]:
    """Task a: trees with returns (1, 0) and (1, 1); task b: one tree with returns (0.5, 0.5)."""
    a = group(chain_tree(1, 0, task_id="a"), chain_tree(1, 1, task_id="a", index=1), task_id="a")
    return [a, group(chain_tree(0.5, 0.5, task_id="b"), task_id="b")]


def priors(a: float, b: float) -> list[list[Beliefs]]:
    return [[Beliefs(prior=a)] * 2, [Beliefs(prior=b)]]


# ---- leaf credit ----


def test_shrunken_mean_by_hand():
    assert shrunken_mean(f64(1, 0, 1, 1), 0.2, 2.0) == pytest.approx((3 + 0.4) / 6)
    assert shrunken_mean(f64(1, 0, 1, 1), None, 2.0) == 0.75
    assert shrunken_mean(f64(), 0.2, 2.0) == pytest.approx(0.2)
    assert shrunken_mean(f64(), 0.2, 0.0) == shrunken_mean(f64(), None, 1.0) == 0.0


def test_grpo_over_the_value_trees_prior_by_hand():
    found = GRPO("none", baseline="apvt")(two_tasks(), priors(0.3, 0.1))
    a, b = (3 + 2 * 0.3) / 6, (1 + 2 * 0.1) / 4
    assert leaf_numbers(found) == [
        [pytest.approx([1 - a, -a]), pytest.approx([1 - a] * 2)],
        [pytest.approx([0.5 - b] * 2)],  # equal returns, and yet no silence
    ]
    assert zero_signal(found) == 0
    other = GRPO("none", baseline="apvt", baseline_weight=1.0)(two_tasks(), priors(0.3, 0.1))
    assert leaf_numbers(other)[1][0] == pytest.approx([0.5 - (1 + 0.1) / 3] * 2)


def test_batch_normalisation_takes_all_leaves_of_the_iteration():
    raw = leaf_numbers(GRPO("none", baseline="apvt")(two_tasks(), priors(0.3, 0.1)))
    flat = [x for trees in raw for tree in trees for x in tree]
    rms = math.sqrt(sum(x * x for x in flat) / 6)
    found = leaf_numbers(GRPO(baseline="apvt")(two_tasks(), priors(0.3, 0.1)))
    assert [x for trees in found for tree in trees for x in tree] == pytest.approx([x / rms for x in flat])


@pytest.mark.parametrize("level", ["intra", "inter", "both"])
def test_tree_grpo_shrinks_the_trees_mean_towards_the_tasks(level):
    found = leaf_numbers(TreeGRPO(level, "none", baseline="apvt")(two_tasks(), priors(0.3, 0.1)))[0]
    task = (3 + 2 * 0.3) / 6
    first, second = (1 + 2 * task) / 4, (2 + 2 * task) / 4
    intra = [[1 - first, -first], [1 - second] * 2]
    inter = [[1 - task, -task], [1 - task] * 2]
    both = [[x + y for x, y in zip(a, b, strict=True)] for a, b in zip(intra, inter, strict=True)]
    expected = {"intra": intra, "inter": inter, "both": both}[level]
    assert found == [pytest.approx(tree) for tree in expected]


def test_no_weight_leaves_the_plain_group_mean():
    for build in (GRPO, TreeGRPO):
        plain = leaf_numbers(build(normalisation="none")(two_tasks()))
        found = leaf_numbers(
            build(normalisation="none", baseline="apvt", baseline_weight=0.0)(two_tasks(), priors(9, 9))
        )
        assert found == [[pytest.approx(tree) for tree in trees] for trees in plain]


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.floats(-1, 1), st.floats(0.1, 5))
def test_a_leafs_own_return_in_its_baseline_only_scales(returns, prior, k):
    """For independent leaves, as the docstring says."""
    members = group(*(chain_tree(r, index=i) for i, r in enumerate(returns)))
    beliefs = [[Beliefs(prior=prior)] * len(returns)]
    found = leaf_numbers(GRPO("none", baseline="apvt", baseline_weight=k)([members], beliefs))[0]
    n = len(returns)
    for i, r in enumerate(returns):
        others = (sum(returns[:i] + returns[i + 1 :]) + k * prior) / (n - 1 + k)
        assert found[i][0] == pytest.approx((n + k - 1) / (n + k) * (r - others), abs=1e-8)


def test_what_only_rounding_left_is_silent():
    members = [group(chain_tree(0.1 + 0.2, 0.3)), group(chain_tree(1, 0))]
    for credit in ("leaf", "edge"):
        found = GRPO(baseline="apvt", credit=credit)(members, [[Beliefs(prior=0.3)], [Beliefs(prior=0.3)]])
        assert zero_signal(found) == 1
        assert not found[0][0].advantage.any()


# ---- priors ----


def test_the_critics_value_of_the_first_state_is_the_prior_and_the_critic_learns_subtree_means():
    tree = Tree("a")  # root -> 1 -> {2: return 1, 3: return 0}, root -> 4: return 1
    tree.add_root([1])
    for parent, reward in ((0, 0.0), (1, 1.0), (1, 0.0), (0, 1.0)):
        tree.observe(tree.add_action(parent, [2], [-1.0], 0), reward=reward)
    estimator = GRPO("none", baseline="critic")
    assert (estimator.uses_critic, estimator.uses_value_tree) == (True, False)
    ((credit,),) = estimator([group(tree)], [[Beliefs(value=f64(0.4, NAN, NAN, NAN, NAN))]])
    b = (2 + 2 * 0.4) / 5
    assert leaf_numbers([[credit]])[0][0] == pytest.approx([1 - b, -b, 1 - b])
    assert credit.target is not None
    assert credit.target_weight is not None
    assert credit.target[:2].tolist() == [(0.5 + 1) / 2, 0.5]  # the plain leaf mean of the root is 2 / 3
    assert credit.target[2:].isnan().all()
    assert credit.target_weight.tolist() == [1, 1, 0, 0, 0]
    for normalisation in ("none", "batch"):
        ((edge,),) = GRPO(normalisation, baseline="critic", credit="edge")(
            [group(tree)], [[Beliefs(value=f64(0.4, 0, 0, 0, 0))]]
        )
        assert edge.target is not None
        assert edge.target[:2].tolist() == [0.75, 0.5]
    plain = GRPO("none", baseline="apvt")([group(tree)], [[Beliefs(prior=0.4)]])[0][0]
    assert plain.advantage.tolist() == credit.advantage.tolist()
    assert plain.target is None


def test_trees_of_a_task_share_the_mean_of_the_critics_values():
    members = group(chain_tree(1), chain_tree(0, index=1), chain_tree(5, index=2))
    members.trees[2].status[1] = Status.FAILED
    beliefs = [[Beliefs(value=f64(v, 0)) for v in (0.2, 0.4, NAN)]]
    b = (1 + 2 * 0.3) / 4
    assert leaf_numbers(GRPO("none", baseline="critic")([members], beliefs)) == [
        [pytest.approx([1 - b]), pytest.approx([-b]), []]
    ]


def test_the_running_mean_is_of_earlier_iterations_and_weighs_tasks_alike():
    estimator = GRPO("none", baseline="running_mean", momentum=0.75)
    assert estimator.state_dict() == {}
    first = leaf_numbers(estimator(two_tasks()))  # task means 0.75 and 0.5, though a has twice the leaves
    now = 0.625
    assert first[1][0] == pytest.approx([0.5 - (1 + 2 * now) / 4] * 2)  # no earlier one: its own
    assert estimator.state_dict() == {"running_mean": now}
    zeros = [group(chain_tree(0, 0))]
    assert leaf_numbers(estimator(zeros))[0][0] == pytest.approx([-2 * now / 4] * 2)
    assert estimator.state_dict() == {"running_mean": pytest.approx(0.75 * now)}
    again = GRPO("none", baseline="running_mean", momentum=0.75)
    again.load_state_dict(estimator.state_dict())
    assert leaf_numbers(again(zeros))[0][0] == pytest.approx([-2 * 0.75 * now / 4] * 2)
    assert leaf_numbers(estimator([])) == []
    assert estimator.state_dict() == {"running_mean": pytest.approx(0.75 * now)}  # nothing came, nothing moved


def test_a_task_that_no_value_tree_can_judge_falls_back_to_the_running_mean():
    estimator = GRPO("none", baseline="apvt")
    assert (estimator.uses_critic, estimator.uses_value_tree) == (False, True)
    assert leaf_numbers(estimator(two_tasks(), priors(NAN, 0.1)))[0][0][1] == pytest.approx(-(3 + 2 * 0.625) / 6)
    later = estimator([group(chain_tree(0, 0))], [[Beliefs(prior=NAN)]])
    assert leaf_numbers(later)[0][0] == pytest.approx([-2 * 0.625 / 4] * 2)


def test_published_estimators_keep_no_state_and_ask_for_no_beliefs():
    for estimator in (GRPO(), TreeGRPO(), RLOO()):
        estimator(two_tasks())
        assert estimator.state_dict() == {}
        assert (estimator.uses_critic, estimator.uses_value_tree, estimator.token_level) == (False, False, False)
        estimator.load_state_dict({})
        assert leaf_numbers(estimator(two_tasks(), priors(9, 9))) == leaf_numbers(estimator(two_tasks()))


@pytest.mark.parametrize("credit", ["leaf", "edge"])
@pytest.mark.parametrize("baseline", ["apvt", "critic", "running_mean"])
def test_failed_and_pruned_leaves_are_outside_everything(baseline, credit):
    tree, clean = chain_tree(1, 0, 55, NAN), chain_tree(1, 0)
    tree.status[4] = Status.FAILED
    tree.kept_leaves = [1, 2, 4]
    for build in (GRPO, TreeGRPO):
        found, expected = (
            build(baseline=baseline, credit=credit)([group(t)], [[Beliefs(value=v, prior=0.3)]])[0][0]
            for t, v in ((tree, f64(0.3, 0, 0, NAN, NAN)), (clean, f64(0.3, 0, 0)))
        )
        assert found.leaves == [1, 2]
        assert expected.advantage.any()
        assert found.advantage[:3].tolist() == expected.advantage.tolist()
        assert found.advantage[3:].abs().sum() == 0


@pytest.mark.parametrize("credit", ["leaf", "edge"])
@pytest.mark.parametrize("baseline", ["group", "apvt", "critic", "running_mean"])
def test_tasks_without_any_episode_and_bad_rewards(baseline, credit):
    dead, rootless = chain_tree(1), Tree("t")
    dead.status[1] = rootless.status[rootless.add_root([])] = Status.FAILED
    groups = [group(dead, rootless), group()]
    beliefs = [[Beliefs(value=f64(NAN, NAN), prior=NAN), Beliefs(value=f64(NAN), prior=NAN)], []]
    bad = [group(chain_tree(1, 0)), group(chain_tree(1, NAN, task_id="bad-7"), task_id="bad-7")]
    for build in (GRPO, TreeGRPO):
        estimator: AdvantageEstimator = build(baseline=baseline, credit=credit)
        credits = estimator(groups[:1], beliefs[:1])
        assert [c.leaves for c in credits[0]] == [[], []]
        assert estimator([], []) == []
        with pytest.raises(ValueError, match=r"task 'bad-7', tree 0: .* node 2 has return nan"):
            estimator(bad, [[Beliefs(value=f64(0, 0, 0), prior=0.0)]] * 2)
        assert [len(trees) for trees in estimator(groups, beliefs)] == [2, 0]


def test_missing_and_bad_beliefs_are_named():
    for baseline, name in (("apvt", "prior, of the value tree"), ("critic", "value, of the critic")):
        with pytest.raises(ValueError, match=f"task 'a', tree 0: the estimator needs Beliefs.{name}"):
            GRPO(baseline=baseline)(two_tasks())
    with pytest.raises(ValueError, match="task 'a', tree 0: the value tree's prior is inf"):
        GRPO(baseline="apvt")(two_tasks(), priors(math.inf, 0))
    with pytest.raises(ValueError, match="task 't', tree 0: the critic's value of node 0 is nan"):
        GRPO(baseline="critic")([group(chain_tree(1))], [[Beliefs(value=f64(NAN, 0))]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "mean"}, "baseline must be one of 'group', 'apvt', 'critic', 'running_mean', got 'mean'"),
        ({"credit": "node"}, "credit must be one of 'leaf', 'edge', got 'node'"),
        ({"baseline_weight": -1.0}, "must not be negative"),
        ({"baseline_weight": float("inf")}, "must be finite"),
        ({"edge_weight": NAN}, "must not be negative"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"normalisation": "group_std", "credit": "edge"}, "go with baseline 'group' and credit 'leaf' only"),
        ({"normalisation": "group_std", "baseline": "apvt"}, "not with baseline 'apvt' and credit 'leaf'"),
        ({"singletons": "published", "baseline": "apvt"}, "not with baseline 'apvt'"),
    ],
)
def test_bad_options_are_named(options, message):
    for build in (GRPO, TreeGRPO):
        with pytest.raises(ValueError, match=message):
            build(**options)


# ---- edges ----

# root 0 -> 1 -> {2: reward 1, 3 -> {4: reward 1, 5: reward 0}}, 0 -> 6: reward 0
PARENT, REWARD = [-1, 0, 1, 1, 3, 3, 0], [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_edge_values_by_hand():
    found = edge_values(PARENT, REWARD, [True] * 7, prior=0.5, weight=1.0)
    root = (2 * (0.75 / 2) + 0.5) / 3  # the mean at 1 is (1 + 0.5) / 2: 3 counts once, though two leaves are below it
    first = (2 * 0.75 + root) / 3
    assert found.tolist() == pytest.approx([root, first, 0, (2 * 0.5 + first) / 3, 0, 0, 0])
    plain = edge_values(PARENT, REWARD, [True] * 7, prior=99.0, weight=0.0)
    assert plain.tolist() == [0.375, 0.75, 0, 0.5, 0, 0, 0]
    advantages = edge_advantages(PARENT, REWARD, [True] * 7, prior=99.0, weight=0.0)
    assert advantages.tolist() == [0, 0.375, 0.25, -0.25, 0.5, -0.5, -0.375]


def test_a_step_that_changes_nothing_earns_nothing_though_it_was_rewarded():
    """Every path takes 1 at its first step and 0 after it: no action made a difference."""
    found = edge_advantages([-1, 0, 1, 1, 0, 4], [0, 1.0, 0, 0, 1.0, 0], [True] * 6, prior=1.0, weight=1.0)
    assert found.tolist() == pytest.approx([0] * 6)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(-1, 1), st.floats(0, 5))
def test_edges_telescope_to_the_return_less_the_value_of_the_root(seed, prior, weight):
    rng = random.Random(seed)
    tree = random_tree(rng, nodes=rng.randint(1, 12), failures=0.3)
    counted = counted_nodes(tree)
    values = edge_values(tree.parent, tree.reward, counted, prior=prior, weight=weight)
    advantages = edge_advantages(tree.parent, tree.reward, counted, prior=prior, weight=weight)
    for leaf in tree.training_leaves():
        total = float(advantages[tree.path(leaf)].sum())
        assert total == pytest.approx(tree.leaf_return(leaf) - float(values[0]), abs=1e-9)
    assert advantages[[node for node in range(len(tree)) if not counted[node]]].abs().sum() == 0


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_without_shrinkage_siblings_cancel(seed):
    """With weight 0 the children of a state are compared with their own mean."""
    rng = random.Random(seed)
    tree = random_tree(rng, nodes=12, failures=0.2)
    counted = counted_nodes(tree)
    found = edge_advantages(tree.parent, tree.reward, counted, prior=0.0, weight=0.0)
    for children in tree.children():
        assert float(found[children].sum()) == pytest.approx(0, abs=1e-9)


def tree_of(parent: list[int], reward: list[float], index: int = 0) -> Tree:
    tree = Tree("t", index=index)
    tree.add_root([1])
    for p, r in zip(parent[1:], reward[1:], strict=True):
        tree.observe(tree.add_action(p, [2], [-1.0], 0), [3], reward=r)
    return tree


@pytest.mark.parametrize("build", [GRPO, TreeGRPO])
@pytest.mark.parametrize(("baseline", "prior"), [("group", None), ("apvt", 0.2)])
def test_edge_credit_of_a_task_takes_its_baseline_at_the_root(build, baseline, prior):
    members = group(tree_of(PARENT, REWARD), chain_tree(1, index=1))
    estimator = build(normalisation="none", credit="edge", baseline=baseline)
    ((first, second),) = estimator([members], [[Beliefs(prior=prior)] * 2])
    b = shrunken_mean(f64(1, 1, 0, 0, 1), prior, 2.0)
    _, a1, a2, a3, a4, a5, a6 = edge_advantages(PARENT, REWARD, [True] * 7, prior=b, weight=1.0).tolist()
    assert first.leaves == [2, 4, 5, 6]
    assert first.advantage.tolist() == [
        [0, 0, 0, 0],
        pytest.approx([a1, a1, a1, 0]),
        pytest.approx([a2, 0, 0, 0]),
        pytest.approx([0, a3, a3, 0]),
        pytest.approx([0, a4, 0, 0]),
        pytest.approx([0, 0, a5, 0]),
        pytest.approx([0, 0, 0, a6]),
    ]
    assert second.advantage.tolist() == [[0], [pytest.approx(1 - (1 + b) / 2)]]  # one child, and the prior as one


def test_edge_credit_is_scaled_by_the_root_mean_square_over_edges():
    members = [group(tree_of(PARENT, REWARD)), group(chain_tree(1, 0))]
    raw = GRPO("none", credit="edge")(members)
    edges = [float(c.advantage[node].abs().max()) for (c,) in raw for node in range(1, len(c.advantage))]
    rms = math.sqrt(sum(x * x for x in edges) / 8)
    found = GRPO(credit="edge")(members)
    assert found[0][0].advantage.tolist() == [pytest.approx(row) for row in (raw[0][0].advantage / rms).tolist()]
    assert rms > 0.05


def test_equal_returns_have_no_edges_under_the_group_baseline():
    members = [group(tree_of([-1, 0, 1, 0], [0, 0.3, 0.1 + 0.2, 0.6])), group(chain_tree(1))]
    members.append(group(chain_tree(50.1, 50.1 + 4e-6)))  # one float32 step apart
    found = GRPO(credit="edge")(members)
    assert zero_signal(found) == 3
    assert [credit.leaves for trees in found for credit in trees] == [[2, 3], [1], [1, 2]]
