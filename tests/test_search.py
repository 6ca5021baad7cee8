import copy
import math
import random
from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.draws import candidates, draw_by_entropy, draw_uniform
from lit_treerl.trees.search import Draw, TreeSearch
from lit_treerl.trees.tree import Status, Tree
from tree_cases import chain_tree, random_tree


def grow_chain(tree: Tree, node: int, turns: int) -> None:
    """Continue below ``node`` until the tree is ``turns`` deep there."""
    for depth in range(tree.depth(node) + 1, turns + 1):
        node = tree.add_action(node, [1], [-1.0], 0)
        tree.observe(node, status=Status.TERMINAL if depth == turns else Status.OPEN)


def one_chain(turns: int) -> Tree:
    tree = Tree("t")
    tree.add_root([0])
    grow_chain(tree, 0, turns)
    return tree


def golden() -> Tree:
    """root -> 1 -> 2 -> 3 (leaf); 1 -> 4 (leaf); root -> 5 (failed leaf)."""
    tree = Tree("t")
    tree.add_root([0])
    for parent, logprobs in ((0, [-1.0]), (1, [-0.25, -0.75]), (2, [-3.0]), (1, [-1.0, -4.0]), (0, [-9.0])):
        tree.add_action(parent, [1] * len(logprobs), logprobs, 0)
    for leaf, status in ((3, Status.TERMINAL), (4, Status.TRUNCATED), (5, Status.FAILED)):
        tree.status[leaf] = status
    return tree


def test_golden_candidates_are_root_and_inner_nodes():
    assert candidates(golden()) == [0, 1, 2]
    assert candidates(golden(), include_root=False) == [1, 2]
    growing = golden()
    growing.status[3] = Status.OPEN  # a leaf that is still growing has no next action to contrast yet
    assert candidates(growing) == [0, 1, 2]
    bare = Tree("t")
    bare.add_root([0])
    assert candidates(bare) == [0]
    assert candidates(bare, include_root=False) == []


def test_golden_draw_by_entropy_goes_by_the_childrens_mean_and_round():
    # children's mean entropies: root (1 + 9) / 2 = 5, node 1 (0.5 + 2.5) / 2 = 1.5, node 2: 3
    search = TreeSearch(draw="entropy")
    assert search.draw_nodes(golden(), 5, random.Random(0)) == [0, 2, 1, 0, 2]
    tied = golden()
    tied.logprobs[3] = [-1.5]
    assert draw_by_entropy(tied, [0, 1, 2], 3) == [0, 1, 2]


def test_children_without_action_tokens_say_nothing_about_entropy():
    tree = golden()
    tree.ids[5], tree.action_len[5], tree.logprobs[5] = [], 0, []
    assert draw_by_entropy(tree, [0, 1, 2], 3) == [2, 1, 0]  # the root is now 1, not (1 + 0) / 2


def test_golden_draw_where_the_critic_is_least_sure():
    # v (1 - v) of the candidates: .09, .25, 0; what leaves are worth does not matter
    search = TreeSearch(draw="critic")
    assert search.draw_nodes(golden(), 5, random.Random(0), [0.1, 0.5, 1.0, 0.5, 0.5, math.nan]) == [1, 0, 2, 1, 0]
    clipped = [-3.0, 7.0, 0.01, 0, 0, 0]  # nothing is surer than a value outside [0, 1]; ties by index
    assert search.draw_nodes(golden(), 3, random.Random(0), clipped) == [2, 0, 1]
    assert TreeSearch(draw="critic", include_root=False).draw_nodes(
        golden(), 3, random.Random(0), [0.5, 0.2, 0.3, 0, 0, 0]
    ) == [2, 1, 2]


