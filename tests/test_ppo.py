"""PPO and TreePPO: advantages, normalisation and the critic's targets."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.algorithms.advantages import counted_nodes, is_zero_signal
from lit_treerl.algorithms.base import Beliefs, Credit
from lit_treerl.algorithms.gae import lambda_returns, tree_gae
from lit_treerl.algorithms.ppo import PPO
from lit_treerl.algorithms.tree_ppo import TreePPO
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from tree_cases import chain_tree, group, random_tree

NAN = float("nan")


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def grown(*nodes: tuple[int, int, float], task_id: str = "t") -> Tree:
    """A tree from (parent, action tokens, reward)."""
    tree = Tree(task_id)
    tree.add_root([1])
    for parent, length, reward in nodes:
        tree.observe(tree.add_action(parent, [2] * length, [-1.0] * length, 0), [3], reward=reward)
    for leaf in tree.leaves():
        tree.status[leaf] = Status.TERMINAL
    return tree


def fork() -> Tree:
    """Root -> 1 (2 tokens) -> 2 (1 token, reward 1) and 3 (3 tokens, reward 0)."""
    return grown((0, 2, 0.0), (1, 1, 1.0), (1, 3, 0.0))


VALUE = f64(0.5, 0.25, NAN, NAN)
A1 = 0.25 - 0.5 + 0.5 * (0.75 - 0.25) / 2  # lambda 0.5
BY_HAND = [0.0, A1, 0.75, -0.25]
PLAIN = {"normalisation": "none", "gae_lambda": 0.5}


def only(credits: list[list[Credit]]) -> Credit:
    ((credit,),) = credits
    return credit


def test_a_nodes_advantage_reaches_every_leaf_below_it():
    credit = only(PPO(**PLAIN)([group(fork())], [[Beliefs(value=VALUE)]]))
    assert credit.leaves == [2, 3]
    assert credit.advantage.tolist() == [[0, 0], [A1, A1], [0.75, 0], [0, -0.25]]
    assert credit.token_advantage is None


def test_critic_targets_are_lambda_returns_of_every_state_but_the_ends():
    credit = only(PPO(**PLAIN)([group(fork())], [[Beliefs(value=VALUE)]]))
    assert credit.target is not None
    assert credit.target_weight is not None
    assert credit.target[:2].tolist() == pytest.approx([0.5 + A1, 0.25 + 0.25])
    assert credit.target[2:].isnan().all()
    assert credit.target_weight.tolist() == [1, 1, 0, 0]


def test_batch_normalisation_is_over_unique_action_tokens_of_the_whole_iteration():
    trees, beliefs = [fork(), grown((0, 4, 1.0))], [[Beliefs(value=VALUE)], [Beliefs(value=f64(0.5, 0))]]
    groups = [group(tree) for tree in trees]
    credits = PPO(gae_lambda=0.5)(groups, beliefs)
    tokens = f64(*[A1] * 2, 0.75, *[-0.25] * 3, *[0.5] * 4)  # node 1 once, though two leaves share it
    expected = ((tokens - tokens.mean()) / tokens.std(correction=0)).tolist()
    assert credits[0][0].advantage.tolist() == [
        [0, 0],
        pytest.approx([expected[0]] * 2),
        pytest.approx([expected[2], 0]),
        pytest.approx([0, expected[3]]),
    ]
    assert float(credits[1][0].advantage[1, 0]) == pytest.approx(expected[6])
    raw = PPO(gae_lambda=0.5, centre=False)(groups, beliefs)
    assert float(raw[1][0].advantage[1, 0]) == pytest.approx(0.5 / float(tokens.square().mean().sqrt()))


def test_the_std_has_a_floor():
    groups, beliefs = [group(chain_tree(1, 1))], [[Beliefs(value=f64(1 - 1e-5, 0, 0))]]
    credit = only(PPO(std_floor=1e-3, centre=False)(groups, beliefs))
    assert credit.advantage[1, 0] == pytest.approx(1e-2)
    assert only(PPO()(groups, beliefs)).advantage.abs().max() < 1e-12


def test_token_level_credit_holds_tokens_and_their_mean():
    beliefs = Beliefs(value=VALUE, token_value=[f64(), f64(0.4), f64(), f64(0.2, 0.1)])
    credit = only(PPO("token", **PLAIN)([group(fork())], [[beliefs]]))
    third = [0.2 - 0.25 + 0.5 * (0.1 - 0.2 + 0.5 * -0.1), 0.1 - 0.2 + 0.5 * -0.1, -0.1]
    last = 0.25 - 0.4 + 0.5 * (0.75 + third[0]) / 2
    first = [0.4 - 0.5 + 0.5 * last, last]
    assert credit.token_advantage is not None
    assert credit.token_target is not None
    assert credit.target is not None
    assert [some.tolist() for some in credit.token_advantage] == [
        [],
        pytest.approx(first),
        [0.75],
        pytest.approx(third),
    ]
    assert credit.advantage[1].tolist() == pytest.approx([sum(first) / 2] * 2)
    assert credit.advantage[:, 1].tolist() == pytest.approx([0, sum(first) / 2, 0, sum(third) / 3])
    assert credit.target[:2].tolist() == pytest.approx([0.5 + first[0], 0.25 + (0.75 + third[0]) / 2])
    assert credit.token_target[3].tolist() == pytest.approx([0.2 + third[1], 0.1 + third[2]])
    batch = only(PPO("token", gae_lambda=0.5)([group(fork())], [[beliefs]]))
    tokens = f64(*first, 0.75, *third)
    assert batch.token_advantage is not None
    assert torch.cat(batch.token_advantage).tolist() == pytest.approx(
        ((tokens - tokens.mean()) / tokens.std(correction=0)).tolist()
    )
    assert PPO("token").token_level
    assert not PPO().token_level


def test_tokens_that_cancel_are_no_silence():
    credit = Credit([1], torch.zeros(2, 1), [f64(), f64(1, -1)])
    assert not is_zero_signal([credit])
    assert is_zero_signal([Credit([1], torch.zeros(2, 1), [f64(), f64(0, 0)])])


def failing() -> tuple[Tree, Tree]:
    """A tree with failed and pruned leaves, and the same without them."""
    tree = grown((0, 2, 0.0), (1, 1, 1.0), (1, 3, 0.0), (1, 1, NAN), (0, 2, 0.0), (5, 1, NAN), (0, 3, 9.0))
    tree.status[4] = tree.status[6] = Status.FAILED
    tree.kept_leaves = [2, 3, 4, 6]
    return tree, fork()


@pytest.mark.parametrize("level", ["turn", "token"])
def test_failed_and_pruned_leaves_are_outside_everything(level):
    tree, clean = failing()
    value = f64(0.5, 0.25, *[NAN] * 6)
    tokens = [torch.full((max(n - 1, 0),), 0.1 if node < 4 else NAN) for node, n in enumerate(tree.action_len)]
    found = only(PPO(level)([group(tree)], [[Beliefs(value=value, token_value=tokens)]]))
    expected = only(PPO(level)([group(clean)], [[Beliefs(value=value[:4], token_value=tokens[:4])]]))
    assert found.leaves == expected.leaves == [2, 3]
    assert found.advantage[:4].tolist() == expected.advantage.tolist()
    assert found.advantage[4:].abs().sum() == 0
    assert found.target is not None
    assert found.target_weight is not None
    assert expected.target is not None
    assert found.target[:2].tolist() == expected.target[:2].tolist()
    assert found.target_weight.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    if level == "token":
        assert found.token_advantage is not None
        assert expected.token_advantage is not None
        assert [t.tolist() for t in found.token_advantage[:4]] == [t.tolist() for t in expected.token_advantage]
        assert torch.cat(found.token_advantage[4:]).abs().sum() == 0


@pytest.mark.parametrize("build", [PPO, lambda: TreePPO(mixture=False), lambda: PPO("token")])
def test_tasks_without_any_episode_get_empty_credit(build):
    dead = chain_tree(1, 0)
    dead.status[1] = dead.status[2] = Status.FAILED
    rootless = Tree("t")
    rootless.add_root([])
    rootless.status[0] = Status.FAILED
    groups = [group(dead), group(rootless), group()]
    nothing = [f64(NAN, NAN, NAN), f64(NAN)]
    beliefs = [[Beliefs(value=v, token_value=[f64()] * len(v))] for v in nothing] + [[]]
    for credit in (credit for some in build()(groups, beliefs) for credit in some):
        assert credit.leaves == []
        assert credit.target_weight is not None
        assert credit.target_weight.abs().sum() == 0
    assert build()([], []) == []


@pytest.mark.parametrize("build", [PPO, TreePPO])
def test_what_cannot_be_credited_is_named(build):
    groups = [group(chain_tree(1, 0)), group(chain_tree(1, NAN, task_id="bad-7"), task_id="bad-7")]
    some = Beliefs(value=f64(0, 0, 0), mean=f64(0, 0, 0), trust=f64(0, 0, 0), count=f64(1, 1, 1))
    with pytest.raises(ValueError, match=r"task 'bad-7', tree 0: .* node 2 has return nan"):
        build()(groups, [[some], [some]])
    groups = groups[:1]
    with pytest.raises(ValueError, match=r"task 't', tree 0: the estimator needs Beliefs.value, of the critic"):
        build()(groups)
    with pytest.raises(ValueError, match=r"task 't', tree 0: the critic's value of node 0 is nan"):
        build()(groups, [[Beliefs(value=f64(NAN, 0, 0), mean=some.mean, trust=some.trust, count=some.count)]])
    with pytest.raises(ValueError, match=r"task 't', tree 0: 3 nodes but Beliefs.value of 2"):
        build()(groups, [[Beliefs(value=f64(0, 0))]])
    with pytest.raises(ValueError, match=r"1 groups but beliefs of 2"):
        build()(groups, [[some], [some]])
    with pytest.raises(ValueError, match=r"task 't': 1 trees but beliefs of 2"):
        build()(groups, [[some, some]])
    with pytest.raises(ValueError, match=r"needs Beliefs.token_value, of the critic, token by token"):
        build("token")(groups, [[some]])
    bad = Beliefs(value=some.value, token_value=[f64()] * 3, mean=some.mean, trust=some.trust, count=some.count)
    long = grown((0, 2, 1.0), (0, 1, 0.0))
    with pytest.raises(ValueError, match="node 1: 2 action tokens, but 0 token values"):
        build("token")([group(long)], [[bad]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "step"}, "level must be one of 'turn', 'token', got 'step'"),
        ({"normalisation": "group_std"}, "normalisation must be one of 'batch', 'none'"),
        ({"discount": 0.0}, r"discount must be in \(0, 1\]"),
        ({"gae_lambda": 1.5}, r"gae_lambda in \[0, 1\]"),
        ({"std_floor": 0.0}, "std_floor must be above 0"),
        ({"weight_saturation": 0.0}, "weight_saturation must be above 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TreePPO(**options)


# ---- TreePPO ----


def value_tree_beliefs() -> Beliefs:
    return Beliefs(value=VALUE, mean=f64(0.6, 0.9, NAN, 0.5), trust=f64(0.75, 0.5, 0, 0.5), count=f64(9, 1, 0, 1))


def test_tree_ppo_mixes_the_value_trees_mean_with_the_lambda_return():
    credit = only(TreePPO(**PLAIN)([group(fork())], [[value_tree_beliefs()]]))
    assert credit.target is not None
    assert credit.target_weight is not None
    assert credit.target[:2].tolist() == pytest.approx([0.75 * 0.6 + 0.25 * (0.5 + A1), 0.5 * 0.9 + 0.5 * 0.5])
    assert credit.target[2:].isnan().all()
    assert credit.target_weight.tolist() == [1, 0.5, 0, 0]  # sqrt(1 / 4), and full from 4 samples on
    assert only(
        TreePPO(**PLAIN, weight_saturation=1.0)([group(fork())], [[value_tree_beliefs()]])
    ).target_weight.tolist() == [1, 1, 0, 0]  # type: ignore[union-attr]
    assert credit.advantage.tolist() == only(PPO(**PLAIN)([group(fork())], [[Beliefs(VALUE)]])).advantage.tolist()


def test_a_state_the_value_tree_does_not_know_learns_the_lambda_return():
    beliefs = Beliefs(value=VALUE, mean=f64(NAN, 0.9, 0, 0), trust=f64(0, 0.5, 0, 0), count=f64(0, 1, 0, 0))
    credit = only(TreePPO(**PLAIN)([group(fork())], [[beliefs]]))
    assert credit.target is not None
    assert credit.target_weight is not None
    assert float(credit.target[0]) == 0.5 + A1
    assert credit.target_weight.tolist()[:2] == [0, 0.5]
    bad = Beliefs(value=VALUE, mean=f64(NAN, 0.9, 0, 0), trust=f64(0.1, 0.5, 0, 0), count=f64(1, 1, 0, 0))
    with pytest.raises(ValueError, match="the value tree's mean of node 0 is nan"):
        TreePPO()([group(fork())], [[bad]])
    with pytest.raises(ValueError, match=r"needs Beliefs.mean, of the value tree"):
        TreePPO()([group(fork())], [[Beliefs(value=VALUE)]])


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["turn", "token"]), st.sampled_from(["batch", "none"]))
def test_without_the_mixture_tree_ppo_is_ppo(seed, level, normalisation):
    rng = random.Random(seed)
    groups = [
        RolloutGroup(group().task, [random_tree(rng, failures=0.3, nodes=rng.randint(1, 9)) for _ in range(2)])
        for _ in range(2)
    ]
    beliefs = [
        [
            Beliefs(
                value=f64(*(rng.random() for _ in range(len(tree)))),
                token_value=[f64(*(rng.random() for _ in range(n - 1))) for n in tree.action_len],
            )
            for tree in some.trees
        ]
        for some in groups
    ]
    without = TreePPO(level, normalisation=normalisation, mixture=False)
    assert (without.uses_value_tree, without.uses_critic, TreePPO().uses_value_tree) == (False, True, True)
    plain = PPO(level, normalisation=normalisation)(groups, beliefs)
    for one, other in zip(without(groups, beliefs), plain, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.advantage, b.advantage)
            assert torch.equal(a.target.nan_to_num(), b.target.nan_to_num())  # type: ignore[union-attr]
            assert bool(torch.isfinite(a.advantage).all())
            assert a.target.isnan().tolist() == (a.target_weight == 0).tolist()  # type: ignore[union-attr]
    if level == "turn" and normalisation == "none":
        for some, trees, credits in zip(groups, beliefs, plain, strict=True):
            for tree, belief, credit in zip(some.trees, trees, credits, strict=True):
                counted = counted_nodes(tree)
                settings_ = {"discount": 1.0, "gae_lambda": 0.95, "counted": counted}
                nodes = tree_gae(tree.parent, tree.reward, belief.value, **settings_)  # type: ignore[arg-type]
                assert credit.advantage.sum(1).tolist() == pytest.approx(
                    (nodes * (credit.advantage != 0).sum(1)).tolist()
                )
                target = lambda_returns(tree.parent, belief.value, nodes, counted)  # type: ignore[arg-type]
                assert torch.equal(credit.target.nan_to_num(), target.nan_to_num())  # type: ignore[union-attr]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["turn", "token"]))
def test_normalised_advantages_have_mean_0_and_spread_1_over_unique_action_tokens(seed, level):
    rng = random.Random(seed)
    tree = random_tree(rng, failures=0.2, nodes=8)
    value = f64(*(rng.random() for _ in range(len(tree))))
    tokens = [f64(*(rng.random() for _ in range(n - 1))) for n in tree.action_len]
    credit = only(PPO(level, std_floor=1e-6)([group(tree)], [[Beliefs(value=value, token_value=tokens)]]))
    found: list[float] = []
    for node in [node for node, counts in enumerate(counted_nodes(tree)) if counts and node]:
        column = next(i for i, leaf in enumerate(credit.leaves) if node in tree.path(leaf))
        if credit.token_advantage is None:
            found += [float(credit.advantage[node, column])] * tree.action_len[node]
        else:
            found += credit.token_advantage[node].tolist()
    if len(set(found)) > 1:
        assert f64(*found).mean() == pytest.approx(0, abs=1e-9)
        assert f64(*found).std(correction=0) == pytest.approx(1)
