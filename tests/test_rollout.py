"""The rollout loop on a scripted policy: golden trees, forks, windows and limits of length."""

import pytest

from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.retrieval.base import Passage, Retriever
from lit_treerl.rollout.grower import RolloutLimits
from lit_treerl.rollout.stats import rollout_stats
from lit_treerl.sampling.base import SamplerCounters
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import NO_PARENT, Status
from scripted import TASK, FixedDraw, ScriptedSampler, StateEnv, ToyEnv, by_place, encode, grow, wandering, word_tokens

SCRIPT = {
    (0, 0, 0): "a",
    (0, 0, 1): "b",
    (0, 0, 2): "answer x",
    (0, 1, 1): "c d",  # a fork at node 1
    (0, 1, 2): "answer y",
    (0, 2, 0): "answer z",  # a fork at the root
    (0, 3, 2): "e",  # second round: a fork at node 4
    (0, 3, 3): "answer x",
    (0, 4, 2): "answer x",  # and one at node 2
    (1, 0, 0): "answer x",
    (1, 1, 0): "f",
    (1, 1, 1): "answer y",
    (1, 2, 0): "answer x",
}
OPEN, END = Status.OPEN, Status.TERMINAL


def test_golden_chain():
    [group] = grow(ScriptedSampler(by_place(SCRIPT)), ToyEnv(), TreeSearch(trees=1, expansions=0))
    [tree] = group.trees
    assert group.task is TASK
    assert tree.parent == [NO_PARENT, 0, 1, 2]
    assert tree.ids == [encode("start"), encode("a saw a end"), encode("b saw a b end"), encode("answer x")]
    assert tree.action_len == [0, 1, 1, 2]
    assert tree.logprobs == [[], [-0.1], [-0.1], [-0.1, -0.2]]
    assert tree.version == [-1, 3, 3, 3]
    assert tree.action_key == ["", "a", "b", "answer x"]
    assert tree.reward == [0.0, 0.0, 0.0, 1.0]
    assert tree.status == [OPEN, OPEN, OPEN, END]
    assert tree.natural == [True] * 4
    assert tree.info == [
        {"prompt": [{"role": "user", "content": "start"}]},
        {
            "action": "a",
            "finish_reason": "stop",
            "tool_calls": 1,
            "observation": "saw a end",
            "observation_cut": False,
        },
        {
            "action": "b",
            "finish_reason": "stop",
            "tool_calls": 1,
            "observation": "saw a b end",
            "observation_cut": False,
        },
        {"action": "answer x", "finish_reason": "stop", "em": 1.0, "observation": "", "observation_cut": False},
    ]


@pytest.mark.parametrize("env", [ToyEnv(), StateEnv()], ids=["replayed", "restored"])
def test_golden_trees_of_one_round(env):
    """M = 2, N = 2, L = 1; forks go on from the state at the drawn node, and nodes are numbered by branch and turn."""
    search = FixedDraw(trees=2, expansions=2).drawing([1, 0])
    script = SCRIPT | {(1, 0, 0): "g", (1, 0, 1): "answer x", (1, 1, 1): "f", (1, 1, 2): "answer y"}
    [group] = grow(ScriptedSampler(by_place(script)), env, search)
    first, second = group.trees
    assert (first.index, second.index) == (0, 1)
    assert first.parent == [NO_PARENT, 0, 1, 2, 1, 4, 0]
    assert first.natural == [True, True, True, True, False, True, False]
    assert first.ids[4] == encode("c d saw a c d end")  # the state at node 1, not that of the finished chain
    assert first.reward == [0, 0, 0, 1, 0, 0, 0]
    assert first.status == [OPEN, OPEN, OPEN, END, OPEN, END, END]
    assert first.leaves() == [3, 5, 6]
    assert second.parent == [NO_PARENT, 0, 1, 1, 3, 0]
    assert second.ids[3] == encode("f saw g f end")


def test_nodes_of_earlier_rounds_are_drawn_in_later_ones():
    search = FixedDraw(trees=1, expansions=2, rounds=2).drawing([1, 0], [4, 2])
    [group] = grow(ScriptedSampler(by_place(SCRIPT)), ToyEnv(), search)
    [tree] = group.trees
    assert tree.parent == [NO_PARENT, 0, 1, 2, 1, 4, 0, 4, 7, 2]
    assert tree.ids[7] == encode("e saw a c d e end")
    assert tree.depth(8) == 4
    assert [tree.leaf_return(leaf) for leaf in tree.leaves()] == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert len(tree.leaves()) == search.leaves_per_tree


