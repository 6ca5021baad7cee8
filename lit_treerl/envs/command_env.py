"""What all worlds have in common that are acted in by commands (ALFWorld, WebShop, text games): prompts and rewards.

A subclass says how its world begins, what a command does to it, and how to come back to a state of it; everything that
an agent is shown, and what its episode is worth, is made here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.envs.command_protocol import STOP, defused, parse_command, well_formed_command
from lit_treerl.envs.command_templates import FEEDBACK, HISTORY, PROMPT, check_template, fill
from lit_treerl.trees.task import Message, Task
from lit_treerl.trees.tree import ContextStyle

INVALID = "INVALID"
DONE_SHOWN = 200  # characters of what the agent did, in later prompts: policies may ramble


@dataclass(frozen=True)
class Scene:
    """What a world shows.

    Attributes:
        text: in plain words.
        commands: what can be done now, as the agent is told; need not be all.
        executed: the command that led here in canonical form; "" where the world did not take it and stayed as it was.
        done: the world has ended.
        success: it has ended as the task wants it.
        score: how well, from 0 to 1.
    """

    text: str
    commands: tuple[str, ...] = ()
    executed: str = ""
    done: bool = False
    success: bool = False
    score: float = 0.0


@dataclass(frozen=True)
class _Episode:
    """Everything that an episode has become, but for the world's own state."""

    task: Task
    scene: Scene
    shown: str  # of the scene, defused; the environment's own words where a turn could not be read
    past: tuple[tuple[str, str], ...] = ()  # (what was shown, what was done about it, defused)
    turns: int = 0
    invalid: int = 0
    formatted: bool = True


