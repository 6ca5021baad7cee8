"""Rollouts whose forks are drawn by what a critic says, here a scripted judge."""

from __future__ import annotations

import math
import random

import pytest

from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.rollout.grower import RolloutLimits, TreeGrower
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import Status, Tree
from scripted import TASK, ScriptedSampler, StateEnv, ToyEnv, by_place, wandering, word_tokens

CHAIN = {(0, 0, 0): "a", (0, 0, 1): "b", (0, 0, 2): "c", (0, 0, 3): "answer x"}
FORK = {(0, branch, turn): "answer y" for branch in (1, 2, 3, 4) for turn in range(4)}


def grow(search: TreeSearch, judge, policy=None, env=None, tasks=(TASK,), order=None, trees=None):
    sampler = ScriptedSampler(policy or by_place(CHAIN | FORK), order=order)
    grower = TreeGrower(
        sampler, env or ToyEnv(), word_tokens(), search, RolloutLimits(4, 200), temperature=1.0, judge=judge
    )
    return grower.grow(list(tasks), trees or [search.trees] * len(tasks))


def judging(values, means=None):
    """A judge with fixed answers by depth, which writes down what it was asked."""
    asked: list[tuple[str, int]] = []

    def judge(task: Task, tree: Tree):
        asked.append((task.id, len(tree)))
        depths = [tree.depth(node) for node in range(len(tree))]
        return [values[d] for d in depths], [(means or [math.nan] * 9)[d] for d in depths]

    return judge, asked


@pytest.mark.parametrize("env", [ToyEnv(), StateEnv()], ids=["replayed", "restored"])
@pytest.mark.parametrize(
    ("values", "parents"),
    [
        ([0.0, 0.1, 0.5, 0.2, 0.5], [2, 3]),  # v (1 - v): 0.25 and 0.16; node 4 has ended
        ([0.6, 0.9, 1.0, 0.3, 0.5], [0, 3]),  # 0.24 and 0.21
        ([0.5, 0.5, 0.5, 0.5, 0.5], [0, 1]),  # ties by index
        ([7.0, -3.0, 0.01, 1.0, 0.5], [2, 0]),  # clipped to [0, 1]
    ],
)
def test_forks_are_made_where_the_critic_is_least_sure(env, values, parents):
    judge, asked = judging(values)
    [group] = grow(TreeSearch(trees=1, expansions=2, draw="critic"), judge, env=env)
    [tree] = group.trees
    assert [tree.parent[node] for node in range(len(tree)) if not tree.natural[node]] == parents
    assert asked == [("t", 5)]
    assert tree.parent[:5] == [-1, 0, 1, 2, 3]
    assert all(tree.action_key[node] == "answer y" for node in (5, 6))


def test_a_tree_whose_first_chain_failed_is_forked_all_the_same():
    """The judge knows nothing of states that a failure alone follows."""

    class Failing(ToyEnv):
        def _step(self, text):
            if text == "c":
                raise EnvironmentFailure("down")
            return super()._step(text)

    judge, asked = judging([math.nan] * 9)
    [group] = grow(TreeSearch(trees=1, expansions=2, draw="critic"), judge, env=Failing())
    [tree] = group.trees
    assert asked
    assert [tree.status[leaf] for leaf in tree.leaves()].count(Status.FAILED) == 1
    assert [tree.parent[node] for node in range(len(tree)) if not tree.natural[node]] == [0, 1]


def test_a_fork_without_the_root():
    judge, _ = judging([0.5, 0.1, 0.2, 0.4, 0.5])
    [group] = grow(TreeSearch(trees=1, expansions=2, draw="critic", include_root=False), judge)
    assert group.trees[0].parent[5:] == [3, 2]


def test_forks_are_made_where_critic_and_value_tree_differ_most():
    judge, _ = judging([0.5, 0.2, 0.9, 0.4, 0.0], [0.5, 0.8, math.nan, 0.5, 1.0])
    [group] = grow(TreeSearch(trees=1, expansions=2, draw="critic_gap"), judge)
    assert group.trees[0].parent[5:] == [1, 3]


def test_the_judge_is_asked_anew_in_every_round_and_of_the_whole_tree():
    judge, asked = judging([0.5, 0.4, 0.3, 0.2, 0.1])
    search = TreeSearch(trees=1, expansions=2, rounds=2, draw="critic")
    [group] = grow(search, judge)
    assert asked == [("t", 5), ("t", 7)]
    assert group.trees[0].parent[5:] == [0, 1, 0, 1]


@pytest.mark.parametrize("draw", ["uniform", "entropy"])
def test_other_searches_ask_no_judge(draw):
    judge, asked = judging([0.5] * 9)
    grow(TreeSearch(trees=2, expansions=2, draw=draw), judge, policy=wandering())
    assert not asked


def test_nobody_is_asked_where_nothing_is_drawn():
    judge, asked = judging([0.5] * 9)
    grow(TreeSearch(trees=2, expansions=0, draw="critic"), judge, policy=wandering())
    grow(TreeSearch(trees=2, expansions=2, rounds=0, draw="critic"), judge, policy=wandering())
    long = Task("long", "toy", "start " + "a " * 300)
    [group] = grow(TreeSearch(trees=1, expansions=2, draw="critic"), judge, tasks=[long], policy=wandering())
    assert group.trees[0].status == [Status.TRUNCATED]  # a root alone has no state to fork from
    assert not asked


def test_a_search_that_needs_a_judge_says_so():
    with pytest.raises(ValueError, match=r"search\.draw 'critic' needs a critic to judge states"):
        grow(TreeSearch(trees=1, expansions=2, draw="critic"), None)


def test_judged_trees_do_not_depend_on_who_finishes_first():
    def judge(task: Task, tree: Tree):
        tree.check()
        rng = random.Random(str([tree.parent, tree.ids]))
        return [rng.random() for _ in tree.parent], [math.nan] * len(tree)

    tasks = [Task(str(i), "toy", "start", ("x",)) for i in range(4)]
    search = TreeSearch(trees=2, expansions=3, rounds=2, draw="critic")
    plain = [g.trees for g in grow(search, judge, policy=wandering(), tasks=tasks)]
    for seed in range(3):
        order = random.Random(seed)
        env = ToyEnv(blocking=True)
        again = grow(search, judge, policy=wandering(), tasks=tasks, order=order, env=env)
        assert [g.trees for g in again] == plain
    assert all(len(tree.leaves()) == search.leaves_per_tree for trees in plain for tree in trees)


def test_every_task_gets_just_its_budget_of_trees():
    tasks = [Task(str(i), "toy", "start", ("x",)) for i in range(3)]
    judge, asked = judging([0.5] * 20)
    groups = grow(
        TreeSearch(trees=2, expansions=1, draw="critic"), judge, policy=wandering(), tasks=tasks, trees=[1, 4, 1]
    )
    assert [len(group.trees) for group in groups] == [1, 4, 1]
    assert len(asked) == 6
