"""Episodes that are played once to check an environment; everything else is compared with them."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.envs.check_actions import Policy, choose
from lit_treerl.envs.check_report import Report, differences, short
from lit_treerl.envs.check_results import judge_prompt, judge_result
from lit_treerl.trees.task import Message, Task


@dataclass
class Recording:
    """One episode as it was first played.

    Attributes:
        task: its task.
        prompt: what ``reset`` gave.
        snapshots: before every turn.
        texts: the policy's, turn by turn.
        results: what ``step`` gave.
        returned: the very objects that it returned, to see whether they are changed later.
    """

    task: Task
    prompt: list[Message]
    snapshots: list[Any] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    returned: list[StepResult] = field(default_factory=list)


class Recorder:
    """Plays episodes and judges what the environment returns.

    Args:
        env: to play.
        report: takes the problems.
        policy: writes the turns; see :func:`lit_treerl.envs.check_actions.choose`.
        reward_range: least and greatest reward of one turn.
    """

    def __init__(
        self, env: Environment, report: Report, policy: Policy | None, reward_range: tuple[float, float]
    ) -> None:
        self.env, self.report, self.policy, self.reward_range = env, report, policy, reward_range

    def play(self, task: Task, rng: random.Random) -> Recording | None:
        """An episode; None where it is of no use to the other checks."""
        where, before = f"task {task.id!r}", copy.deepcopy(task)
        with self.report.guard("playing", where):
            twin = self.env.spawn()
            with self.report.timed("reset"):
                prompt = twin.reset(task)
            if wrong := list(judge_prompt(prompt)):
                self.report.add("prompt", *wrong[0], f"{where}, reset")
                return None
            played = Recording(task, copy.deepcopy(prompt))
            self.report.episodes += 1
            usable = self._to_the_end(twin, played, rng)
            if task != before:
                self.report.add("task", "changed", "the episode changed the task, which other episodes share", where)
            self._look_back(played)
            return played if usable else None
        return None

    def _to_the_end(self, twin: Environment, played: Recording, rng: random.Random) -> bool:
        """Whether every turn was answered by a result."""
        seen, result = [message["content"] for message in played.prompt], None
        while result is None or not result.done:
            where = f"task {played.task.id!r}, turn {len(played.texts) + 1}"
            if len(played.texts) > self.env.max_turns:  # one more than max_turns may be played, to answer
                what = f"after {len(played.texts)} turns the episode still goes on; max_turns is {self.env.max_turns}"
                self.report.add("end", "too long", what, where)
                return True
            with self.report.timed("snapshot"):
                played.snapshots.append(twin.snapshot())
            text = choose(self.policy, twin, played.task, seen, rng)
            with self.report.timed("step"):
                result = twin.step(text)
            wrong = list(judge_result(self.env, result, self.reward_range))
            for kind, what in wrong:
                self.report.add("result", kind, what, f"{where}, {short(text)}")
            if not isinstance(result, StepResult) or not isinstance(result.info, dict):
                return False
            played.texts.append(text)
            played.results.append(copy.deepcopy(result))
            played.returned.append(result)
            self.report.turns += 1
            seen.append(result.observation if result.prompt is None or wrong else result.prompt[-1]["content"])
            self.report.won += bool(result.done and not wrong and result.info["success"] > 0)
        return True

    def _look_back(self, played: Recording) -> None:
        for turn, (kept, returned) in enumerate(zip(played.results, played.returned, strict=True), 1):
            for kind, what in differences(kept, returned, frozenset()):
                where = f"task {played.task.id!r}, turn {turn}"
                self.report.add("result", f"{kind} later", f"a result was changed after it was returned: {what}", where)