def test_the_published_draw_is_taken_with_seeds_of_task_and_tree():
    """Same seed, same trees; another seed, others; every fork hangs below a node that had a child."""
    search, env = TreeSearch(trees=3, expansions=3, rounds=2), ToyEnv()
    tasks = [TASK, Task("u", "toy", "start", ("y",))]

    def trees(seed):
        return [g.trees for g in grow(ScriptedSampler(wandering()), env, search, tasks, seed=seed)]

    once, again, other = trees(1), trees(1), trees(2)
    assert once == again
    assert once != other
    assert once[0][0] != once[0][1]
    for tree in (tree for group in once for tree in group):
        assert tree.natural.count(False) == 6
        assert len(tree.leaves()) == 7
        assert all(tree.status[parent] is OPEN for parent in tree.parent[1:])


def test_a_task_that_comes_twice_gets_other_trees():
    first, second = grow(ScriptedSampler(wandering()), ToyEnv(), TreeSearch(trees=2), [TASK, TASK])
    assert [tree.index for tree in first.trees + second.trees] == [0, 1, 2, 3]
    assert len({str(tree.ids) for tree in first.trees + second.trees}) == 4


def test_the_context_of_a_request_is_the_path_and_ids_are_never_encoded_again():
    sampler = ScriptedSampler(by_place(SCRIPT))
    grow(sampler, ToyEnv(), FixedDraw(trees=1, expansions=2).drawing([1, 0]))
    contexts = [" ".join(sampler.tokens.tokenizer.decode(list(r.prompt_ids)).split()) for r in sampler.requests]
    start, a, b = "start", "start a saw a end", "start a saw a end b saw a b end"
    assert contexts == [start, a, b, a, start, "start a saw a end c d saw a c d end"]


def test_depth_counts_toward_max_turns_in_forks_too():
    class Nothing(Retriever):
        def search(self, queries, topk):
            return [[Passage("1", "", "a")] for _ in queries]

    env = SearchQA(Nothing(), max_turns=3)
    env.setup()
    words = word_tokens()
    words.decode = lambda ids: "<think>a</think><search>b</search>"  # type: ignore[method-assign]
    [group] = grow(ScriptedSampler(lambda *_: "a"), env, TreeSearch(trees=2, expansions=8, rounds=2), tokens=words)
    for tree in group.trees:
        assert [tree.depth(leaf) for leaf in tree.leaves()] == [4] * 17  # three searches and the forced last turn
        assert [tree.info[leaf]["turns"] for leaf in tree.leaves()] == [4] * 17


class WindowEnv(Environment):
    """Shows the turn and the last action in a fresh prompt."""

    context = "window"

    def _reset(self, task):
        self.turn = 0
        return [{"role": "user", "content": "turn 0"}]

    def _step(self, text):
        self.turn += 1
        prompt = [{"role": "user", "content": f"turn {self.turn} {text}"}]
        return StepResult(done=text.startswith("answer"), prompt=prompt)


def test_window_environments_get_a_fresh_prompt_each_turn_which_siblings_share():
    sampler = ScriptedSampler(by_place(SCRIPT))
    [group] = grow(sampler, WindowEnv(), FixedDraw(trees=1, expansions=2).drawing([1, 0]))
    [tree] = group.trees
    assert tree.context == "window"
    assert tree.ids[:3] == [encode("turn 0"), encode("a turn 1 a"), encode("b turn 2 b")]
    assert tree.ids[3] == encode("answer x")  # no prompt follows the end
    assert tree.ids[4] == encode("c d turn 2 c d")
    assert tree.action_len == [0, 1, 1, 2, 2, 2, 2]
    contexts = [list(r.prompt_ids) for r in sampler.requests]
    texts = ["turn 0", "turn 1 a", "turn 2 b", "turn 1 a", "turn 0", "turn 2 c d"]
    assert contexts == [encode(text) for text in texts]


