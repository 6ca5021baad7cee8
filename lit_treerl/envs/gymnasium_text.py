"""Gymnasium environments that speak: observations are text, actions are text or have names."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import Any, Literal

from lit_treerl.envs.base import RunsIn
from lit_treerl.envs.command_env import CommandEnvironment, Scene
from lit_treerl.settings import check_choice, check_positive
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task

MISSING = "gymnasium is not installed; pip install 'lit-treerl[gymnasium]'"


class GymnasiumText(CommandEnvironment):
    """A gymnasium environment as a world of commands.

    Every task is an episode with the seed ``task.extra["seed"]`` (one made from the task's id where there is none) and
    the reset options ``task.extra["options"]``. What the agent is told to do is ``task.question``. Rewards are summed:
    the score is their sum over ``best_return``, between 0 and 1, and the episode is a success where the sum reaches
    ``best_return`` or ``info`` says so under ``success`` or ``is_success``.

    Args:
        env: id for ``gymnasium.make`` (``module:Id-v0`` imports the module before), or ``package.module:function``.
        env_args: arguments of either.
        text_key: where the text is, in observations that are dicts.
        commands: names of the actions 0, 1, ... of a ``Discrete`` action space; ``info["action_mask"]`` is kept to.
        commands_key: where ``info`` lists what can be done now, for actions that are text; anything else is not taken.
        best_return: greatest sum of rewards.
        copying: ``deepcopy``: a snapshot is a deep copy; ``replay``: the actions are played again; ``auto``: a deep
            copy where that raises nothing. Whether either leads to the same state is what ``check-env`` finds out.
        runs_in: ``caller``, ``threads`` or ``processes``; in the last ``auto`` means replay.
        options: of :class:`~lit_treerl.envs.command_env.CommandEnvironment`.
    """

    def __init__(
        self,
        env: str,
        env_args: dict[str, Any] | None = None,
        text_key: str | None = None,
        commands: Sequence[str] | None = None,
        commands_key: str = "admissible_commands",
        best_return: float = 1.0,
        copying: Literal["auto", "deepcopy", "replay"] = "auto",
        runs_in: RunsIn = "caller",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_positive("best_return", best_return)
        check_choice("copying", copying, ("auto", "deepcopy", "replay"))
        check_choice("runs_in", runs_in, ("caller", "threads", "processes"))
        self.env, self.env_args, self.text_key = env, env_args or {}, text_key
        self.names, self.commands_key, self.best_return = tuple(commands or ()), commands_key, best_return
        self.copying, self.runs_in = copying, runs_in
        self._forget()

    def spawn(self) -> CommandEnvironment:
        """An instance with a gymnasium environment of its own, made at its first reset."""
        twin = super().spawn()
        assert isinstance(twin, GymnasiumText)
        twin._forget()
        return twin

    def close(self) -> None:
        """Close the gymnasium environment."""
        if self._gym is not None:
            self._gym.close()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_gym": None, "_played": (), "_running": None}

    def _forget(self) -> None:
        self._gym: Any = None
        self._running: Task | None = None  # the task whose episode ``_gym`` is in
        self._played: tuple[Any, ...] = ()  # its actions
        self._total, self._offered = 0.0, ()

    # ---- the world ----

    def _begin(self, task: Task) -> Scene:
        if self._gym is None:
            self._gym = make(self.env, self.env_args)
            self._check_actions()
        seed = task.extra.get("seed", derive_seed("gymnasium", task.id) % 2**31)
        observation, info = self._gym.reset(seed=seed, options=task.extra.get("options"))
        self._running, self._played, self._total = task, (), 0.0
        return self._scene(observation, info, "")

    def _execute(self, command: str) -> Scene:
        action = self._action(command)
        if action is None:
            return Scene("Nothing happens.", self._offered, score=self._score())
        return self._play(action, command)

    def _play(self, action: Any, command: str) -> Scene:
        observation, reward, terminated, truncated, info = self._gym.step(action)
        self._played, self._total = (*self._played, action), self._total + float(reward)
        return self._scene(observation, info, command, done=bool(terminated or truncated))

    def _world(self) -> Any:
        past = (self._running, self._played, self._total, self._offered)
        return past, (self._copy() if self.copying != "replay" else None)

    def _return_to(self, world: Any) -> None:
        (task, played, total, offered), kept = world
        if kept is None:
            self._replay(task, played)
        else:
            self._gym = copy.deepcopy(kept)
        self._running, self._played, self._total, self._offered = task, played, total, offered

    def _replay(self, task: Task, played: tuple[Any, ...]) -> None:
        if self._running is not task or self._played != played[: len(self._played)]:
            self._begin(task)
        for action in played[len(self._played) :]:
            self._play(action, "")

    def _copy(self) -> Any:
        if self.copying == "auto" and self.runs_in == "processes":
            return None
        try:
            return copy.deepcopy(self._gym)
        except Exception:
            if self.copying == "deepcopy":
                raise
            self.copying = "replay"
            return None

    # ---- text in, text out ----

    def _scene(self, observation: Any, info: dict[str, Any], executed: str, *, done: bool = False) -> Scene:
        text = observation
        if isinstance(observation, dict):
            if self.text_key not in observation:
                keys = ", ".join(map(repr, observation))
                raise ValueError(f"text_key is {self.text_key!r}, but the observations of {self.env} have {keys}")
            text = observation[self.text_key]
        if not isinstance(text, str):
            raise ValueError(f"observations of {self.env} must be text, or dicts with text; got {type(text).__name__}")
        self._offered = self._now_offered(info)
        said = bool(info.get("success", info.get("is_success", False)))
        success = done and (said or self._total >= self.best_return)
        return Scene(text, () if done else self._offered, executed, done, success, self._score())

    def _now_offered(self, info: dict[str, Any]) -> tuple[str, ...]:
        if self.names:
            mask = info.get("action_mask")
            return tuple(name for i, name in enumerate(self.names) if mask is None or mask[i])
        return tuple(map(str, info.get(self.commands_key) or ()))

    def _action(self, command: str) -> Any:
        """What the gymnasium environment is given; None for what it would not take."""
        if self.names:
            return self._first() + self.names.index(command) if command in self._offered else None
        if self._offered:
            return command if command in self._offered else None
        return command if self._gym.action_space.contains(command) else None

    def _first(self) -> int:
        return int(self._gym.action_space.start)

    def _check_actions(self) -> None:
        n = getattr(self._gym.action_space, "n", None)
        if n is not None and int(n) != len(self.names):
            raise ValueError(f"{self.env} has {n} actions and commands names {len(self.names)}; name each of them")
        if n is None and self.names:
            raise ValueError(f"commands names the actions of a Discrete space; {self.env} has {self._gym.action_space}")

    def _score(self) -> float:
        return min(1.0, max(0.0, self._total / self.best_return))


def make(env: str, env_args: dict[str, Any]) -> Any:
    """A gymnasium environment from its id, or from a function that makes one.

    Raises:
        ImportError: where gymnasium is not installed.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(MISSING) from error
    module, _, name = env.partition(":")
    if name and (function := getattr(importlib.import_module(module), name, None)) is not None:
        return function(**env_args)
    return gymnasium.make(env, disable_env_checker=True, **env_args)
