"""TextWorld games (arXiv 1806.11532) as worlds of commands."""

from __future__ import annotations

import os
import re
import warnings
from functools import lru_cache
from typing import Any

from lit_treerl.envs.command_env import CommandEnvironment, Scene
from lit_treerl.envs.textworld_text import WorldInWords
from lit_treerl.trees.task import Task

MISSING = "textworld is not installed; pip install 'lit-treerl[alfworld]'"
KINDS = (".json", ".z3", ".z4", ".z5", ".z6", ".z7", ".z8")

_STATUS_LINE = re.compile(r"\n>[^\n]*\s*\Z")  # the interpreter's prompt, and what stands behind it
_BLANK_LINES = re.compile(r"\n\s*\n")


class TextWorldGame(CommandEnvironment):
    """A game from the file ``task.extra["game"]``: ``.json`` as TextWorld writes it, or ``.z8`` and its older forms.

    A ``.json`` game has no text of its own: the state is told in plain words. A ``.z8`` game that TextWorld made tells
    what can be done where its ``.json`` lies beside it. Success is a game that was won, the score
    is the game's over its greatest. Commands that are not among the admissible ones are not played, except where a game
    does not list any. A snapshot is the commands so far: they are played again, about 1 ms each for ``.json``, 6 ms for
    ``.z8`` (on one CPU core).

    Args:
        options: of :class:`~lit_treerl.envs.command_env.CommandEnvironment`.
    """

    runs_in = "processes"  # steps keep the interpreter's lock, and an interpreter of .z8 may crash

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._forget()

    def setup(self) -> None:
        """Make sure that TextWorld is there.

        Raises:
            ImportError: where it is not.
        """
        textworld()

    def spawn(self) -> CommandEnvironment:
        """An instance with an engine of its own."""
        twin = super().spawn()
        assert isinstance(twin, TextWorldGame)
        twin._forget()
        return twin

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None, "_state": None, "_path": "", "_played": ()}

    def _forget(self) -> None:
        self._engine: Any = None
        self._state: Any = None
        self._path, self._played = "", ()

    def _begin(self, task: Task) -> Scene:
        path = task.extra.get("game")
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"task {task.id!r}: extra must name a TextWorld game under 'game', got {path!r}")
        self._open(str(path))
        return self._scene("")

    def _execute(self, command: str) -> Scene:
        command, offered = command.lower(), self._commands_now()
        if offered and command not in offered:
            return Scene("Nothing happens.", offered, score=self._score())
        self._play(command)
        return self._scene(command)

    def _world(self) -> tuple[str, tuple[str, ...]]:
        return self._path, self._played

    def _return_to(self, world: tuple[str, tuple[str, ...]]) -> None:
        path, played = world
        if self._path != path or self._played != played[: len(self._played)]:
            self._open(path)
        for command in played[len(self._played) :]:
            self._play(command)

    def _open(self, path: str) -> None:
        if self._engine is None or self._path != path:
            self._engine = open_game(path)
        self._path, self._played, self._state = path, (), self._engine.reset()

    def _play(self, command: str) -> None:
        self._state, _, _ = self._engine.step(command)
        self._played = (*self._played, command)

    def _scene(self, executed: str) -> Scene:
        won, lost = bool(self._state.get("won")), bool(self._state.get("lost"))
        done = won or lost
        return Scene(self._text(executed), () if done else self._commands_now(), executed, done, won, self._score())

    def _text(self, executed: str) -> str:
        if not self._path.endswith(".json"):
            told = self._state.feedback if executed else self._state.get("description") or self._state.feedback
            return _BLANK_LINES.sub("\n\n", _STATUS_LINE.sub("", str(told))).strip()
        words = WorldInWords(self._state["game"].infos, self._state["_facts"])
        verb, _, thing = executed.partition(" ")
        details = words.details(thing) if verb == "examine" else ""
        return f"{details}\n{words.scene()}" if details else words.scene()

    def _commands_now(self) -> tuple[str, ...]:
        return tuple(self._state.get("admissible_commands") or ())

    def _score(self) -> float:
        best = self._state.get("max_score") or 1
        return min(1.0, max(0.0, (self._state.get("score") or 0) / best))


def textworld() -> Any:
    """The package.

    Raises:
        ImportError: where it is not installed.
    """
    try:
        import textworld
    except ImportError as error:
        raise ImportError(MISSING) from error
    return textworld


def open_game(path: str) -> Any:
    """An engine for a game, not yet reset; the description of a ``.json`` game is read once a process.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: for a file that is no game.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no TextWorld game at {path}")
    if not path.endswith(KINDS):
        raise ValueError(f"{path}: a TextWorld game ends in {', '.join(KINDS)}")
    if path.endswith(".json"):
        return _loaded(path, os.stat(path).st_mtime_ns).copy()
    return _started(path)


@lru_cache(maxsize=256)
def _loaded(path: str, changed: int) -> Any:
    return _started(path)


def _started(path: str) -> Any:
    package = textworld()
    names = ("admissible_commands", "description", "score", "max_score", "won", "lost")
    wanted = package.EnvInfos(**dict.fromkeys(names, True))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interpreter says that it does not know the game; it need not
            return package.start(path, wanted)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: is no TextWorld game ({type(error).__name__}: {error})") from error
