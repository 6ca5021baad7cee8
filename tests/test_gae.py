"""Generalised advantages against closed forms, by hand, and against a plain recursion."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.algorithms.advantages import counted_nodes
from lit_treerl.algorithms.gae import back_up, lambda_returns, monte_carlo_values, token_gae, tree_gae
from lit_treerl.trees.tree import Tree
from tree_cases import random_tree

NAN = float("nan")


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def chain(rewards: list[float]) -> tuple[list[int], list[float], list[bool]]:
    """Parents, rewards and counted flags of a root and one node per reward."""
    return [*range(-1, len(rewards))], [0.0, *rewards], [True] * (len(rewards) + 1)


def ordinary_gae(rewards: list[float], values: list[float], g: float, lam: float) -> list[float]:
    """The textbook's backward loop over one episode; values of the states before each step."""
    out, after = [], 0.0
    for t in reversed(range(len(rewards))):
        nxt = values[t + 1] if t + 1 < len(rewards) else 0.0
        after = rewards[t] + g * nxt - values[t] + g * lam * after
        out.append(after)
    return out[::-1]


REWARDS, VALUES = [0.5, -1.0, 0.25, 2.0], [0.3, 0.7, -0.2, 1.1]


@pytest.mark.parametrize("g", [1.0, 0.9])
def test_lambda_0_gives_the_td_error_and_lambda_1_the_return_minus_the_value(g):
    parent, reward, counted = chain(REWARDS)
    value = f64(*VALUES, 55.0)  # of the end: never looked at
    td = tree_gae(parent, reward, value, discount=g, gae_lambda=0.0, counted=counted)
    expected = [r + g * nxt - v for r, v, nxt in zip(REWARDS, VALUES, [*VALUES[1:], 0.0], strict=True)]
    assert td.tolist() == pytest.approx([0.0, *expected])
    full = tree_gae(parent, reward, value, discount=g, gae_lambda=1.0, counted=counted)
    to_go = [sum(g**i * r for i, r in enumerate(REWARDS[t:])) for t in range(4)]
    assert full.tolist() == pytest.approx([0.0, *(r - v for r, v in zip(to_go, VALUES, strict=True))])
    assert lambda_returns(parent, value, full, counted).tolist()[:4] == pytest.approx(to_go)
    assert math.isnan(lambda_returns(parent, value, full, counted)[4])


def test_constant_td_errors_sum_to_a_geometric_series():
    g, lam, steps = 0.9, 0.8, 6
    parent, reward, counted = chain([1.0] * steps)
    found = tree_gae(parent, reward, torch.zeros(steps + 1), discount=g, gae_lambda=lam, counted=counted)
    q = g * lam
    assert found.tolist()[1:] == pytest.approx([(1 - q ** (steps - t)) / (1 - q) for t in range(steps)])


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8), st.floats(0.1, 1), st.floats(0, 1)
)
def test_on_a_chain_it_is_the_ordinary_recursion(steps, g, lam):
    rewards, values = [r for r, _ in steps], [v for _, v in steps]
    parent, reward, counted = chain(rewards)
    found = tree_gae(parent, reward, f64(*values, NAN), discount=g, gae_lambda=lam, counted=counted)
    expected = ordinary_gae(rewards, values, g, lam)
    assert found.tolist() == pytest.approx([0.0, *expected], abs=1e-12)
    targets = lambda_returns(parent, f64(*values, NAN), found, counted)
    assert targets.tolist()[:-1] == pytest.approx([v + a for v, a in zip(values, expected, strict=True)], abs=1e-12)


# root 0 -> 1 -> {2, 3 -> {4, 5}}, 0 -> 6; node 3 has two leaves below it, and still counts as one child of 1
FORK_PARENT = [-1, 0, 1, 1, 3, 3, 0]
FORK_REWARD = [0.0, 0.5, 1.0, 0.0, 2.0, 4.0, -1.0]
FORK_VALUE = [0.2, 0.4, 9.0, 0.6, 9.0, 9.0, 9.0]


def test_a_fork_by_hand():
    g, lam = 0.5, 0.5
    found = tree_gae(FORK_PARENT, FORK_REWARD, f64(*FORK_VALUE), discount=g, gae_lambda=lam, counted=[True] * 7)
    a4, a5 = 2 - 0.6, 4 - 0.6
    a3 = 0 + 0.5 * 0.6 - 0.4 + 0.25 * (a4 + a5) / 2  # 0.5
    a2 = 1 - 0.4
    a1 = 0.5 + 0.5 * 0.4 - 0.2 + 0.25 * (a2 + a3) / 2
    assert (a3, a1) == pytest.approx((0.5, 0.6375))
    assert found.tolist() == pytest.approx([0, a1, a2, a3, a4, a5, -1.2])
    targets = lambda_returns(FORK_PARENT, f64(*FORK_VALUE), found, [True] * 7).tolist()
    assert [targets[i] for i in (0, 1, 3)] == pytest.approx([0.2 + (a1 - 1.2) / 2, 0.4 + (a2 + a3) / 2, 3.0])
    assert all(math.isnan(targets[i]) for i in (2, 4, 5, 6))


