"""Whatever finishes first, the trees are the same; and nothing waits for what it does not need."""

import random
import threading
import time

import pytest

from lit_treerl.sampling.base import Completion
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import Status
from scripted import ScriptedSampler, StateEnv, ToyEnv, grow, wandering

TASKS = [Task(str(i), "toy", "start", ("x",)) for i in range(5)]
SEARCH = TreeSearch(trees=2, expansions=3, rounds=2)
PATIENCE = 60  # seconds until a test that waits in vain gives up


def plain_trees():
    return [group.trees for group in grow(ScriptedSampler(wandering()), ToyEnv(), SEARCH, TASKS)]


class Shuffler:
    """Lets waiting steps go on one by one, each time a random one of those that wait."""

    def __init__(self, seed: int) -> None:
        self.rng, self.gates, self.changed = random.Random(seed), [], threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        gate = threading.Event()
        with self.changed:
            self.gates.append(gate)
            self.changed.notify()
        assert gate.wait(PATIENCE)

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.gates or self.closed)
                if self.closed:
                    return
                self.gates.pop(self.rng.randrange(len(self.gates))).set()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("base", [ToyEnv, StateEnv])
def test_threads_and_random_order_give_the_trees_of_the_inline_loop(base, seed):
    shuffler = Shuffler(seed)

    class Slow(base):
        def step(self, text):
            shuffler.wait()
            return super().step(text)

    try:
        order = random.Random(seed)
        groups = grow(ScriptedSampler(wandering(), order=order), Slow(blocking=True), SEARCH, TASKS, env_workers=7)
    finally:
        shuffler.close()
    assert [group.trees for group in groups] == plain_trees()


def test_answers_in_reverse_order_give_the_same_trees():
    """The first step of every task waits until that of the next task has been answered."""
    answered = [threading.Event() for _ in TASKS]
    order: list[int] = []

    class Reversed(ToyEnv):
        def step(self, text):
            number = int(self._task.id)
            if number + 1 < len(TASKS):
                assert answered[number + 1].wait(PATIENCE)
            result = super().step(text)
            order.append(number)
            answered[number].set()
            return result

    groups = grow(ScriptedSampler(wandering()), Reversed(blocking=True), SEARCH, TASKS, env_workers=16)
    assert [n for i, n in enumerate(order) if n not in order[:i]] == [4, 3, 2, 1, 0]
    assert [group.trees for group in groups] == plain_trees()


@pytest.mark.parametrize("seed", range(5))
def test_a_sampler_that_finishes_in_any_order_gives_the_same_trees(seed):
    sampler = ScriptedSampler(wandering(), order=random.Random(seed))
    groups = grow(sampler, ToyEnv(), SEARCH, TASKS)
    assert [group.trees for group in groups] == plain_trees()
    ids = [request.id for request in sampler.requests]
    assert len(set(ids)) == len(ids)


def place(seed: int, tasks: tuple[str, ...]) -> tuple[str, int, int]:
    """(task, branch, turn) that a request's seed stands for."""
    table = {
        derive_seed(0, "action", task, 0, branch, turn): (task, branch, turn)
        for task in tasks
        for branch in range(3)
        for turn in range(6)
    }
    return table[seed]


SLOW_AND_FAST = [Task("slow", "toy", "start"), Task("fast", "toy", "start")]


def two_trees(context: str, seed: int) -> str:
    _, branch, turn = place(seed, ("slow", "fast"))
    return "abc"[branch] if turn < 2 else "answer x"


def test_a_tree_expands_while_the_sampler_still_works_on_another():
    """The sampler holds the slow tree's first action back until the fast tree is done, forks and all."""
    finished: list[tuple[str, int, int]] = []

    class Holding(ScriptedSampler):
        def poll(self, interrupt=None) -> list[Completion]:
            fast = [r for r in self.queue if place(r.seed, ("slow", "fast"))[0] == "fast"]
            taken = fast or self.queue
            self.queue = [r for r in self.queue if r not in taken]
            finished.extend(place(r.seed, ("slow", "fast")) for r in taken)
            return [self.complete(r) for r in taken]

    search = TreeSearch(trees=1, expansions=2)
    groups = grow(Holding(two_trees), StateEnv(), search, SLOW_AND_FAST)
    first_slow = next(i for i, (task, _, _) in enumerate(finished) if task == "slow")
    assert {(task, branch) for task, branch, _ in finished[:first_slow]} == {("fast", 0), ("fast", 1), ("fast", 2)}
    assert [len(g.leaves()) for g in groups] == [3, 3]


