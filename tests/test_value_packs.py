"""Packs for the critic: which states are read, where, how often, and what each should say."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.modeling.forest import Place
from lit_treerl.modeling.value_packs import ValuePack, prompt_packs, value_packs
from lit_treerl.trees.tree import Status, Tree
from tiny_models import VOCAB_SIZE, save_tiny_policy
from tree_cases import group, random_tree

LORA = {"r": 2, "lora_alpha": 8}


def tree_of(context: str, *nodes: tuple[int, list[int], list[int]], prompt: list[int], index: int = 0) -> Tree:
    """A tree from (parent, action, observation) triples; leaves are ends."""
    tree = Tree("t", index=index, context=context)  # type: ignore[arg-type]
    tree.add_root(prompt)
    for number, (parent, action, observation) in enumerate(nodes, 1):
        tree.observe(tree.add_action(parent, action, [-float(number)] * len(action), 0), observation)
    for leaf in tree.leaves():
        tree.status[leaf] = Status.TERMINAL
    return tree


def context(pack: ValuePack, token: int) -> tuple[int, ...]:
    """The tokens from the beginning of its context to ``token``, by walking up the parents."""
    out = []
    while token >= 0:
        out.append(int(pack.pack.ids[token]))
        token = int(pack.pack.parent[token])
    return tuple(out[::-1])


def reads(packs: list[ValuePack]) -> list[tuple[tuple[int, ...], list[Place]]]:
    """(context up to the token, what is read there) of every token that is read."""
    return [
        (context(pack, int(token)), places)
        for pack in packs
        for token, places in zip(pack.token, pack.places, strict=True)
    ]


# ---- golden ----

# 0 -> 1 -> 2 (end); 1 -> 3 -> 4 (end); 3 -> 5 (failed); 0 -> 6 -> 7 (failed)
NODES = [
    *((0, [3, 4], [5]), (1, [6], [7]), (1, [8], []), (3, [9, 10], [11]), (3, [12], [])),
    *((0, [13, 14], [15]), (6, [16], [])),
]


def branched(style: str = "growing") -> Tree:
    nodes = NODES if style == "growing" else [(p, a, o or [20]) for p, a, o in NODES]
    tree = tree_of(style, *nodes, prompt=[1, 2])
    tree.status[5] = tree.status[7] = Status.FAILED
    return tree


def test_golden_growing_states_are_read_at_the_last_token_before_the_action():
    """Not read: 2 and 4 are ends, 5 and 7 failed, 6 leads to a failure only; what follows 3's child 4 is no state."""
    (pack,) = value_packs([group(branched())], max_tokens=100)
    assert pack.pack.ids.tolist() == [1, 2, 3, 4, 5, 8]
    assert pack.pack.parent.tolist() == [-1, 0, 1, 2, 3, 4]
    assert pack.token.tolist() == [1, 4, 5]
    assert pack.places == [[Place(0, 0, 0)], [Place(0, 0, 1)], [Place(0, 0, 3)]]
    assert pack.step_end
    assert len(pack) == 3
    assert not pack.pack.weight.any()
    assert (pack.target, pack.weight, pack.old) == (None, None, None)


def test_golden_window_states_are_read_at_the_end_of_the_fresh_prompt():
    (pack,) = value_packs([group(branched("window"))], max_tokens=100)
    assert reads([pack]) == [
        ((1, 2), [Place(0, 0, 0)]),
        ((5,), [Place(0, 0, 1)]),
        ((20,), [Place(0, 0, 3)]),
    ]
    assert sorted(pack.pack.ids.tolist()) == [1, 2, 5, 20]  # actions are context to no state


