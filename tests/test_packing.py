import random
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_treerl.algorithms.aggregation import leaf_weights
from lit_treerl.algorithms.base import Credit
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs, supervised_packs
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from tree_cases import group, random_tree


def tree_of(context: str, *nodes: tuple[int, list[int], list[int]], prompt: list[int], index: int = 0) -> Tree:
    """A tree from (parent, action, observation) triples; node k's sampler log-prob is -k."""
    tree = Tree("t", index=index, context=context)  # type: ignore[arg-type]
    tree.add_root(prompt)
    for number, (parent, action, observation) in enumerate(nodes, 1):
        tree.observe(tree.add_action(parent, action, [-float(number)] * len(action), 0), observation)
    return tree


def credit(tree: Tree, *columns: float) -> Credit:
    """One advantage per training leaf, on the whole path."""
    leaves = tree.training_leaves()
    advantage = torch.zeros(len(tree), len(leaves), dtype=torch.float64)
    for column, (leaf, value) in enumerate(zip(leaves, columns, strict=True)):
        advantage[tree.path(leaf)[1:], column] = value
    return Credit(leaves, advantage)


def packs_of(trees: list[Tree], credits: list[Credit], weights: list[list[float]], **options) -> list[Pack]:
    options = {"max_tokens": 1000, "dtype": torch.float64} | options
    nested = [[torch.tensor(tree, dtype=torch.float64) for tree in weights]]
    return build_packs([group(*trees)], [credits], nested, **options)


def test_golden_growing_pack_merges_trees_under_their_prompt():
    first = tree_of("growing", (0, [3, 4], [5]), (1, [6], [7]), (1, [8], []), prompt=[1, 2])
    second = tree_of("growing", (0, [9], [10]), prompt=[1, 2], index=1)
    (pack,) = packs_of([first, second], [credit(first, 2, -1), credit(second, 0.5)], [[0.1, 0.2], [0.3]])
    assert pack.ids.tolist() == [1, 2, 3, 4, 5, 6, 8, 9]  # 7 and 10 are context to nothing
    assert pack.parent.tolist() == [-1, 0, 1, 2, 3, 4, 4, 1]
    assert pack.position.tolist() == [0, 1, 2, 3, 4, 5, 5, 2]
    assert pack.segment.tolist() == [0, 0, 1, 1, 1, 2, 3, 4]
    assert pack.segment_parent.tolist() == [-1, 0, 1, 1, 0]
    assert pack.action.tolist() == [False, False, True, True, False, True, True, True]
    assert pack.sampler_logprobs.tolist() == [0, 0, -1, -1, 0, -2, -3, -1]
    assert pack.positive.tolist() == pytest.approx([0, 0, 0.2, 0.2, 0, 0.2, 0, 0.15])
    assert pack.negative.tolist() == pytest.approx([0, 0, -0.2, -0.2, 0, 0, -0.2, 0])
    assert pack.weight.tolist() == pytest.approx([0, 0, 0.3, 0.3, 0, 0.1, 0.2, 0.3])
    assert pack.old_logprobs is None
    assert pack.step_end


def test_golden_window_pack_starts_a_context_at_every_prompt_and_shares_equal_ones():
    first = tree_of("window", (0, [3], [11, 12]), (1, [4], [21]), (1, [5], [13]), (2, [6], [31]), prompt=[1, 2])
    second = tree_of("window", (0, [7], [11, 12]), (1, [8], []), prompt=[1, 2], index=1)
    (pack,) = packs_of([first, second], [credit(first, 1, 1), credit(second, 1)], [[0.5, 0.25], [0.125]])
    # rows, longest first: [1 2] with 3 and 7; [11 12] with 4, 5 and 8; [21] with 6
    assert pack.ids.tolist() == [11, 12, 4, 5, 8, 1, 2, 3, 7, 21, 6]
    assert pack.parent.tolist() == [-1, 0, 1, 1, 1, -1, 5, 6, 6, -1, 9]
    assert pack.position.tolist() == [0, 1, 2, 2, 2, 0, 1, 2, 2, 0, 1]
    assert pack.segment_parent.tolist() == [-1, 0, 0, 0, -1, 4, 4, -1, 7]
    assert pack.action.tolist() == [id_ < 10 and id_ > 2 for id_ in pack.ids.tolist()]
    # leaf order of the first tree: node 3 (weight .5), node 4 (.25)
    assert pack.weight.tolist() == pytest.approx([0, 0, 0.25, 0.5, 0.125, 0, 0, 0.75, 0.125, 0, 0.25])