def test_children_weigh_alike_however_many_leaves_each_has():
    values = monte_carlo_values(FORK_PARENT, FORK_REWARD, [True] * 7).tolist()
    assert [values[i] for i in (0, 1, 3)] == [(0.5 + 2.0 - 1) / 2, (1 + 3) / 2, 3]  # the leaf mean at 1 is 7 / 3
    assert all(math.isnan(values[i]) for i in (2, 4, 5, 6))


def test_uncounted_nodes_take_no_part_whatever_they_hold():
    parent, reward, value = [*FORK_PARENT, 1, 7], [*FORK_REWARD, NAN, NAN], [*FORK_VALUE, NAN, NAN]
    counted = [True] * 7 + [False] * 2
    for lam in (0.0, 0.7):
        clean = tree_gae(FORK_PARENT, FORK_REWARD, f64(*FORK_VALUE), discount=1.0, gae_lambda=lam, counted=[True] * 7)
        found = tree_gae(parent, reward, f64(*value), discount=1.0, gae_lambda=lam, counted=counted)
        assert found.tolist() == [*clean.tolist(), 0, 0]
        targets = lambda_returns(parent, f64(*value), found, counted)
        assert (
            targets[[0, 1, 3]].tolist()
            == lambda_returns(FORK_PARENT, f64(*FORK_VALUE), clean, [True] * 7)[[0, 1, 3]].tolist()
        )
        assert targets[7:].isnan().all()
    with pytest.raises(ValueError, match="node 8 is counted, but its parent 7 is not"):
        back_up(parent, [True] * 7 + [False, True], lambda node, after: 0.0)


def test_a_state_with_no_counted_child_is_an_end():
    """A pruned or failed continuation: what the critic says of the state it started from is not bootstrapped."""
    found = tree_gae(
        [-1, 0, 1], [0, 1.0, 5.0], f64(0.25, 7, 7), discount=1, gae_lambda=0.5, counted=[True, True, False]
    )
    assert found.tolist() == [0, 0.75, 0]


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.1, 1), st.floats(0, 1))
def test_random_trees_against_plain_recursion(seed, g, lam):
    rng = random.Random(seed)
    tree = random_tree(rng, nodes=rng.randint(0, 12), failures=0.3)
    value = torch.tensor([rng.uniform(-1, 1) for _ in range(len(tree))], dtype=torch.float64)
    counted, children = counted_nodes(tree), tree.children()

    def below(node: int) -> list[int]:
        return [child for child in children[node] if counted[child]]

    def advantage(node: int) -> float:
        nxt = below(node)
        out = tree.reward[node] - float(value[tree.parent[node]])
        if nxt:
            out += g * float(value[node]) + g * lam * sum(advantage(child) for child in nxt) / len(nxt)
        return out

    found = tree_gae(tree.parent, tree.reward, value, discount=g, gae_lambda=lam, counted=counted)
    expected = [advantage(node) if node and counted[node] else 0.0 for node in range(len(tree))]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    ones = tree_gae(tree.parent, tree.reward, value, discount=1.0, gae_lambda=1.0, counted=counted)
    returns = lambda_returns(tree.parent, value, ones, counted)
    plain = monte_carlo_values(tree.parent, tree.reward, counted)
    assert returns.isnan().tolist() == plain.isnan().tolist() == [not below(node) for node in range(len(tree))]
    assert returns.nan_to_num().tolist() == pytest.approx(plain.nan_to_num().tolist(), abs=1e-12)


# ---- tokens ----


