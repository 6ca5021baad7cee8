"""The Environment contract."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal

from lit_treerl.trees.task import Message, Task
from lit_treerl.trees.tree import ContextStyle

RunsIn = Literal["caller", "threads", "processes"]
"""Where resets and steps are executed: at once by the rollout loop, in threads because they wait for something outside,
or in worker processes because they are slow or not thread-safe, or may take their process down."""


class EnvironmentFailure(Exception):
    """External trouble (a tool is down, an engine crashed): the branch is labelled failed and never trained on."""


class NonDeterministicEnvironment(Exception):
    """A replayed action prefix gave another observation than before."""


@dataclass
class StepResult:
    """What an environment answers to one action.

    Attributes:
        observation: text that is appended to the context; may be cut to the observation limit.
        closing: text after ``observation`` that is never cut (a closing tag).
        reward: reward of this step.
        done: the episode is over.
        action_key: canonical form of the executed action; equal actions have equal keys.
        info: JSON-able facts (``tool_calls``, ``answer``, ``em``, ``f1``, ``score``, ``success``, ``format_valid``).
        prompt: messages of the next turn's fresh prompt, for environments with ``context == "window"``.
    """

    observation: str = ""
    closing: str = ""
    reward: float = 0.0
    done: bool = False
    action_key: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    prompt: list[Message] | None = None


class Environment(ABC):
    """One episode at a time; :meth:`spawn` gives further instances that share read-only resources.

    Same task and same action prefix give the same observations. Subclasses write ``_reset`` and ``_step``, and
    override ``snapshot`` and ``restore`` where replaying the prefix would be slow.

    Attributes:
        executor: where the calls of this instance wait in line, for instances that share something which serves one
            call at a time (a process); None for instances that can be called side by side.
    """

    context: ContextStyle = "growing"
    stop: tuple[str, ...] = ()
    runs_in: RunsIn = "caller"
    max_turns: int = 1
    executor: Executor | None = None

    _task: Task | None = None
    _history: list[tuple[str, str]]

    def setup(self) -> None:
        """Build shared resources once (an index, a connection); calling again does nothing."""

    def close(self) -> None:
        """Release what :meth:`setup` opened."""

    def spawn(self) -> Environment:
        """A fresh instance for another branch, sharing what :meth:`setup` built."""
        twin = copy.copy(self)
        twin._task, twin._history = None, []
        return twin

    def reset(self, task: Task) -> list[Message]:
        """Begin an episode; returns the chat messages of the prompt."""
        self._task, self._history = task, []
        return self._reset(task)

    def step(self, text: str) -> StepResult:
        """Execute one action given as the policy's raw text.

        Raises:
            EnvironmentFailure: on external trouble, after retries.
        """
        result = self._step(text)
        self._history.append((text, result.observation))
        return result

    def truncate(self) -> StepResult:
        """What an episode is worth that a limit of length cuts here: its reward and closing facts; 0 by default."""
        return StepResult(done=True)

    def snapshot(self) -> Any:
        """State from which :meth:`restore` goes on; here the task and the action prefix."""
        return self._task, tuple(self._history)

    def restore(self, snapshot: Any) -> None:
        """Go back to ``snapshot``; here by replaying its actions.

        Raises:
            NonDeterministicEnvironment: when a replayed observation differs.
        """
        task, history = snapshot
        self.reset(task)
        for turn, (text, observation) in enumerate(history, 1):
            if self.step(text).observation != observation:
                raise NonDeterministicEnvironment(f"task {task.id!r}: turn {turn} was answered differently on replay")

    @abstractmethod
    def _reset(self, task: Task) -> list[Message]: ...

    @abstractmethod
    def _step(self, text: str) -> StepResult: ...