def test_trees_with_other_prompts_are_rows_of_their_own():
    first, second = (tree_of("growing", (0, [3], []), prompt=[p]) for p in (1, 2))
    (pack,) = packs_of([first, second], [credit(first, 1), credit(second, 1)], [[1], [1]])
    assert pack.ids.tolist() == [1, 3, 2, 3]
    assert pack.parent.tolist() == [-1, 0, -1, 2]


def test_failed_pruned_and_weightless_leaves_are_left_out_with_what_only_they_need():
    tree = tree_of("growing", (0, [3], [4]), (1, [5], []), (0, [6], [7]), (3, [8], []), (3, [9], []), prompt=[1])
    tree.status[5] = Status.FAILED
    tree.kept_leaves = [4, 5]
    (pack,) = packs_of([tree], [credit(tree, 1)], [[1]])
    assert pack.ids.tolist() == [1, 6, 7, 8]
    tree.kept_leaves = None
    (pack,) = packs_of([tree], [credit(tree, 1, 1)], [[1, 0]])
    assert pack.ids.tolist() == [1, 3, 4, 5]


def test_skip_zero_leaves_out_silent_leaves_and_nothing_else_changes():
    tree = tree_of("growing", (0, [3], [4]), (1, [5], []), (1, [6], []), prompt=[1])
    (pack,) = packs_of([tree], [credit(tree, 0, -2)], [[0.5, 0.25]], skip_zero=True)
    assert pack.ids.tolist() == [1, 3, 4, 6]
    assert pack.negative.tolist() == [0, -0.5, 0, -0.5]
    assert pack.weight.tolist() == [0, 0.75, 0, 0.25]  # of all leaves through the token
    assert len(packs_of([tree], [credit(tree, 0, 0)], [[0.5, 0.25]])) == 1
    assert packs_of([tree], [credit(tree, 0, 0)], [[0.5, 0.25]], skip_zero=True) == []
    assert build_packs([], [], [], max_tokens=1) == []


def test_a_node_without_tokens_passes_its_place_on():
    tree = tree_of("growing", (0, [], []), (1, [3], []), (1, [4], []), prompt=[1])
    (pack,) = packs_of([tree], [credit(tree, 1, 1)], [[1, 1]])
    assert pack.ids.tolist() == [1, 3, 4]
    assert pack.parent.tolist() == [-1, 0, 0]
    assert pack.segment_parent.tolist() == [-1, 0, 0]


def test_contexts_without_tokens_are_named():
    empty = tree_of("growing", (0, [3], []), prompt=[])
    with pytest.raises(ValueError, match="task 't', tree 0: the context after node 0 has no tokens"):
        packs_of([empty], [credit(empty, 1)], [[1]])
    window = tree_of("window", (0, [3], []), (1, [4], []), prompt=[1])
    with pytest.raises(ValueError, match="after node 1 has no tokens"):
        packs_of([window], [credit(window, 1)], [[1]])


def chains(count: int, length: int, prompt: list[int]) -> list[Tree]:
    return [tree_of("growing", (0, [10 * i + 3] * length, []), prompt=prompt, index=i) for i in range(count)]


def test_packs_are_filled_up_to_the_limit_and_the_last_one_ends_the_step():
    trees = [chains(1, length, [length])[0] for length in (2, 3, 4, 5)]  # 3, 4, 5 and 6 tokens with the prompt
    packs = packs_of(trees, [credit(tree, 1) for tree in trees], [[1]] * 4, max_tokens=9)
    assert [pack.ids.tolist() for pack in packs] == [[5, 3, 3, 3, 3, 3, 2, 3, 3], [4, 3, 3, 3, 3, 3, 3, 3, 3]]
    assert [pack.step_end for pack in packs] == [False, True]


