"""What rollouts cost and brought: closed forms on hand-made trees and on many random ones."""

import math
import random

import pytest

from lit_treerl.rollout.stats import path_tokens, rollout_stats, seed_chain, total_tool_calls, unique_token_ratio
from lit_treerl.sampling.base import SamplerCounters
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.tree import ROOT, Status, Tree
from scripted import ScriptedSampler, StateEnv, by_place, grow
from tree_cases import chain_tree, group


def add(tree: Tree, parent: int, tokens: int, observed: int = 0, *, natural: bool = True, **observation) -> int:
    node = tree.add_action(parent, [1] * tokens, [-1.0] * tokens, 0, natural=natural)
    tree.observe(node, [2] * observed, **observation)
    return node


def forked_tree() -> Tree:
    """Prompt 3; actions 2, 4, 6 with observations 5, 5, 0; forks of 8 at node 1 and of 1, then 9 at the root."""
    tree = Tree("t")
    tree.add_root([0] * 3)
    one = add(tree, ROOT, 2, 5, info={"tool_calls": 1})
    two = add(tree, one, 4, 5, info={"tool_calls": 1, "observation_cut": True})
    add(tree, two, 6, reward=1.0, status=Status.TERMINAL, info={"tool_calls": 0})
    add(tree, one, 8, natural=False, status=Status.TRUNCATED, reward=0.5)
    four = add(tree, ROOT, 1, 7, natural=False, info={"tool_calls": 1})
    add(tree, four, 9, status=Status.TERMINAL)
    return tree


def test_closed_forms_of_a_hand_made_tree():
    tree = forked_tree()
    assert seed_chain(tree) == 3
    assert [path_tokens(tree, leaf) for leaf in tree.leaves()] == [12, 10, 10]
    stats = rollout_stats([group(tree)], SamplerCounters(prompt_tokens=70, cached_tokens=20, sampled_tokens=30))
    assert stats == {
        "train/reward": 0.5,
        "rollout/leaves": 3,
        "rollout/sampled_tokens": 30,
        "rollout/prompt_tokens": 70,
        "rollout/cached_tokens": 20,
        "rollout/tool_calls": 3,
        "rollout/leaves_per_chain": pytest.approx(3 / (30 / 12)),
        "rollout/turns": 3,
        "rollout/unique_token_ratio": pytest.approx(50 / (25 + 18 + 20)),
        "rollout/failed": 0,
        "rollout/truncated": 1,
        "rollout/observations_cut": 1,
    }


def test_the_average_chain_is_over_all_trees():
    """Chains of 12 and 2 tokens: 7 on average; 4 leaves for 32 tokens."""
    short = Tree("t", index=1)
    short.add_root([0])
    add(short, ROOT, 2, status=Status.TERMINAL)
    stats = rollout_stats([group(forked_tree(), short)], SamplerCounters())
    assert stats["rollout/leaves_per_chain"] == pytest.approx(4 / (32 / 7))
    assert stats["rollout/turns"] == 2


def test_chains_give_one_leaf_per_chain_and_share_nothing():
    chains = []
    for index in range(4):
        tree = Tree("t", index=index)
        tree.add_root([0, 0])
        node = ROOT
        for turn in range(index + 1):
            node = add(tree, node, 3 + turn, 2)
        chains.append(tree)
    stats = rollout_stats([group(*chains)], SamplerCounters())
    assert stats["rollout/leaves_per_chain"] == pytest.approx(1.0)
    assert stats["rollout/unique_token_ratio"] == 1.0


@pytest.mark.parametrize("settings", [(2, 2, 1, 4), (2, 2, 1, 1), (1, 4, 1, 7), (3, 3, 1, 2)])
def test_leaves_per_chain_of_uniform_draws_is_what_the_search_must_cost(settings):
    """Chains of T turns of 5 tokens, forked at nodes drawn by the search itself, many times over."""
    trees, expansions, rounds, turns = settings
    search = TreeSearch(trees=trees, expansions=expansions, rounds=rounds)
    rng, grown = random.Random(0), []

    def chain(tree: Tree, node: int, natural: bool) -> None:
        while tree.depth(node) < turns:
            done = tree.depth(node) == turns - 1
            node = add(tree, node, 5, natural=natural, status=Status.TERMINAL if done else Status.OPEN)
            natural = True

    for index in range(4000):
        tree = Tree("t", index=index)
        tree.add_root([0])
        chain(tree, ROOT, natural=True)
        for node in search.draw_nodes(tree, expansions, rng):
            chain(tree, node, natural=False)
        grown.append(tree)
    stats = rollout_stats([group(*grown)], SamplerCounters())
    assert stats["rollout/leaves_per_chain"] == pytest.approx(search.leaves_per_chain(turns), rel=0.01)
    assert stats["rollout/turns"] == turns


def test_unique_token_ratio_counts_prompts_and_observations_too():
    tree = chain_tree(0.0, 1.0, 0.0)  # a prompt of 2 and three actions of 1
    assert unique_token_ratio([tree]) == pytest.approx(5 / 9)
    assert unique_token_ratio([]) == 1.0


def test_tool_calls_of_a_shared_prefix_count_once():
    """Three actions, a fork at node 1 and one at the root: five searches in all, not seven."""
    script = {(0, 0, 0): "a", (0, 0, 1): "b", (0, 0, 2): "answer x", (0, 1, 0): "c", (0, 1, 1): "answer x"}
    [tree] = grow(ScriptedSampler(by_place(script)), StateEnv(), TreeSearch(trees=1, expansions=0))[0].trees
    assert total_tool_calls([tree, tree]) == 4
    assert total_tool_calls([forked_tree()]) == 3


def test_no_trees_and_failed_trees_give_numbers_too():
    failed = Tree("t")
    failed.add_root([])
    failed.status[ROOT] = Status.FAILED
    for groups in ([], [group(failed)]):
        stats = rollout_stats(groups, SamplerCounters())
        assert stats["rollout/leaves"] == stats["rollout/leaves_per_chain"] == 0
        assert math.isnan(stats["train/reward"])  # no episode, no reward: never a 0
        assert stats["rollout/failed"] == len(groups)