def test_golden_token_level_reads_between_the_tokens_of_every_action_too():
    (pack,) = value_packs([group(branched())], max_tokens=100, token_level=True)
    assert reads([pack]) == [
        ((1, 2), [Place(0, 0, 0)]),
        ((1, 2, 3), [Place(0, 0, 1, 0)]),
        ((1, 2, 3, 4, 5), [Place(0, 0, 1)]),
        ((1, 2, 3, 4, 5, 8), [Place(0, 0, 3)]),
        ((1, 2, 3, 4, 5, 8, 9), [Place(0, 0, 4, 0)]),
    ]


def test_golden_window_token_level():
    found = reads(value_packs([group(branched("window"))], max_tokens=100, token_level=True))
    assert sorted(found) == [
        ((1, 2), [Place(0, 0, 0)]),
        ((1, 2, 3), [Place(0, 0, 1, 0)]),
        ((5,), [Place(0, 0, 1)]),
        ((20,), [Place(0, 0, 3)]),
        ((20, 9), [Place(0, 0, 4, 0)]),
    ]


def test_pruned_leaves_are_never_read():
    tree = branched()
    tree.kept_leaves = [2]
    (pack,) = value_packs([group(tree)], max_tokens=100)
    assert [place for places in pack.places for place in places] == [Place(0, 0, 0), Place(0, 0, 1)]
    assert pack.pack.ids.tolist() == [1, 2, 3, 4, 5]


def test_trees_of_a_task_share_the_state_of_their_prompt_and_nothing_else():
    trees = [tree_of("growing", (0, [3], [4]), (1, [5], []), prompt=[1, 2], index=i) for i in range(2)]
    other = tree_of("growing", (0, [3], []), prompt=[1, 2])
    (pack,) = value_packs([group(*trees), group(other)], max_tokens=100)
    assert reads([pack]) == [
        ((1, 2), [Place(0, 0, 0), Place(0, 1, 0)]),
        ((1, 2, 3, 4), [Place(0, 0, 1)]),
        ((1, 2, 3, 4), [Place(0, 1, 1)]),
        ((1, 2), [Place(1, 0, 0)]),  # another task, whatever its prompt
    ]


def test_windows_that_look_alike_share_their_state():
    """Two actions that lead to the same page are one state to a critic that sees only the page."""
    tree = tree_of("window", (0, [3], [7, 8]), (0, [4], [7, 8]), (1, [5], [9]), (2, [6], [9]), prompt=[1, 2])
    found = reads(value_packs([group(tree)], max_tokens=100))
    assert found == [((1, 2), [Place(0, 0, 0)]), ((7, 8), [Place(0, 0, 1), Place(0, 0, 2)])]


def test_a_state_without_tokens_of_its_own_is_read_where_the_one_before_ends():
    tree = tree_of("growing", (0, [], []), (1, [5], []), prompt=[1, 2])
    (pack,) = value_packs([group(tree)], max_tokens=100)
    assert pack.token.tolist() == [1]
    assert pack.places == [[Place(0, 0, 0), Place(0, 0, 1)]]


@pytest.mark.parametrize("token_level", [False, True])
def test_there_is_nothing_to_read_without_training_leaves(token_level):
    failed = branched()
    failed.status = [Status.FAILED if status is Status.TERMINAL else status for status in failed.status]
    truncated_root = tree_of("growing", prompt=[1, 2])
    truncated_root.status[0] = Status.TRUNCATED
    for trees in ([], [failed], [truncated_root], [failed, truncated_root]):
        assert value_packs([group(*trees)], max_tokens=100, token_level=token_level) == []
    assert value_packs([], max_tokens=100) == []


def test_an_empty_context_and_a_pack_without_room_are_refused():
    tree = tree_of("window", (0, [3], []), (1, [4], []), prompt=[1])
    with pytest.raises(ValueError, match="the context after node 1 has no tokens"):
        value_packs([group(tree)], max_tokens=100)
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        value_packs([group(branched())], max_tokens=0)


