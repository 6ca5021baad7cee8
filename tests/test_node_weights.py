"""Shared tokens counted once or once per leaf, and tokens of one action credited apart."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.algorithms.aggregation import action_length, leaf_weights
from lit_treerl.algorithms.base import Credit
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.algorithms.node_weights import node_step_total, node_weights
from lit_treerl.modeling.packing import build_packs
from lit_treerl.trees.tree import ROOT, RolloutGroup, Tree
from lit_treerl.updates import UpdateConfig, plan_packs
from tree_cases import chain_tree, group, random_tree

MODES = [("token_mean", None), ("sequence_mean", None), ("fixed_length", 10)]


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uneven() -> tuple[list[RolloutGroup], list[list[Credit]]]:
    """Task a: a shared step of 2 tokens, then leaves of 1 and 3; task b, silent: one leaf of 4."""
    a, b = Tree("a"), Tree("b")
    a.add_root([1])
    b.add_root([1])
    for parent, length, reward in ((0, 2, 0.0), (1, 1, 1.0), (1, 3, 0.0)):
        a.observe(a.add_action(parent, [1] * length, [-1.0] * length, 0), [7, 7], reward=reward)
    b.add_action(0, [1] * 4, [-1.0] * 4, 0)
    groups = [group(a, task_id="a"), group(b, task_id="b")]
    return groups, GRPO("none")(groups)


@pytest.mark.parametrize(
    ("mode", "length", "expected", "silent"),
    [
        ("token_mean", None, [[0.5 / 10] * 2, [1 / 10, 0], [0, 1 / 10]], 1 / 10),  # 2 + 1 + 3 + 4 unique tokens
        ("sequence_mean", None, [[0.5 / 9, 0.5 / 15], [1 / 9, 0], [0, 1 / 15]], 1 / 12),  # 3 leaves of 3, 5 and 4
        ("fixed_length", 10, [[0.5 / 30] * 2, [1 / 30, 0], [0, 1 / 30]], 1 / 30),
    ],
)
def test_once_by_hand(mode, length, expected, silent):
    groups, credits = uneven()
    (a,), (b,) = node_weights(groups, credits, mode, length, count="once")
    assert [row.tolist() for row in a[1:]] == [pytest.approx(row) for row in expected]
    assert float(b[1, 0]) == pytest.approx(silent)
    (a,), (b,) = node_weights(groups, credits, mode, length, count="once", zero_signal_groups="drop")
    factor = {"token_mean": 10 / 6, "sequence_mean": 3 / 2, "fixed_length": 3 / 2}[mode]
    assert [row.tolist() for row in a[1:]] == [pytest.approx([x * factor for x in row]) for row in expected]
    assert not b.any()


@pytest.mark.parametrize(("mode", "length"), MODES)
def test_once_per_leaf_is_the_leafs_weight_on_its_path(mode, length):
    groups, credits = uneven()
    leaves = leaf_weights(groups, credits, mode, length)
    for nodes, weight, tree in zip(
        node_weights(groups, credits, mode, length), leaves, [g.trees[0] for g in groups], strict=True
    ):
        for column, leaf in enumerate(tree.training_leaves()):
            on_path = [node in tree.path(leaf) for node in range(len(tree))]
            assert nodes[0][:, column].tolist() == [float(weight[0][column]) * on for on in on_path]


@pytest.mark.parametrize("count", ["once", "per_leaf"])
@pytest.mark.parametrize(("mode", "length"), MODES)
def test_processes_that_share_a_step_sum_their_totals(mode, length, count):
    groups, credits = uneven()
    halves = [(groups[i : i + 1], credits[i : i + 1]) for i in range(2)]
    total = sum(node_step_total(*half, mode, count) for half in halves)
    whole = node_weights(groups, credits, mode, length, count=count)
    for half, expected in zip(halves, whole, strict=True):
        assert torch.equal(node_weights(*half, mode, length, count=count, total=total)[0][0], expected[0])


def test_bad_counts_are_named():
    with pytest.raises(ValueError, match="count must be one of 'per_leaf', 'once', got 'twice'"):
        node_weights([], [], count="twice")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode must be one of"):
        node_weights([], [], "mean", count="once")  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_token_mean_weighs_every_unique_token_alike(seed):
    rng = random.Random(seed)
    members = [group(*(random_tree(rng, failures=0.3, index=i) for i in range(2)))]
    credits = GRPO()(members)
    packs = build_packs(
        members, credits, node_weights(members, credits, count="once"), max_tokens=9999, dtype=torch.float64
    )
    for pack in packs:
        trained = pack.weight[pack.action]
        assert trained.tolist() == pytest.approx([1 / len(trained)] * len(trained))


# ---- the loss, token by token ----


def random_case(seed: int) -> tuple[list[RolloutGroup], list[list[Credit]]]:
    """Growing trees with prompts of their own, and credit that differs by node and leaf."""
    rng = random.Random(seed)
    trees = [random_tree(rng, failures=0.2, index=i, prompt=[i, 1]) for i in range(2)]
    credits = []
    for tree in trees:
        leaves = tree.training_leaves()
        advantage = torch.zeros(len(tree), len(leaves), dtype=torch.float64)
        for column, leaf in enumerate(leaves):
            for node in tree.path(leaf)[1:]:
                advantage[node, column] = rng.gauss(0, 1)
        credits.append(Credit(leaves, advantage))
    return [group(*trees)], [credits]


def surrogate(ratio: float, advantage: float) -> float:
    """PPO's clipped objective with a dual clip, as written in the papers."""
    gain = min(ratio * advantage, max(min(ratio, 1.2), 0.8) * advantage)
    return max(gain, 3.0 * advantage) if advantage < 0 else gain


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(MODES))
def test_counted_once_the_loss_is_a_plain_loop_over_unique_tokens(seed, mode):
    """Each unique token: the mean of its leaves' objectives, weighed as its aggregation says."""
    groups, credits = random_case(seed)
    aggregation, length = mode
    trees = groups[0].trees
    nodes = [
        (tree, credit, node, [c for c, leaf in enumerate(credit.leaves) if node in tree.path(leaf)])
        for tree, credit in zip(trees, credits[0], strict=True)
        for node in range(1, len(tree))
    ]
    nodes = [(tree, credit, node, below) for tree, credit, node, below in nodes if below]
    unique = sum(tree.action_len[node] for tree, _, node, _ in nodes)
    leaves = sum(len(credit.leaves) for credit in credits[0])

    rng, expected, new_of = random.Random(seed + 1), 0.0, {}
    for tree, credit, node, below in nodes:
        for i in range(tree.action_len[node]):
            new = new_of[tree.index, node, i] = rng.gauss(0, 0.6)  # the old log-probs are 0
            ratio, gain = torch.tensor(new, dtype=torch.float64).exp().item(), 0.0
            for column in below:
                share = {
                    "token_mean": 1 / unique,
                    "sequence_mean": 1 / (leaves * action_length(tree, credit.leaves[column])),
                    "fixed_length": 1 / (leaves * 10),
                }[aggregation]
                gain += share / len(below) * surrogate(ratio, float(credit.advantage[node, column]))
            expected -= gain

    weights = node_weights(groups, credits, aggregation, length, count="once")
    for pack in build_packs(groups, credits, weights, max_tokens=9999, dtype=torch.float64):
        order = [key for root in new_of_order(trees, credits[0]) for key in root]
        logprobs = torch.zeros(len(pack), dtype=torch.float64)
        logprobs[pack.action] = f64(*(new_of[key] for key in order))
        old = torch.zeros_like(logprobs)
        step = LossConfig(importance_cap=None)
        loss = policy_loss(replace(pack, old_logprobs=old), logprobs, torch.zeros_like(logprobs), step)[0]
        assert float(loss) == pytest.approx(expected, abs=1e-12)