def test_a_branch_that_would_overflow_ends_truncated_and_is_counted():
    """After node 1 the context has 5 tokens, after node 2 it has 10: with 4 new ones 14 are too many for 13."""
    search = FixedDraw(trees=1, expansions=1).drawing([1])
    [group] = grow(ScriptedSampler(by_place(SCRIPT)), StateEnv(), search, max_context=13)
    [tree] = group.trees
    assert tree.status == [OPEN, OPEN, Status.TRUNCATED, Status.TRUNCATED]
    assert tree.ids[2:] == [encode("b saw a b end"), encode("c d saw a c d end")]  # whole, not cut
    assert tree.reward == [0, 0, -0.5, -0.5]
    assert tree.info[2]["cut"] is True
    assert tree.info[2]["action"] == "b"
    assert tree.training_leaves() == [2, 3]
    stats = rollout_stats([group], SamplerCounters())
    assert (stats["rollout/truncated"], stats["train/reward"]) == (2, -0.5)


def test_a_truncated_branch_keeps_the_tool_calls_of_its_last_step():
    class Nothing(Retriever):
        def search(self, queries, topk):
            return [[Passage("1", "", "a")] for _ in queries]

    env = SearchQA(Nothing(), padding=" ")
    env.setup()
    words = word_tokens()
    words.decode = lambda ids: "<think>a</think><search>b</search>"  # type: ignore[method-assign]
    search = TreeSearch(trees=1, expansions=0)
    question = Task("t", "toy", "start", ("a",), prompt=({"role": "user", "content": "start"},))
    [group] = grow(ScriptedSampler(lambda *_: "a"), env, search, [question], tokens=words, max_context=6)
    assert group.trees[0].status[1] is Status.TRUNCATED
    assert rollout_stats([group], SamplerCounters())["rollout/tool_calls"] == 1


def test_a_prompt_that_is_too_long_is_a_truncated_root():
    tasks = [Task("long", "toy", "start a b c d"), TASK]
    groups = grow(ScriptedSampler(wandering()), ToyEnv(), TreeSearch(trees=2), tasks, max_context=8)
    for tree in groups[0].trees:
        assert (tree.status, tree.reward, tree.leaves()) == ([Status.TRUNCATED], [-0.5], [])
    assert all(tree.leaves() for tree in groups[1].trees)


@pytest.mark.parametrize(
    ("limit", "shown", "cut"),
    [
        (None, "saw a b end", False),
        (4, "saw a b end", False),
        (3, "saw a end", True),
        (1, "end", True),
    ],
)
def test_a_long_observation_is_cut_but_keeps_its_closing_text_and_is_counted(limit, shown, cut):
    script = {(0, 0, 0): "a b", (0, 0, 1): "answer x"}
    search = TreeSearch(trees=1, expansions=0)
    [group] = grow(ScriptedSampler(by_place(script)), ToyEnv(), search, max_observation_tokens=limit)
    [tree] = group.trees
    assert tree.ids[1] == encode(f"a b {shown}")
    assert tree.info[1]["observation_cut"] is cut
    assert rollout_stats([group], SamplerCounters())["rollout/observations_cut"] == int(cut)


def test_finished_trees_hold_no_snapshots_and_pruning_keeps_some_leaves():
    tasks = [Task(str(i), "toy", "start", ("x",)) for i in range(4)]
    search = TreeSearch(trees=2, expansions=3, rounds=2, keep_leaves=2)
    finished = []
    groups = grow(ScriptedSampler(wandering()), StateEnv(), search, tasks, on_leaf=finished.append)
    trees = [tree for group in groups for tree in group.trees]
    assert len(finished) == 8 * 7
    for tree in trees:
        assert tree.snapshot == [None] * len(tree)
        assert len(tree.leaves()) == 7
        assert len(tree.training_leaves()) == 2
        assert set(tree.training_leaves()) < set(tree.leaves())
    assert len({tuple(tree.kept_leaves) for tree in trees}) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "rollout.limits.max_new_tokens must be at least 1, got 0"),
        ({"env_workers": 0}, "rollout.limits.env_workers must be at least 1"),
        ({"max_new_tokens": 9, "max_context": 9}, r"max_new_tokens \(9\) must be below rollout.limits.max_context"),
    ],
)
def test_limits_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RolloutLimits(**settings)