class CommandEnvironment(Environment):
    """A world acted in by commands: think, then one command; the world says what it did.

    A turn that cannot be read is used up and changes nothing, and so does a command that the world does not take; both
    count as invalid. After ``max_turns`` turns the episode ends without success.

    Args:
        max_turns: most turns of an episode.
        context: ``window``: every turn is a fresh prompt with the last turns, as in the papers on ALFWorld and WebShop;
            ``growing``: the prompt once, then what the world answers to each command.
        history: in the ``window`` style, how many past turns a prompt recalls; more than there are is all.
        reward: reward of a finished episode: ``success`` (1 or 0) or ``score``, times ``scale``.
        scale: reward of a whole success.
        invalid_penalty: taken from the reward at every invalid turn; at least 0.
        prompt_template: the user message; ``{task}``, ``{step}``, ``{max_turns}``, ``{history}``, ``{observation}`` and
            ``{commands}`` are filled in. The default is the environment's own.
        history_template: a past turn; ``{step}``, ``{observation}`` and ``{command}``.
        feedback_template: in the ``growing`` style, what follows a turn; ``{observation}`` and ``{commands}``.
        joiner: between commands.
        no_history: stands for the history in the first prompt.
        unreadable: what is shown for a turn that cannot be read.
    """

    stop = STOP
    default_prompt = PROMPT

    def __init__(
        self,
        max_turns: int = 50,
        context: ContextStyle = "window",
        history: int = 2,
        reward: str = "success",
        scale: float = 1.0,
        invalid_penalty: float = 0.0,
        prompt_template: str | None = None,
        history_template: str = HISTORY,
        feedback_template: str = FEEDBACK,
        joiner: str = "\n",
        no_history: str = "none",
        unreadable: str = "That turn held no command between <action> and </action>.",
    ) -> None:
        for name, value, least in (("max_turns", max_turns, 1), ("history", history, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 <= invalid_penalty < math.inf:
            raise ValueError(
                f"invalid_penalty is taken from the reward and must be at least 0 and finite, got {invalid_penalty}"
            )
        if not math.isfinite(scale):
            raise ValueError(f"scale must be finite, got {scale}")
        if reward not in ("success", "score"):
            raise ValueError(f"reward must be 'success' or 'score', got {reward!r}")
        if context not in ("window", "growing"):
            raise ValueError(f"context must be 'window' or 'growing', got {context!r}")
        self.max_turns, self.context, self.history = max_turns, context, history
        self.reward, self.scale, self.invalid_penalty = reward, scale, invalid_penalty
        self.prompt_template = prompt_template if prompt_template is not None else self.default_prompt
        self.history_template, self.feedback_template = history_template, feedback_template
        self.joiner, self.no_history, self.unreadable = joiner, no_history, unreadable
        needed = ("task", "observation")
        known = (*needed, "step", "max_turns", "history", "commands")
        check_template("prompt_template", self.prompt_template, needed, known)
        check_template("history_template", history_template, ("command",), ("step", "observation", "command"))
        check_template("feedback_template", feedback_template, ("observation",), ("observation", "commands"))
        self._episode: _Episode | None = None

    # ---- what a world has to say ----

    @abstractmethod
    def _begin(self, task: Task) -> Scene:
        """The world at the beginning of a task."""

    @abstractmethod
    def _execute(self, command: str) -> Scene:
        """Do ``command``; where it cannot be done the world stays as it is and ``executed`` is empty."""

    @abstractmethod
    def _world(self) -> Any:
        """The world's state, immutable or copied, from which :meth:`_return_to` goes on."""

    @abstractmethod
    def _return_to(self, world: Any) -> None:
        """Go back to a state."""

    def _goal(self, task: Task) -> str:
        """What the agent is told to do."""
        return task.question

    def offered(self) -> tuple[str, ...]:
        """The commands that the world offers now."""
        return self._now().scene.commands

    @property
    def scene(self) -> Scene:
        """What is shown now, for scripted agents."""
        return self._now().scene

    # ---- the contract of environments ----

    def spawn(self) -> CommandEnvironment:
        """A fresh instance, before its first episode."""
        twin = super().spawn()
        assert isinstance(twin, CommandEnvironment)
        twin._episode = None
        return twin

    def snapshot(self) -> Any:
        """The episode, by reference, and the world's state."""
        return self._now(), self._world()

    def restore(self, snapshot: Any) -> None:
        """Go on from ``snapshot``, without replaying anything."""
        self._episode, world = snapshot
        self._task, self._history = self._now().task, []
        self._return_to(world)

    def truncate(self) -> StepResult:
        """An episode cut by a limit of length: no success."""
        return StepResult(done=True, info=self._closing(self._now(), Scene("")))

    def _reset(self, task: Task) -> list[Message]:
        scene = self._begin(task)
        self._episode = _Episode(task, scene, defused(scene.text))
        return self._prompt(self._episode)

    def _step(self, text: str) -> StepResult:
        before, command = self._now(), parse_command(text)
        scene = self._execute(command) if command else replace(before.scene, executed="")
        done = (command or text.strip())[:DONE_SHOWN]
        after = _Episode(
            before.task,
            scene,
            defused(scene.text) if command else self.unreadable,
            (*before.past, (before.shown, defused(done))),
            before.turns + 1,
            before.invalid + (not scene.executed),
            before.formatted and well_formed_command(text),
        )
        self._episode = after
        return self._result(after)

    def _result(self, after: _Episode) -> StepResult:
        scene = after.scene
        result = StepResult(action_key=scene.executed or INVALID, done=scene.done or after.turns >= self.max_turns)
        result.reward = 0.0 if scene.executed else -self.invalid_penalty
        result.info = {"tool_calls": int(bool(scene.executed)), "invalid": not scene.executed, "turns": after.turns}
        shown = {"observation": after.shown, "commands": self._commands(scene)}
        result.observation = fill(self.feedback_template, **shown)
        if result.done:
            worth = self.scale * (scene.score if self.reward == "score" else float(scene.success))
            if not math.isfinite(worth):
                raise ValueError(f"task {after.task.id!r}: {type(self).__name__} gave the score {scene.score}")
            result.reward += worth
            result.info |= self._closing(after, scene)
        elif self.context == "window":
            result.prompt = self._prompt(after)
        return result

    def _closing(self, episode: _Episode, scene: Scene) -> dict[str, Any]:
        return {
            "turns": episode.turns,
            "success": float(scene.success),
            "score": scene.score,
            "format_valid": episode.formatted,
            "invalid_turns": episode.invalid,
        }

    def _prompt(self, episode: _Episode) -> list[Message]:
        first = max(0, episode.turns - self.history)
        past = [
            fill(self.history_template, step=str(step), observation=shown, command=command)
            for step, (shown, command) in enumerate(episode.past[first:], first + 1)
        ]
        text = fill(
            self.prompt_template,
            task=self._goal(episode.task),
            step=str(episode.turns + 1),
            max_turns=str(self.max_turns),
            history="\n".join(past) or self.no_history,
            observation=episode.shown,
            commands=self._commands(episode.scene),
        )
        return [{"role": "user", "content": text}]

    def _commands(self, scene: Scene) -> str:
        return defused(self.joiner.join(scene.commands))

    def _now(self) -> _Episode:
        if self._episode is None:
            raise RuntimeError(f"{type(self).__name__} has no episode yet: call reset first")
        return self._episode
