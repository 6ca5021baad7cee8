"""A toy world acted in by commands; worker processes import this file, so it is small."""

from __future__ import annotations

from typing import Any

from lit_treerl.envs.command_env import CommandEnvironment, Scene
from lit_treerl.trees.task import Task

TASK = Task("t1", "corridor", "take the gem")


class Corridor(CommandEnvironment):
    """Rooms in a row, a gem in the last; every command but ``look`` is worth a step of score.

    Args:
        rooms: how many; a task may have its own by ``extra["rooms"]``.
        signs: what is written on the wall of a room, by its number.
    """

    def __init__(self, rooms: int = 3, signs: dict[int, str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.rooms, self.signs = rooms, signs or {}
        self.at, self.length = 0, rooms

    def _begin(self, task: Task) -> Scene:
        self.at, self.length = 0, task.extra.get("rooms", self.rooms)
        return self._scene("")

    def _execute(self, command: str) -> Scene:
        if command == "take gem" and self.at == self.length - 1:
            return Scene("You have the gem.", executed=command, done=True, success=True, score=1.0)
        if command == "give up":
            return Scene("You leave.", executed=command, done=True, score=self.at / self.length)
        to = self.at + {"go east": 1, "go west": -1, "look": 0}.get(command, self.length)
        if not 0 <= to < self.length:
            return Scene("Nothing happens.", self._commands_here(), score=self.at / self.length)
        self.at = to
        return self._scene(command)

    def _scene(self, executed: str) -> Scene:
        text = f"Room {self.at}.{self.signs.get(self.at, '')}"
        return Scene(text, self._commands_here(), executed, score=self.at / self.length)

    def _commands_here(self) -> tuple[str, ...]:
        last = ("take gem",) if self.at == self.length - 1 else ("go east",)
        return (*last, *(("go west",) if self.at else ()), "look")

    def _world(self) -> tuple[int, int]:
        return self.at, self.length

    def _return_to(self, world: tuple[int, int]) -> None:
        self.at, self.length = world


def act(command: str) -> str:
    """A well-formed turn."""
    return f"<think>so</think><action>{command}</action>"
