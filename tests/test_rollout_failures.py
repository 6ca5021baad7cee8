"""External trouble during rollouts: labelled, kept out of training, and never a reason for siblings to stop."""

import random
import threading
import time

import pytest

from lit_treerl.envs.base import EnvironmentFailure, NonDeterministicEnvironment
from lit_treerl.rollout.episodes import episode_numbers, episodes
from lit_treerl.rollout.stats import rollout_stats
from lit_treerl.sampling.base import SamplerCounters
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import ROOT, Status
from scripted import TASK, FixedDraw, ScriptedSampler, StateEnv, ToyEnv, by_place, encode, grow, wandering

CHAIN = {(0, 0, 0): "a", (0, 0, 1): "b", (0, 0, 2): "answer x", (0, 1, 1): "c", (0, 1, 2): "answer x"}
FORKED = FixedDraw(trees=1, expansions=1).drawing([1])
both_ways = pytest.mark.parametrize("blocking", [False, True], ids=["inline", "threads"])


class Troubled(StateEnv):
    """Raises ``error`` when asked to do ``when`` (an action, ``reset``, ``restore`` or ``truncate``)."""

    def __init__(self, when: str, error: Exception, blocking: bool = False) -> None:
        super().__init__(blocking=blocking)
        self.when, self.error = when, error

    def check(self, what: str) -> None:
        if what == self.when:
            raise self.error

    def _reset(self, task):
        if task.id == "t":
            self.check("reset")
        return super()._reset(task)

    def _step(self, text):
        self.check(text)
        return super()._step(text)

    def restore(self, snapshot):
        self.check("restore")
        super().restore(snapshot)

    def truncate(self):
        self.check("truncate")
        return super().truncate()


def failing(when: str, blocking: bool) -> Troubled:
    return Troubled(when, EnvironmentFailure("the tool is down"), blocking)


@both_ways
def test_failure_in_reset_leaves_a_failed_root_and_other_tasks_alone(blocking):
    other = Task("u", "toy", "start", ("x",))
    sampler = ScriptedSampler(by_place(CHAIN, task="u"))
    failed, fine = grow(sampler, failing("reset", blocking), FORKED, [TASK, other])
    [tree] = failed.trees
    assert (tree.status, tree.leaves(), tree.training_leaves()) == ([Status.FAILED], [], [])
    assert tree.info[ROOT]["error"] == "the tool is down"
    assert len(fine.leaves()) == 2
    [row] = list(episodes(failed))
    assert (row["status"], row["turns_taken"], row["tokens"]) == ("failed", 0, 0)
    assert episode_numbers(row)["failed"] == 1.0
    assert rollout_stats([failed, fine], SamplerCounters())["rollout/failed"] == 1


@both_ways
def test_failure_in_a_step_fails_the_branch_and_its_tree_still_expands(blocking):
    [group] = grow(ScriptedSampler(by_place(CHAIN)), failing("b", blocking), FORKED)
    [tree] = group.trees
    assert tree.status == [Status.OPEN, Status.OPEN, Status.FAILED, Status.OPEN, Status.TERMINAL]
    assert tree.ids[2] == encode("b")
    assert tree.info[2] == {"action": "b", "finish_reason": "stop", "error": "the tool is down"}
    assert (tree.leaves(), tree.training_leaves()) == ([2, 4], [4])
    stats = rollout_stats([group], SamplerCounters())
    assert (stats["rollout/failed"], stats["train/reward"]) == (1, 1.0)  # the failed branch's 0 is no reward


@both_ways
@pytest.mark.parametrize("when", ["c", "restore"])
def test_failure_in_a_fork_fails_the_fork_alone(when, blocking):
    [group] = grow(ScriptedSampler(by_place(CHAIN)), failing(when, blocking), FORKED)
    [tree] = group.trees
    assert tree.status[4] is Status.FAILED
    assert tree.ids[4] == encode("c")
    assert tree.training_leaves() == [3]


@both_ways
def test_failure_while_a_truncated_episode_is_valued_fails_the_branch(blocking):
    """Context 10 after node 2, so that node 2 and the fork's first node would overflow."""
    [group] = grow(ScriptedSampler(by_place(CHAIN)), failing("truncate", blocking), FORKED, max_context=13)
    [tree] = group.trees
    assert tree.status[2:] == [Status.FAILED, Status.FAILED]
    assert tree.info[2]["error"] == "the tool is down"
    assert tree.training_leaves() == []