def token_chain(
    lengths: list[int], rng: random.Random
) -> tuple[list[float], torch.Tensor, list[torch.Tensor], list[int]]:
    """Rewards, values, token values and lengths of a chain of actions below the root."""
    rewards = [0.0, *(rng.uniform(-1, 1) for _ in lengths)]
    values = f64(*(rng.uniform(-1, 1) for _ in rewards))
    tokens = [f64(*(rng.uniform(-1, 1) for _ in range(n - 1))) for n in [0, *lengths]]
    return rewards, values, tokens, [0, *lengths]


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("lengths", [[1], [3], [1, 1, 1], [2, 4, 1, 3]])
def test_tokens_of_a_chain_are_the_ordinary_recursion_over_all_action_tokens(lengths, lam):
    g = 0.9
    rewards, values, tokens, action_len = token_chain(lengths, random.Random(len(lengths)))
    parent, _, counted = chain(rewards[1:])
    found = token_gae(parent, rewards, values, tokens, action_len, discount=g, gae_lambda=lam, counted=counted)
    flat_rewards, flat_values = [], []
    for node, n in enumerate(lengths, 1):
        flat_rewards += [0.0] * (n - 1) + [rewards[node]]
        flat_values += [float(values[node - 1]), *tokens[node].tolist()]
    expected = ordinary_gae(flat_rewards, flat_values, g, lam)
    assert [len(some) for some in found.advantage] == action_len
    assert torch.cat(found.advantage).tolist() == pytest.approx(expected)
    targets = [v + a for v, a in zip(flat_values, expected, strict=True)]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    assert found.target[:-1].tolist() == pytest.approx([targets[i] for i in starts])
    assert torch.cat(found.token_target).tolist() == pytest.approx(
        [t for i, t in enumerate(targets) if i not in starts]
    )


def test_tokens_of_a_fork_by_hand():
    # root -> 1 (2 tokens) -> 2 (1 token, reward 1), 3 (3 tokens, reward 0)
    parent, reward, value = [-1, 0, 1, 1], [0, 0.0, 1.0, 0.0], f64(0.5, 0.25, 9, 9)
    tokens = [f64(), f64(0.4), f64(), f64(0.2, 0.1)]
    found = token_gae(parent, reward, value, tokens, [0, 2, 1, 3], discount=1.0, gae_lambda=0.5, counted=[True] * 4)
    third = [0.2 - 0.25 + 0.5 * (0.1 - 0.2 + 0.5 * -0.1), 0.1 - 0.2 + 0.5 * -0.1, -0.1]
    second = [1 - 0.25]
    last = 0.25 - 0.4 + 0.5 * (second[0] + third[0]) / 2
    first = [0.4 - 0.5 + 0.5 * last, last]
    assert [some.tolist() for some in found.advantage] == [
        [],
        pytest.approx(first),
        pytest.approx(second),
        pytest.approx(third),
    ]
    assert found.target[:2].tolist() == pytest.approx([0.5 + first[0], 0.25 + (second[0] + third[0]) / 2])
    assert found.token_target[1].tolist() == pytest.approx([0.4 + last])
    assert found.token_target[3].tolist() == pytest.approx([0.2 + third[1], 0.1 + third[2]])
    assert found.target[2:].isnan().all()


def test_actions_of_one_token_are_turns():
    rng = random.Random(3)
    tree: Tree = random_tree(rng, nodes=12, failures=0.2)
    value = torch.tensor([rng.random() for _ in range(len(tree))], dtype=torch.float64)
    counted, none = counted_nodes(tree), [f64()] * len(tree)
    options = {"discount": 0.9, "gae_lambda": 0.7, "counted": counted}
    turns = tree_gae(tree.parent, tree.reward, value, **options)
    found = token_gae(tree.parent, tree.reward, value, none, [0] + [1] * (len(tree) - 1), **options)
    assert torch.cat(found.advantage).tolist() == pytest.approx(turns[1:].tolist())
    returns = lambda_returns(tree.parent, value, turns, counted)
    assert found.target.nan_to_num().tolist() == pytest.approx(returns.nan_to_num().tolist())


def test_an_action_without_tokens_passes_its_reward_on():
    parent, counted = [-1, 0, 1, 2], [True] * 4
    found = token_gae(
        parent, [0, 0, 1.0, 0.5], f64(0, 0, 0, 0), [f64()] * 4, [0, 1, 0, 1], discount=1, gae_lambda=1, counted=counted
    )
    assert [some.tolist() for some in found.advantage] == [[], [1.5], [], [0.5]]
    assert found.target[:3].tolist() == [1.5, 1.5, 0.5]


def test_token_values_must_fit_and_uncounted_nodes_have_nothing_to_learn():
    parent, tokens = [-1, 0, 0], [f64(), f64(0.1), f64(NAN, NAN)]
    found = token_gae(
        parent, [0, 1.0, NAN], f64(0, 0, 0), tokens, [0, 2, 3], discount=1, gae_lambda=1, counted=[True, True, False]
    )
    assert [some.tolist() for some in found.advantage] == [[], [1.0, 0.9], [0, 0, 0]]
    assert found.token_target[1].tolist() == [1.0]
    assert found.token_target[2].isnan().tolist() == [True, True]
    with pytest.raises(ValueError, match="node 2: 3 action tokens, but 1 token values"):
        token_gae(
            parent,
            [0, 1, 1],
            f64(0, 0, 0),
            [f64(), f64(1), f64(1)],
            [0, 2, 3],
            discount=1,
            gae_lambda=1,
            counted=[True] * 3,
        )