def test_a_task_too_large_for_a_pack_is_split_below_its_prompt():
    trees = chains(4, 3, [1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packs = packs_of(trees, [credit(tree, 1) for tree in trees], [[1]] * 4, max_tokens=9)
    assert [pack.ids.tolist() for pack in packs] == [[1, 2, 3, 3, 3, 13, 13, 13], [1, 2, 23, 23, 23, 33, 33, 33]]
    assert sum(float(pack.weight.sum()) for pack in packs) == 12


def test_a_large_tree_is_cut_into_parts_that_repeat_only_their_path():
    # prompt [1 2]; turn [3 | 4] with forks [5 | 6] (leaves [7 7] and [8 8]) and [9 9 9]; and a fork [10 10 10] above
    nodes = (0, [3], [4]), (1, [5], [6]), (2, [7, 7], []), (2, [8, 8], []), (1, [9, 9, 9], []), (0, [10, 10, 10], [])
    tree = tree_of("growing", *nodes, prompt=[1, 2])
    whole, parts = (packs_of([tree], [credit(tree, 1, 2, 3, 4)], [[1, 1, 1, 1]], max_tokens=limit) for limit in (99, 8))
    assert [pack.ids.tolist() for pack in parts] == [
        [1, 2, 3, 4, 5, 6, 7, 7],
        [1, 2, 3, 4, 5, 6, 8, 8],
        [1, 2, 3, 4, 9, 9, 9],
        [1, 2, 10, 10, 10],
    ]
    assert [pack.action.int().tolist() for pack in parts][1:] == [
        [0, 0, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
    ]
    for name in ("positive", "weight"):
        assert sum(float(getattr(pack, name).sum()) for pack in parts) == float(getattr(whole[0], name).sum())
    assert [float(pack.positive[2]) for pack in parts[:2]] == [1 + 2 + 3, 0]  # of the leaves below, once


def test_a_subtree_that_fits_a_pack_of_its_own_is_not_parted():
    nodes = (0, [3] * 4, []), (0, [4], [5]), (2, [6, 6], []), (2, [7, 7], [])
    tree = tree_of("growing", *nodes, prompt=[1, 2])
    packs = packs_of([tree], [credit(tree, 1, 1, 1)], [[1, 1, 1]], max_tokens=9)
    assert [pack.ids.tolist() for pack in packs] == [[1, 2, 4, 5, 6, 6, 7, 7], [1, 2, 3, 3, 3, 3]]


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([20, 35, 60]))
def test_only_branches_that_alone_are_too_long_exceed_a_pack(seed, max_tokens):
    rng = random.Random(seed)
    trees = [random_tree(rng, index=i, prompt=[1, 2]) for i in range(3)]
    members: list[RolloutGroup] = [group(*trees)]
    credits = GRPO("none")(members)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packs = build_packs(members, credits, leaf_weights(members, credits), max_tokens=max_tokens)
    for pack in packs:
        assert len(pack) <= max_tokens or len(pack) == int(pack.position.max()) + 1


def test_a_single_branch_larger_than_a_pack_goes_alone_with_a_warning():
    trees = chains(2, 3, [1, 2])
    with pytest.warns(UserWarning, match="more than max_tokens = 4 tokens"):
        packs = packs_of(trees, [credit(tree, 1) for tree in trees], [[1]] * 2, max_tokens=4)
    assert [len(pack) for pack in packs] == [5, 5]
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        packs_of(trees, [credit(tree, 1) for tree in trees], [[1]] * 2, max_tokens=0)


def test_leaves_and_weights_must_match():
    tree = chains(1, 1, [1])[0]
    message = r"task 't', tree 0: weights of shape \(2,\) for 2 nodes and 1 leaves; right are \(1,\) and \(2, 1\)"
    with pytest.raises(ValueError, match=message):
        packs_of([tree], [credit(tree, 1)], [[1, 1]])


def contexts(pack: Pack) -> list[tuple[int, ...]]:
    """Each action token with its whole context, read back by walking the parents."""
    out = []
    for token in pack.action.nonzero().squeeze(-1).tolist():
        walk = []
        while token >= 0:
            walk.append(int(pack.ids[token]))
            token = int(pack.parent[token])
        out.append(tuple(walk[::-1]))
    return out


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from(["growing", "window"]), st.sampled_from([12, 40, 1000]))
def test_random_packs_hold_every_action_once_in_its_own_context(seed, context, max_tokens):
    rng = random.Random(seed)
    trees = [random_tree(rng, context=context, index=i, prompt=[1, 2], failures=0.2) for i in range(3)]
    members: list[RolloutGroup] = [group(*trees)]
    credits = GRPO("none")(members)
    weights = leaf_weights(members, credits, "sequence_mean")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packs = build_packs(members, credits, weights, max_tokens=max_tokens, dtype=torch.float64)
    needed = [(t, n) for t in trees for n in sorted({n for leaf in t.training_leaves() for n in t.path(leaf)}) if n]
    expected = [
        (*tree.context_ids(tree.parent[node]), *tree.ids[node][: i + 1])
        for tree, node in needed
        for i in range(tree.action_len[node])
    ]
    assert sorted(c for pack in packs for c in contexts(pack)) == sorted(expected)
    assert sum(float(pack.weight.sum()) for pack in packs) == pytest.approx(1 if expected else 0)
    for pack in packs:
        check_invariants(pack)
    assert [pack.step_end for pack in packs] == [False] * (len(packs) - 1) + [True] * bool(packs)


def check_invariants(pack: Pack) -> None:
    first = torch.cat([torch.tensor([True]), pack.segment[1:] != pack.segment[:-1]])
    assert bool((pack.parent[~first] == torch.arange(len(pack))[~first] - 1).all())
    opens = pack.parent < 0
    assert bool((pack.position[opens] == 0).all())
    assert bool((pack.position[~opens] == pack.position[pack.parent[~opens]] + 1).all())
    assert torch.equal(pack.segment_parent[pack.segment[opens]], torch.full((int(opens.sum()),), -1))
    inside = first & ~opens
    assert torch.equal(pack.segment_parent[pack.segment[inside]], pack.segment[pack.parent[inside]])
    stack: list[int] = []
    for segment, parent in enumerate(pack.segment_parent.tolist()):  # depth first: the parent is still open
        while stack and stack[-1] != parent:
            stack.pop()
        assert parent == (stack[-1] if stack else -1)
        stack.append(segment)


# ---- demonstrations ----


def test_supervised_packs_weigh_actions_and_observations():
    episodes = [([1, 2], [([3, 4], [5]), ([6], [7])]), ([1], [([8], [])])]
    (pack,) = supervised_packs(episodes, 100, observation_weight=0.5, dtype=torch.float64)
    assert pack.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 1, 8]
    assert pack.parent.tolist() == [-1, 0, 1, 2, 3, 4, 5, -1, 7]
    assert pack.action.tolist() == [False, False, True, True, False, True, False, False, True]
    assert pack.weight.tolist() == [0, 0, 0.2, 0.2, 0.1, 0.2, 0.1, 0, 0.2]  # 4 actions and 2 halves: divided by 5
    assert torch.equal(pack.positive, pack.weight)
    assert not pack.negative.any()


def test_supervised_packs_without_observations_and_over_several_packs():
    episodes = [([1], [([2, 3], [4])]), ([1], [([5, 6], [])])]
    packs = supervised_packs(episodes, 4, dtype=torch.float64)
    assert [pack.weight.tolist() for pack in packs] == [[0, 0.25, 0.25, 0], [0, 0.25, 0.25]]
    assert [pack.step_end for pack in packs] == [False, True]
    assert supervised_packs([], 4) == supervised_packs([([1], [])], 4) == []
    with pytest.raises(ValueError, match="episode 1 has an empty prompt"):
        supervised_packs([([1], []), ([], [])], 4)
    with pytest.raises(ValueError, match=r"observation_weight must not be negative, got -1\.0"):
        supervised_packs([], 4, observation_weight=-1.0)