def test_splitting_repeats_the_prompt_but_reads_its_state_once():
    trees = [tree_of("growing", (0, [3 + i], [4]), (1, [5], []), prompt=[1, 2], index=i) for i in range(3)]
    packs = value_packs([group(*trees)], max_tokens=6)
    assert sorted(len(pack.pack) for pack in packs) == [4, 6]
    assert [pack.step_end for pack in packs] == [False, True]
    found = reads(packs)
    assert [c for c, _ in found].count((1, 2)) == 1
    assert sorted(place for _, places in found for place in places) == sorted(
        Place(0, i, node) for i in range(3) for node in (0, 1)
    )


@pytest.mark.filterwarnings("ignore:a branch has more than max_tokens")
def test_packs_in_which_nothing_is_read_are_left_out():
    """The second prompt opens forks of one turn only: once it is repeated, nothing is left to read."""
    tree = tree_of("growing", (0, [3], []), (0, [4], []), prompt=[1, 2])
    packs = value_packs([group(tree)], max_tokens=3, token_level=True)
    assert len(packs) == 1
    assert reads(packs) == [((1, 2), [Place(0, 0, 0)])]
    assert packs[0].step_end


def test_prompt_packs_read_at_the_end_of_every_prompt():
    packs = prompt_packs([[1, 2, 3], [4], [1, 2, 3]], max_tokens=4)
    assert sorted((c, places) for c, places in reads(packs)) == [
        ((1, 2, 3), [Place(0, 0, 0)]),
        ((1, 2, 3), [Place(2, 0, 0)]),
        ((4,), [Place(1, 0, 0)]),
    ]
    assert prompt_packs([], max_tokens=4) == []


def test_to_moves_every_tensor_and_keeps_the_places():
    (pack,) = value_packs([group(branched())], max_tokens=100)
    pack = pack.with_targets(lambda place: (1.0, 1.0))
    moved = pack.to("meta")
    assert {moved.token.device.type, moved.target.device.type, moved.weight.device.type} == {"meta"}
    assert moved.pack.ids.device.type == "meta"
    assert moved.places == pack.places
    assert moved.old is None


# ---- every state, once, on random trees ----


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    style=st.sampled_from(["growing", "window"]),
    token_level=st.booleans(),
    max_tokens=st.sampled_from([1, 12, 30, 1000]),
    failures=st.sampled_from([0.0, 0.4]),
    prune=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:a branch has more than max_tokens")