def test_golden_draw_where_critic_and_value_tree_differ_most():
    # gaps .2, .7 (either sign), unknown
    search = TreeSearch(draw="critic_gap")
    values, means = [0.5, 0.1, 0.9, 0, 0, 0], [0.3, 0.8, math.nan, 1, 1, math.nan]
    assert search.draw_nodes(golden(), 4, random.Random(0), values, means) == [1, 0, 2, 1]
    assert search.draw_nodes(golden(), 2, random.Random(0), [-2.0, 9.0, 0, 0, 0, 0], [2.0, 7.0, 0, 0, 0, 0]) == [0, 1]


def test_states_that_the_critic_was_not_asked_for_come_last():
    """Such as those that lead to failed episodes alone."""
    values = [math.nan, 0.0, 0.9, math.nan, math.nan, math.nan]
    assert TreeSearch(draw="critic").draw_nodes(golden(), 3, random.Random(0), values) == [2, 1, 0]
    assert TreeSearch(draw="critic").draw_nodes(golden(), 2, random.Random(0), [math.nan] * 6) == [0, 1]
    means = [0.5] * 6
    assert TreeSearch(draw="critic_gap").draw_nodes(golden(), 3, random.Random(0), values, means) == [1, 2, 0]


def test_what_a_draw_needs_is_named():
    needs = {draw: TreeSearch(draw=draw) for draw in get_args(Draw)}
    assert [draw for draw, search in needs.items() if search.uses_values] == ["critic", "critic_gap"]
    assert [draw for draw, search in needs.items() if search.uses_means] == ["critic_gap"]
    rng, known = random.Random(0), [0.5] * 6
    for draw, given_, message in (
        ("critic", (), "search.draw 'critic' needs values of all 6 nodes of the tree, got none"),
        ("critic", ([0.5] * 5,), "needs values of all 6 nodes of the tree, got 5"),
        ("critic", ([-math.inf, *known[1:]],), "needs finite values, node 0 has -inf"),
        ("critic_gap", (), "search.draw 'critic_gap' needs values"),
        ("critic_gap", (known,), "search.draw 'critic_gap' needs means of all 6 nodes of the tree, got none"),
        ("critic_gap", (known, known[:2]), "needs means of all 6 nodes of the tree, got 2"),
        ("critic_gap", ([math.inf, *known[1:]], known), "needs finite values, node 0 has inf"),
    ):
        with pytest.raises(ValueError, match=message):
            needs[draw].draw_nodes(golden(), 2, rng, *given_)
    assert needs["critic"].draw_nodes(golden(), 0, rng, known) == []


def test_uniform_draw_with_replacement_has_the_published_distribution():
    rng = random.Random(7)
    pairs = Counter(tuple(TreeSearch().draw_nodes(golden(), 2, rng)) for _ in range(9000))
    assert set(pairs) == {(a, b) for a in range(3) for b in range(3)}
    # 1000 expected of each of the 9 pairs; chi-square with 8 degrees of freedom is below 26.1 with p = .999
    assert sum((count - 1000) ** 2 / 1000 for count in pairs.values()) < 26.1


@given(st.integers(1, 6), st.integers(0, 15), st.integers(0, 1000))
def test_without_replacement_every_candidate_comes_once_before_any_comes_twice(size, n, seed):
    drawn = draw_uniform(list(range(size)), n, random.Random(seed), replacement=False)
    assert len(drawn) == n
    for start in range(0, n, size):
        lap = drawn[start : start + size]
        assert len(set(lap)) == len(lap)


@given(st.integers(0, 1000), st.sampled_from(get_args(Draw)), st.booleans(), st.booleans())
def test_draws_are_exact_in_number_reproducible_and_open(seed, draw, replacement, include_root):
    rng = random.Random(seed)
    tree = random_tree(rng)
    values, means = ([rng.choice([rng.uniform(-1, 2), 0.0]) for _ in range(len(tree))] for _ in range(2))
    search = TreeSearch(draw=draw, replacement=replacement, include_root=include_root)
    drawn = search.draw_nodes(tree, 5, random.Random(seed), values, means)
    assert drawn == search.draw_nodes(tree, 5, random.Random(seed), values, means)
    assert len(drawn) == 5
    assert set(drawn) <= set(candidates(tree))