def new_of_order(trees: list[Tree], credits: list[Credit]) -> list[list[tuple[int, int, int]]]:
    """Action tokens in the order of a pack: trees longest first, depth first, only what leads to a training leaf."""

    def walk(tree: Tree, node: int, needed: set[int]) -> list[tuple[int, int, int]]:
        out = [(tree.index, node, i) for i in range(tree.action_len[node])]
        for child in tree.children()[node]:
            out += walk(tree, child, needed) if child in needed else []
        return out

    found = []
    for tree, credit in zip(trees, credits, strict=True):
        needed = {node for leaf in credit.leaves for node in tree.path(leaf)}
        inner = {tree.parent[node] for node in needed}
        size = sum(len(tree.ids[n]) if n in inner else tree.action_len[n] for n in needed)
        if needed:
            found.append((size, walk(tree, ROOT, needed)))
    return [keys for _, keys in sorted(found, key=lambda sized: -sized[0])]


# ---- tokens credited apart ----


def test_golden_token_advantages_reach_their_tokens():
    tree = Tree("gold")  # prompt [1 2], action [3 4], observation [5], then actions [6 7 8] and [9]
    tree.add_root([1, 2])
    for parent, action, observation in ((0, [3, 4], [5]), (1, [6, 7, 8], []), (1, [9], [])):
        tree.observe(tree.add_action(parent, action, [-1.0] * len(action), 0), observation)
    tokens = [f64(), f64(1, -2), f64(0.5, 0, -4), f64(8)]
    means = torch.tensor([[0, 0], [-0.5, -0.5], [-3.5 / 3, 0], [0, 8]], dtype=torch.float64)
    credit = Credit([2, 3], means, tokens)
    weights = [[f64(0.25, 0.5)]]
    (pack,) = build_packs([group(tree)], [[credit]], weights, max_tokens=99, dtype=torch.float64)
    assert pack.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert pack.positive.tolist() == [0, 0, 0.75, 0, 0, 0.125, 0, 0, 4]  # the shared action weighs 0.25 + 0.5
    assert pack.negative.tolist() == [0, 0, 0, -1.5, 0, 0, 0, -1, 0]
    assert pack.weight.tolist() == [0, 0, 0.75, 0.75, 0, 0.25, 0.25, 0.25, 0.5]
    nodes = [[torch.tensor([[9, 9], [0.1, 0.2], [0.25, 9], [9, 0.5]], dtype=torch.float64)]]  # 9: off the path
    (pack,) = build_packs([group(tree)], [[credit]], nodes, max_tokens=99, dtype=torch.float64)
    assert pack.weight.tolist() == pytest.approx([0, 0, 0.3, 0.3, 0, 0.25, 0.25, 0.25, 0.5])
    assert pack.positive.tolist() == pytest.approx([0, 0, 0.3, 0, 0, 0.125, 0, 0, 4])