def test_every_state_in_which_a_training_path_goes_on_is_read_once(
    seed, style, token_level, max_tokens, failures, prune
):
    rng = random.Random(seed)
    groups = [
        group(*(random_tree(rng, context=style, index=i, prompt=[g + 1, 2], failures=failures) for i in range(2)))
        for g in range(2)
    ]
    expected = {}
    for g, one in enumerate(groups):
        for t, tree in enumerate(one.trees):
            if prune:
                tree.kept_leaves = sorted(rng.sample(tree.leaves(), 1 + len(tree.leaves()) // 2))
            for leaf in tree.training_leaves():
                path = tree.path(leaf)
                for node in path[:-1]:
                    expected[Place(g, t, node)] = tuple(tree.context_ids(node))
                for node in path[1:] if token_level else ():
                    before = tree.context_ids(tree.parent[node])
                    for token in range(tree.action_len[node] - 1):
                        expected[Place(g, t, node, token)] = (*before, *tree.ids[node][: token + 1])
    packs = value_packs(groups, max_tokens=max_tokens, token_level=token_level)
    found = [(place, c) for c, places in reads(packs) for place in places]
    assert len(found) == len(dict(found))  # each place once
    assert dict(found) == expected
    for pack in packs:
        assert len(pack)
        assert pack.token.tolist() == sorted(set(pack.token.tolist()))
    assert [pack.step_end for pack in packs] == [False] * (len(packs) - 1) + [True] * bool(packs)
    if style == "window" and not token_level:  # a context is one root of its task's forest, read at its end alone
        keys = [(places[0].group, c) for c, places in reads(packs)]
        assert len(keys) == len(set(keys))


# ---- targets ----


def test_places_that_share_a_token_learn_the_weighted_mean_of_those_that_are_known():
    trees = [tree_of("growing", (0, [3], [4]), (1, [5], []), prompt=[1, 2], index=i) for i in range(3)]
    (pack,) = value_packs([group(*trees)], max_tokens=100)
    known = {(0, 0): (1.0, 1.0), (1, 0): (0.0, 0.5), (2, 0): (math.nan, 0.0)}
    known |= {(0, 1): (0.25, 0.75), (1, 1): (math.nan, 0.0), (2, 1): (0.5, 1.0)}
    aimed = pack.with_targets(lambda place: known[place.tree, place.node])
    assert aimed.target is not None
    assert aimed.weight is not None
    assert aimed.target.dtype == aimed.weight.dtype == torch.float32
    # (1 * 1 + 0 * 0.5) / 1.5, of weight (1 + 0.5) / 2: the third tree does not count
    assert aimed.target.tolist() == pytest.approx([2 / 3, 0.25, math.nan, 0.5], nan_ok=True)
    assert aimed.weight.tolist() == [0.75, 0.75, 0.0, 1.0]
    assert aimed.token is pack.token
    assert pack.target is None


def test_a_state_counts_once_however_many_trees_begin_there():
    for count in (1, 2, 5):
        trees = [tree_of("growing", (0, [3], []), prompt=[1, 2], index=i) for i in range(count)]
        (pack,) = value_packs([group(*trees)], max_tokens=100)
        aimed = pack.with_targets(lambda place: (float(place.tree), 1.0))
        assert aimed.weight is not None
        assert aimed.target is not None
        assert aimed.weight.tolist() == [1.0]
        assert aimed.target.tolist() == [(count - 1) / 2]


# ---- values on packs are those on plain trajectories ----


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def stirred(policy, shared: bool):
    """A critic whose head and adapters are not zero."""
    from lit_treerl.modeling.actor import Actor
    from lit_treerl.modeling.critic import Critic

    critic = (
        Critic.on_actor(Actor.from_pretrained(policy, lora=LORA), LORA) if shared else Critic.from_pretrained(policy)
    )
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in [*critic.trained(), *critic.body.trained()]:
            p += 0.05 * torch.randn(p.shape, generator=g)
    return critic


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("style", ["growing", "window"])
@torch.no_grad()
def test_values_equal_those_of_each_trajectory_computed_apart(policy, style, shared):
    from transformers import AutoModelForCausalLM

    critic = stirred(policy, shared)
    rng = random.Random(3)
    groups = [
        group(*(random_tree(rng, context=style, index=i, prompt=[g + 5, 6, 7], vocab=VOCAB_SIZE) for i in range(2)))
        for g in range(2)
    ]
    if shared:  # merge the critic's adapter into a plain model: nothing of packs or adapters is left
        plain = AutoModelForCausalLM.from_pretrained(policy)
        modules = dict(critic.body.causal_lm.named_modules())
        for name, parameter in plain.named_parameters():
            owner = modules[name.removesuffix(".weight")]
            if hasattr(owner, "get_delta_weight"):
                parameter += owner.get_delta_weight("critic")
    else:
        plain = critic.body.causal_lm
    seen = 0
    for pack in value_packs(groups, max_tokens=25, token_level=True):
        values = critic.values(pack.pack, pack.token)
        assert values.dtype == torch.float32
        for value, places in zip(values.tolist(), pack.places, strict=True):
            for place in places:
                tree = groups[place.group].trees[place.tree]
                ids = tree.context_ids(place.node)
                if place.token >= 0:
                    ids = tree.context_ids(tree.parent[place.node]) + tree.ids[place.node][: place.token + 1]
                hidden = plain.base_model(torch.tensor([ids])).last_hidden_state[0, -1]
                assert value == pytest.approx(float(critic.value_head(hidden)), abs=1e-5)
                seen += 1
    assert seen > 20