def test_a_one_turn_tree_forks_at_the_root_even_where_the_root_is_excluded():
    assert TreeSearch(include_root=False).draw_nodes(one_chain(1), 2, random.Random(0)) == [0, 0]


def enumerated_cost(turns: int, forks: int, include_root: bool = True, rounds: int = 1) -> Fraction:
    """Expected turns of one tree over all equally likely draws, in chains, by growing every possible tree."""

    def cost(tree: Tree, left: int) -> Fraction:
        if left == 0:
            return Fraction(len(tree) - 1)
        total, found = Fraction(0), candidates(tree, include_root=include_root)
        for draws in _product(found, forks):
            grown = copy.deepcopy(tree)
            for node in draws:
                grow_chain(grown, node, turns)
            total += cost(grown, left - 1)
        return total / len(found) ** forks

    return cost(one_chain(turns), rounds) / turns


def _product(items: list[int], repeat: int) -> list[tuple[int, ...]]:
    if repeat == 0:
        return [()]
    return [(item, *rest) for item in items for rest in _product(items, repeat - 1)]


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
@pytest.mark.parametrize("forks", [0, 1, 2, 3])
def test_expected_cost_equals_enumeration_for_one_round(turns, forks):
    for include_root in (True, False):
        if turns == 1 and not include_root:
            continue
        search = TreeSearch(trees=3, expansions=forks, include_root=include_root)
        assert search.expected_chains(turns) == pytest.approx(3 * float(enumerated_cost(turns, forks, include_root)))


def test_expected_cost_is_an_upper_bound_for_more_rounds():
    for turns in (2, 3):
        exact = float(enumerated_cost(turns, 1, rounds=2))
        closed = TreeSearch(trees=1, expansions=1, rounds=2).expected_chains(turns)
        assert exact < closed < 1.05 * exact


def test_published_numbers():
    search = TreeSearch()
    assert search.leaves_per_task == 6
    assert search.expected_chains(4) == 2 * (1 + 2 * 0.625)
    assert search.leaves_per_chain(4) == pytest.approx(4 / 3)
    assert search.leaves_per_chain(1e9) == pytest.approx(1.5)
    chains = TreeSearch(trees=8, expansions=0)
    assert (chains.leaves_per_task, chains.expected_chains(3), chains.leaves_per_chain(3)) == (8, 8, 1)
    with pytest.raises(ValueError, match="at least 1 turn"):
        search.expected_chains(0)


def test_pruning_keeps_random_leaves_that_can_be_learned_from():
    search = TreeSearch(expansions=3, keep_leaves=2)
    counts = Counter()
    for seed in range(300):
        tree = chain_tree(0, 1, 2, 3)
        tree.status[2] = Status.FAILED
        search.prune(tree, random.Random(seed))
        assert tree.kept_leaves == sorted(set(tree.kept_leaves or []))
        counts[tuple(tree.training_leaves())] += 1
    assert set(counts) == {(1, 3), (1, 4), (3, 4)}
    assert min(counts.values()) > 60
    small = chain_tree(0, 1)
    search.prune(small, random.Random(0))
    assert small.kept_leaves is None
    TreeSearch(expansions=3).prune(tree := chain_tree(0, 1, 2, 3), random.Random(0))
    assert tree.kept_leaves is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trees": 0}, "search.trees must be at least 1, got 0"),
        ({"expansions": -1}, "search.expansions must be at least 0"),
        ({"rounds": -1}, "search.rounds must be at least 0"),
        ({"draw": "best"}, "search.draw must be one of uniform, entropy, critic, critic_gap, got 'best'"),
        ({"keep_leaves": 0}, "search.keep_leaves must be null or in 1..3"),
        ({"keep_leaves": 4}, "3 .*leaves.*got 4"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TreeSearch(**settings)
