"""Whether an environment keeps the contract that trees of rollouts rest on; see docs/environments.md.

An episode is played once, with a snapshot before every turn. Everything else is a comparison with that recording: the
same actions again, onwards from the snapshots, in between other episodes, in threads, and through pickles.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.envs.check_actions import Policy, policy_of
from lit_treerl.envs.check_recording import Recorder, Recording
from lit_treerl.envs.check_report import Report, differences, short
from lit_treerl.envs.check_results import judge_result, judge_settings
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task

AHEAD = 2  # turns that are compared after a snapshot was restored
THREADS = 4


def check_environment(
    env: Environment,
    tasks: Sequence[Task],
    *,
    actions: Sequence[str] | Policy | None = None,
    episodes: int = 10,
    seed: int = 0,
    reward_range: tuple[float, float] = (-math.inf, math.inf),
    ignore: Sequence[str] = (),
) -> Report:
    """Play episodes and see whether ``env`` keeps its contract; ``check_environment(...).assert_ok()`` in a test.

    It is set up, but not closed.

    Args:
        env: the environment.
        tasks: taken in turn.
        actions: texts, of which every turn takes one by chance, or a function of the task, the texts seen so far and a
            random generator. When None: commands that the world offers, where it is a
            :class:`~lit_treerl.envs.command_env.CommandEnvironment`, else searches, answers and commands of words that
            were seen; and now and then a text that nobody can read.
        episodes: how many.
        seed: of the actions.
        reward_range: least and greatest reward of one turn.
        ignore: keys of ``info`` that may differ from one time to the next (seconds that something took).

    Raises:
        ValueError: without tasks, episodes or actions.
    """
    if not tasks or episodes < 1:
        raise ValueError(f"give at least one task and one episode; got {len(tasks)} tasks and {episodes} episodes")
    policy, report = policy_of(actions), Report()
    recorder = Recorder(env, report, policy, reward_range)
    checker = _Checker(env, report, reward_range, frozenset(ignore))
    for kind, what in judge_settings(env):
        report.add("settings", kind, what, type(env).__name__)
    with report.guard("setup", type(env).__name__):
        env.setup()
    if report.problems:
        return report
    recorded: list[Recording] = []
    for number in range(episodes):
        task = tasks[number % len(tasks)]
        if (played := recorder.play(task, random.Random(derive_seed(seed, number)))) is None:
            continue
        for check in (checker.again, checker.snapshots, checker.truncation):
            check(played, random.Random(derive_seed(seed, number, check.__name__)))
        recorded.append(played)
    for one, other in zip(recorded, recorded[1:] + recorded[:1], strict=True):
        checker.interleaved(one, other)
    checker.elsewhere(recorded)
    if recorded and not any(result.action_key for played in recorded for result in played.results):
        report.notes.append("no action has a key: to the value tree (TreePPO) all actions look the same, and invalid")
    return report


class _Checker:
    """Comparisons with recordings; each adds to the report what it finds."""

    def __init__(
        self, env: Environment, report: Report, reward_range: tuple[float, float], ignore: frozenset[str]
    ) -> None:
        self.env, self.report, self.reward_range, self.ignore = env, report, reward_range, ignore

    def again(self, played: Recording, rng: random.Random) -> None:
        """Once more from the beginning, in a fresh instance and then in the same one."""
        with self.report.guard("determinism", f"task {played.task.id!r}"):
            twin = self.env.spawn()
            for _ in range(2):
                self._reset(twin, played, "determinism")
                self._go_on(twin, played, 0, len(played.texts), "determinism")

    def snapshots(self, played: Recording, rng: random.Random) -> None:
        """Onwards from every snapshot, in any order, in fresh and in used instances, and from snapshots of those."""
        used, order = self.env.spawn(), list(range(len(played.texts)))
        rng.shuffle(order)
        for place, turn in enumerate(order):
            with self.report.guard("snapshot", f"task {played.task.id!r}, turn {turn + 1}"):
                twin = used if place % 2 else self.env.spawn()
                self._restore(twin, played.snapshots[turn])
                if place == 0 and turn + 1 < len(played.texts):  # a fork of a fork
                    self._go_on(twin, played, turn, 1, "snapshot")
                    fork, twin, turn = twin.snapshot(), self.env.spawn(), turn + 1
                    self._restore(twin, fork)
                self._go_on(twin, played, turn, AHEAD if place else len(played.texts), "snapshot")
        with self.report.guard("old snapshot", f"task {played.task.id!r}"):
            for _ in range(2):  # the second sees what the first one's turns did to the snapshot
                self._restore(used, played.snapshots[0])
                self._go_on(used, played, 0, len(played.texts), "old snapshot")

    def truncation(self, played: Recording, rng: random.Random) -> None:
        """What is said of an episode that is cut before its last turn."""
        where = f"task {played.task.id!r}, turn {len(played.texts)}"
        with self.report.guard("truncate", where):
            twin = self.env.spawn()
            self._restore(twin, played.snapshots[-1])
            result = twin.truncate()
            for kind, what in judge_result(self.env, result, self.reward_range):
                if kind != "success":  # an environment that has none to give may leave it out
                    self.report.add("truncate", kind, what, where)
            if isinstance(result, StepResult) and not result.done:
                self.report.add("truncate", "done", "truncate must return done=True", where)

    def interleaved(self, one: Recording, other: Recording) -> None:
        """Two episodes turn by turn, and a third instance that is put anywhere in between."""
        check, where = "shared state", f"tasks {one.task.id!r} and {other.task.id!r} in turn"
        with self.report.guard(check, where):
            twins = [self.env.spawn(), self.env.spawn()]
            for twin, played in zip(twins, (one, other), strict=True):
                self._reset(twin, played, check)
            third = self.env.spawn()
            for turn in range(max(len(one.texts), len(other.texts))):
                for twin, played in zip(twins, (one, other), strict=True):
                    if turn < len(played.texts):
                        self._go_on(twin, played, turn, 1, check)
                self._restore(third, other.snapshots[turn % len(other.snapshots)])
                third.step(other.texts[turn % len(other.texts)])

    def elsewhere(self, recorded: list[Recording]) -> None:
        """In threads or through pickles, where the environment says that it runs so."""
        if self.env.runs_in == "threads" and recorded:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(self._in_thread, recorded * 2))
        if self.env.runs_in == "processes":
            for played in recorded:
                self._through_pickles(played)

    def _in_thread(self, played: Recording) -> None:
        with self.report.guard("threads", f"task {played.task.id!r}"):
            twin = self.env.spawn()
            self._reset(twin, played, "threads")
            self._go_on(twin, played, 0, len(played.texts), "threads")

    def _through_pickles(self, played: Recording) -> None:
        with self.report.guard("pickle", f"task {played.task.id!r}"):
            copied: Environment = pickle.loads(pickle.dumps(self.env))
            copied.setup()
            task, results = pickle.loads(pickle.dumps((played.task, played.results)))
            if (task, results) != (played.task, played.results):
                self.report.add("pickle", "equal", "task or results come out of a pickle changed", f"task {task.id!r}")
            for turn in {0, len(played.texts) // 2}:
                twin = copied.spawn()
                self._restore(twin, pickle.loads(pickle.dumps(played.snapshots[turn])))
                self._go_on(twin, played, turn, len(played.texts), "pickle")

    # ---- parts ----

    def _reset(self, twin: Environment, played: Recording, check: str) -> None:
        with self.report.timed("reset"):
            prompt = twin.reset(played.task)
        if prompt != played.prompt:
            what = f"the prompt was {short(played.prompt)} and is now {short(prompt)}"
            self.report.add(check, "prompt", what, f"task {played.task.id!r}, reset")

    def _restore(self, twin: Environment, snapshot: Any) -> None:
        with self.report.timed("restore"):
            twin.restore(snapshot)

    def _go_on(self, twin: Environment, played: Recording, turn: int, most: int, check: str) -> None:
        """Play the recorded texts from ``turn`` on and report the first turn that is answered differently."""
        for number in range(turn, min(turn + most, len(played.texts))):
            with self.report.timed("step"):
                result = twin.step(played.texts[number])
            if found := list(differences(played.results[number], result, self.ignore)):
                (kind, what), *others = found
                more = f"; different too: {', '.join(name for name, _ in others)}" if others else ""
                where = f"task {played.task.id!r}, turn {number + 1}, {short(played.texts[number])}"
                self.report.add(check, kind, what + more, where)
                return