@both_ways
@pytest.mark.parametrize(("when", "turn"), [("b", 2), ("c", 2), ("restore", 2), ("reset", 0), ("truncate", 2)])
def test_other_errors_stop_the_run_and_name_the_task(when, turn, blocking):
    env = Troubled(when, ZeroDivisionError("a bug"), blocking)
    limits = {"max_context": 13} if when == "truncate" else {}
    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        grow(ScriptedSampler(by_place(CHAIN)), env, FORKED, **limits)
    [note] = caught.value.__notes__
    assert "task 't'" in note
    assert turn == 0 or f"turn {turn}" in note


def test_a_replay_that_is_answered_differently_stops_the_run():
    words = iter("abcdefghij")

    class Fickle(ToyEnv):
        def _step(self, text):
            result = super()._step(text)
            result.observation += f" {next(words)}" if not result.done else ""
            return result

    with pytest.raises(NonDeterministicEnvironment, match="task 't': turn 1") as caught:
        grow(ScriptedSampler(by_place(CHAIN)), Fickle(), FORKED)
    assert "turn 2 of task 't'" in caught.value.__notes__[0]


def test_a_tree_whose_first_action_fails_forks_at_the_root():
    script = {(0, 0, 0): "a", (0, 1, 0): "answer x", (0, 2, 0): "answer y"}
    [group] = grow(ScriptedSampler(by_place(script)), failing("a", False), TreeSearch(trees=1, expansions=2))
    [tree] = group.trees
    assert tree.parent == [-1, 0, 0, 0]
    assert tree.status[1:] == [Status.FAILED, Status.TERMINAL, Status.TERMINAL]
    assert tree.training_leaves() == [2, 3]


def test_an_error_does_not_wait_for_all_that_is_queued():
    begun = []

    class Broken(ToyEnv):
        def _reset(self, task):
            begun.append(task.id)
            if task.id == "0":
                raise KeyError("a bug of the environment")
            time.sleep(0.05)
            return super()._reset(task)

    tasks = [Task(str(i), "test", "question", ("x",)) for i in range(200)]
    with pytest.raises(KeyError, match="a bug"):
        grow(ScriptedSampler(by_place(CHAIN)), Broken(blocking=True), FORKED, tasks, env_workers=2)
    assert len(begun) < 100


PATIENCE = 60  # seconds until something that waits in vain gives up
PAIR = [Task(name, "toy", "start", ("x",)) for name in ("hang", "bug")]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_does_not_wait_for_environments_that_still_answer(error):
    begun, release, answered = threading.Event(), threading.Event(), threading.Event()

    class Hanging(ToyEnv):
        def _step(self, text):
            if self._task.id == "hang":
                begun.set()
                release.wait(PATIENCE)
                answered.set()
                return super()._step(text)
            assert begun.wait(PATIENCE)
            raise error("a bug")

    sampler = ScriptedSampler(lambda *_: "a")
    with pytest.raises(error, match="a bug"):
        grow(sampler, Hanging(blocking=True), TreeSearch(1, 0), PAIR)
    assert not answered.is_set()
    release.set()
    assert answered.wait(PATIENCE)


def test_a_sampler_can_be_used_again_after_an_error():
    """One request is answered at a time, so that others are in flight when the environment is interrupted."""
    tasks = [Task(str(i), "toy", "start", ("x",)) for i in range(4)]
    sampler = ScriptedSampler(wandering(), order=random.Random(0))
    with pytest.raises(KeyboardInterrupt):
        grow(sampler, Troubled("a", KeyboardInterrupt()), TreeSearch(2, 0), tasks)
    assert len(sampler.requests) > 4
    assert sampler.queue == []
    groups = grow(sampler, StateEnv(), TreeSearch(2, 2), tasks)
    plain = grow(ScriptedSampler(wandering()), StateEnv(), TreeSearch(2, 2), tasks)
    assert [group.trees for group in groups] == [group.trees for group in plain]


def test_a_sampler_that_cannot_be_stopped_does_not_hide_the_error():
    class Stuck(ScriptedSampler):
        def abort(self):
            raise RuntimeError("the engine is gone")

    with pytest.raises(ZeroDivisionError, match="a bug") as caught:
        grow(Stuck(by_place(CHAIN)), Troubled("b", ZeroDivisionError("a bug")), FORKED)
    assert caught.value.__notes__[-1] == "the sampler could not be stopped then: RuntimeError: the engine is gone"
