"""ALFWorld: a household in text, one game per task."""

from __future__ import annotations

import re
from typing import Any, Literal

from lit_treerl.envs.alfworld.engine import Engine, Steps, shared_engine
from lit_treerl.envs.base import Environment
from lit_treerl.envs.command_env import CommandEnvironment, Scene
from lit_treerl.envs.command_templates import ANSWER_FORM
from lit_treerl.trees.task import Task

NOTHING = "Nothing happens."
LEFT_OUT = ("help",)  # commands that are taken but not offered: no part of the game

PROMPT = f"""\
You are a household robot. You act in a home that is told to you in words, one command at a time. Things are in, on or \
behind other things, and you must be where they are to see them or to use them; closed things must be opened first, \
and you can carry one thing at a time.

Your task: {{task}}

Before this, the latest last:
{{history}}

Step {{step}} of {{max_turns}} at most. You see:
{{observation}}

Commands that you can give now:
{{commands}}

{ANSWER_FORM}"""

_BANNER = re.compile(r"\A-= .* =-\s+")
_TASK = re.compile(r"\s+Your task is to: [^\n]*\Z")


class ALFWorld(CommandEnvironment):
    """ALFWorld's text games (arXiv 2010.03768) through their own engine, each task's game in ``extra["game"]``.

    The world's texts, commands and outcome are those of the engine. A command that it does not take is answered with
    ``Nothing happens.`` and counts as invalid. ``score`` is the share of the goal's conditions that are met. States
    are snapshots in place: going back asks for no replay of texts and never for a plan.

    Args:
        intro: ``whole``: a game begins with all that the engine says; ``room``: without its banner and the task, which
            the prompt tells anyway.
        options: those of every environment of commands: ``max_turns`` (50), ``context``, ``history``, ``reward``,
            ``scale``, ``invalid_penalty`` and the texts.
    """

    runs_in = "processes"
    default_prompt = PROMPT

    def __init__(self, intro: Literal["whole", "room"] = "whole", **options: Any) -> None:
        super().__init__(**options)
        if intro not in ("whole", "room"):
            raise ValueError(f"intro must be 'whole' or 'room', got {intro!r}")
        self.intro = intro
        self._game, self._path = "", ()

    def setup(self) -> None:
        """Load the engine into this process.

        Raises:
            ImportError: saying what to install.
        """
        self._engine()

    def spawn(self) -> Environment:
        """A fresh instance."""
        twin = super().spawn()
        assert isinstance(twin, ALFWorld)
        twin._episode, twin._game, twin._path = None, "", ()
        return twin

    def _begin(self, task: Task) -> Scene:
        game = task.extra.get("game")
        if not isinstance(game, str) or not game:
            raise ValueError(
                f"task {task.id!r} has no game: an ALFWorld task needs extra['game'], the path of a game.tw-pddl "
                f"file, got {game!r}; AlfworldTasks gives such tasks"
            )
        self._game, self._path = game, ()
        text = self._engine().text(game, ())
        if self.intro == "room":
            text = _TASK.sub("", _BANNER.sub("", text))
        return self._scene(text)

    def _execute(self, command: str) -> Scene:
        operator = self._engine().commands(self._game, self._path).get(command)
        if operator is None:
            return self._scene(NOTHING)
        self._path = (*self._path, operator)
        return self._scene(self._engine().text(self._game, self._path), command)

    def _scene(self, text: str, executed: str = "") -> Scene:
        engine = self._engine()
        won, score = engine.standing(self._game, self._path)
        offered = sorted(command for command in engine.commands(self._game, self._path) if command not in LEFT_OUT)
        return Scene(text, tuple(offered), executed, done=won, success=won, score=score)

    def _world(self) -> tuple[str, Steps]:
        return self._game, self._path

    def _return_to(self, world: tuple[str, Steps]) -> None:
        self._game, self._path = world

    def _engine(self) -> Engine:
        return shared_engine()