def test_a_tree_expands_while_the_environment_still_answers_another():
    """The slow task's first step returns only once a fork of the fast task has been submitted."""
    forked = threading.Event()

    class Watching(ScriptedSampler):
        def submit(self, request):
            task, branch, _ = place(request.seed, ("slow", "fast"))
            if task == "fast" and branch > 0:
                forked.set()
            super().submit(request)

    class Waiting(StateEnv):
        def step(self, text):
            if self._task.id == "slow":
                assert forked.wait(PATIENCE), "the fast tree did not expand while the slow one was waiting"
            return super().step(text)

    groups = grow(Watching(two_trees), Waiting(blocking=True), TreeSearch(trees=1, expansions=2), SLOW_AND_FAST)
    assert [len(g.leaves()) for g in groups] == [3, 3]


def test_a_branch_takes_its_next_turn_while_a_sibling_tree_waits():
    """The slow task's first step returns only once the fast one has asked for its third action."""
    third = threading.Event()

    class Watching(ScriptedSampler):
        def submit(self, request):
            if place(request.seed, ("slow", "fast")) == ("fast", 0, 2):
                third.set()
            super().submit(request)

    class Waiting(StateEnv):
        def step(self, text):
            if self._task.id == "slow":
                assert third.wait(PATIENCE), "the fast branch waited for the slow one"
            return super().step(text)

    groups = grow(Watching(two_trees), Waiting(blocking=True), TreeSearch(trees=1, expansions=0), SLOW_AND_FAST)
    assert [g.trees[0].depth(3) for g in groups] == [3, 3]


@pytest.mark.parametrize("blocking", [False, True])
def test_lockstep_gives_the_same_trees_in_waves(blocking):
    sampler = ScriptedSampler(wandering(), order=random.Random(3))
    groups = grow(sampler, ToyEnv(blocking=blocking), SEARCH, TASKS, lockstep=True)
    assert [group.trees for group in groups] == plain_trees()
    again = ScriptedSampler(wandering())
    grow(again, ToyEnv(blocking=blocking), SEARCH, TASKS, lockstep=True)
    assert sampler.requests == again.requests  # a fixed schedule, whatever finishes first


def test_branches_with_the_most_turns_before_their_tree_run_first():
    """A request's priority is its turn, less the most turns (9) of each round of forks that is still to come."""
    sampler = ScriptedSampler(two_trees)
    grow(sampler, ToyEnv(), TreeSearch(trees=1, expansions=1, rounds=2), [SLOW_AND_FAST[0]])
    seen = {place(request.seed, ("slow",))[1:]: request.priority for request in sampler.requests}
    assert seen.keys() >= {(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)}
    assert seen == {(branch, turn): turn - 9 * (2 - branch) for branch, turn in seen}


def test_priorities_do_not_change_the_trees():
    class Urgent(ScriptedSampler):
        """Answers one request at a time, the lowest priority number first."""

        def poll(self, interrupt=None):
            self.queue.sort(key=lambda request: request.priority)
            return [self.complete(self.queue.pop(0))]

    assert [group.trees for group in grow(Urgent(wandering()), ToyEnv(), SEARCH, TASKS)] == plain_trees()


def test_the_loop_goes_on_while_an_environment_values_a_truncated_episode():
    """The long prompt's truncation returns only once the other task's episode is done."""
    done, where = threading.Event(), []

    class Waiting(ToyEnv):
        def truncate(self):
            where.append(threading.current_thread())
            assert done.wait(PATIENCE), "the loop stood still"
            return super().truncate()

    tasks = [Task("long", "toy", "start " * 40), Task("t", "toy", "start")]
    env, sampler = Waiting(blocking=True), ScriptedSampler(lambda *_: "answer x")
    groups = grow(sampler, env, TreeSearch(1, 0), tasks, max_context=40, on_leaf=lambda _: done.set())
    assert [group.trees[0].status[-1] for group in groups] == [Status.TRUNCATED, Status.TERMINAL]
    assert where != [threading.main_thread()]


def test_an_answer_that_comes_while_the_sampler_works_is_submitted_at_once():
    """The sampler works on the slow task's action until the fast task's second one is submitted."""
    polls = []

    class Busy(ScriptedSampler):
        def poll(self, interrupt=None):
            fast = [r for r in self.queue if place(r.seed, ("slow", "fast"))[0] == "fast"]
            if not fast and len(self.requests) < 4:
                until = time.monotonic() + PATIENCE
                while not interrupt():
                    assert time.monotonic() < until, "no answer came"
                polls.append("interrupted")
                return []
            taken = fast or self.queue
            self.queue = [r for r in self.queue if r not in taken]
            return [self.complete(r) for r in taken]

    groups = grow(Busy(two_trees), ToyEnv(blocking=True), TreeSearch(1, 0), SLOW_AND_FAST)
    assert polls
    plain = grow(ScriptedSampler(two_trees), ToyEnv(), TreeSearch(1, 0), SLOW_AND_FAST)
    assert [group.trees for group in groups] == [group.trees for group in plain]