def test_only_leaves_without_any_token_advantage_are_skipped():
    tree = chain_tree(0, 0, 0)
    tokens = [f64(), f64(0), f64(0), f64(-1)]
    credit = Credit([1, 2, 3], torch.zeros(4, 3, dtype=torch.float64), tokens)
    weights = [[f64(0.5, 0.25, 0.125)]]
    (pack,) = build_packs([group(tree)], [[credit]], weights, max_tokens=9, dtype=torch.float64, skip_zero=True)
    assert pack.weight.tolist() == [0, 0, 0.125]
    wide = Tree("t")  # tokens that cancel in the node's mean
    wide.add_root([1])
    wide.add_action(0, [2, 3], [-1.0, -1.0], 0)
    cancel = Credit([1], torch.zeros(2, 1, dtype=torch.float64), [f64(), f64(1, -1)])
    (pack,) = build_packs([group(wide)], [[cancel]], [[f64(1)]], max_tokens=9, dtype=torch.float64, skip_zero=True)
    assert (pack.positive.tolist(), pack.negative.tolist()) == ([0, 1, 0], [0, 0, -1])


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["per_leaf", "once"]))
def test_equal_tokens_are_a_nodes_advantage(seed, count):
    """Credit by token, all tokens alike, packs as credit by node."""
    groups, credits = random_case(seed)
    by_node, by_token = [], []
    for tree, credit in zip(groups[0].trees, credits[0], strict=True):
        values = credit.advantage.sum(1)
        advantage = torch.where(credit.advantage != 0, values[:, None], 0.0)
        by_node.append(Credit(credit.leaves, advantage))
        tokens = [values[node].repeat(n) for node, n in enumerate(tree.action_len)]
        by_token.append(Credit(credit.leaves, advantage, tokens))
    weights = node_weights(groups, [by_node], "sequence_mean", count=count)
    for one, other in zip(
        *(build_packs(groups, [c], weights, max_tokens=999, dtype=torch.float64) for c in (by_node, by_token)),
        strict=True,
    ):
        for name in ("ids", "positive", "negative", "weight"):
            assert torch.allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-12)


def test_credit_and_weights_must_fit_the_tree():
    tree = chain_tree(1, 0)
    credit = Credit([1, 2], torch.zeros(3, 2, dtype=torch.float64))
    for shape in ((3,), (2, 2), (3, 2, 1)):
        with pytest.raises(ValueError, match=r"task 't', tree 0: weights of shape .* 3 nodes and 2 leaves"):
            build_packs([group(tree)], [[credit]], [[torch.ones(shape, dtype=torch.float64)]], max_tokens=9)
    short = Credit([1, 2], credit.advantage, [f64(), f64(1), f64()])
    with pytest.raises(ValueError, match=r"actions of \[0, 1, 1\] tokens, but token advantages for \[0, 1, 0\]"):
        build_packs([group(tree)], [[short]], [[f64(1, 1)]], max_tokens=9)


def test_updates_count_tokens_as_they_are_told():
    groups, credits = uneven()
    packs = {
        count: plan_packs(
            groups, credits, UpdateConfig(mini_batches=1, token_count=count), LossConfig(), random.Random(0)
        )
        for count in ("per_leaf", "once")
    }
    ((per_leaf,), (once,)) = packs["per_leaf"], packs["once"]
    assert per_leaf.weight[per_leaf.action].tolist() == pytest.approx([2 / 12] * 2 + [1 / 12] * 4)
    assert once.weight[once.action].tolist() == pytest.approx([1 / 10] * 6)
