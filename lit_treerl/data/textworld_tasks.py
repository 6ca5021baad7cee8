"""TextWorld games as a source of tasks: files, or games made here by name, level and seed."""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from lit_treerl.data.row_source import TaskSource
from lit_treerl.envs.textworld_game import KINDS, textworld
from lit_treerl.retrieval.index_cache import default_cache
from lit_treerl.trees.task import Task

Challenge = Literal["coin_collector", "treasure_hunter", "cooking"]
FINISH = "Finish the game."
COOKING = (  # by level: what has to be done, over how many rooms
    {"take": 1, "go": 1},
    {"take": 1, "go": 1, "open": True},
    {"take": 1, "go": 1, "open": True, "cook": True},
    {"take": 1, "go": 1, "open": True, "cook": True, "cut": True},
    {"take": 1, "go": 6, "open": True},
    {"take": 2, "go": 6, "open": True, "cook": True, "cut": True, "recipe": 2},
    {"take": 3, "go": 9, "open": True, "cook": True, "cut": True, "recipe": 3},
    {"take": 3, "go": 12, "open": True, "cook": True, "cut": True, "drop": True, "recipe": 3},
)


class TextWorldTasks(TaskSource):
    """One task a game; ``extra["game"]`` is its file, and the question is its objective.

    Give ``games`` for files that are there, or ``challenge`` for games made here. Those are made once (a second or a
    few each) and kept in ``folder``; the same settings give games that play the same. Levels are TextWorld's own for
    ``coin_collector`` (1 to 300: the way is ``(level - 1) % 100 + 1`` rooms long, above 100 with dead ends) and
    ``treasure_hunter`` (1 to 30); for ``cooking`` 1 to 8: one ingredient is taken, from a container from 2 on, cooked
    from 3 on, cut too at 4; 5 is 2 over six rooms, 6 two ingredients over six, 7 three over nine, 8 three over twelve
    with room for few things in the hands.

    Args:
        games: a file, a pattern (``games/*.z8``), or a list of both.
        challenge: ``coin_collector``, ``treasure_hunter`` or ``cooking``.
        levels: taken in turn.
        n: how many games to make.
        seed: of the games; sources with different seeds share none but by chance.
        hints: whether the objective tells every step of the way, as TextWorld's own does; else the last.
        folder: where made games are kept; ``textworld`` in the cache when None.
        limit: the first so many; all when None.
    """

    def __init__(
        self,
        games: str | Sequence[str] | None = None,
        challenge: Challenge | None = None,
        levels: Sequence[int] = (1,),
        n: int = 100,
        seed: int = 0,
        hints: bool = False,
        folder: str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        if (games is None) == (challenge is None):
            raise ValueError("give either games (files) or challenge (coin_collector, treasure_hunter or cooking)")
        if limit is not None and limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1, or null for all games")
        if challenge is not None:
            check_levels(challenge, levels)
            if n < 1 or not 0 <= seed < 2**16:
                raise ValueError(f"n must be at least 1 and seed from 0 to 65535; got {n} and {seed}")
        self.challenge: Challenge | None = challenge
        self.games, self.levels = games, tuple(levels)
        self.n, self.seed, self.hints, self.folder, self.limit = n, seed, hints, folder, limit

    def load(self) -> list[Task]:
        """The tasks, files of a pattern in the order of their names.

        Raises:
            FileNotFoundError: for a file or pattern that matches nothing.
            ValueError: for a file that is no game, and for two games of one name.
        """
        paths = self._made() if self.challenge else self._given()
        source = f"textworld_{self.challenge}" if self.challenge else "textworld"
        tasks: dict[str, Task] = {}
        for path in list(paths)[: self.limit]:
            name = path.stem
            if name in tasks:
                other = tasks[name].extra["game"]
                raise ValueError(f"{other} and {path} have one name, but the ids of tasks are made of it")
            tasks[name] = Task(name, source, objective(path), extra={"game": str(path)})
        return list(tasks.values())

    def _given(self) -> Iterator[Path]:
        for pattern in [self.games] if isinstance(self.games, str) else self.games or ():
            found = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
            if not found:
                raise FileNotFoundError(f"no TextWorld game at {pattern}")
            yield from map(Path, found)

    def _made(self) -> Iterator[Path]:
        assert self.challenge is not None
        folder = Path(self.folder) if self.folder else default_cache() / "textworld"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(self.n):
            level = self.levels[number % len(self.levels)]
            hints = "-hints" if self.hints else ""
            path = folder / f"{self.challenge}-{level}{hints}-{self.seed}-{number}.json"
            if not path.exists():
                make_game(self.challenge, level, self.seed * 2**15 + number, path, hints=self.hints)
            yield path


def check_levels(challenge: str, levels: Sequence[int]) -> None:
    """Raise ValueError for a level that ``challenge`` does not have."""
    most = {"coin_collector": 300, "treasure_hunter": 30, "cooking": len(COOKING)}
    if challenge not in most:
        raise ValueError(f"challenge must be one of {', '.join(most)}, got {challenge!r}")
    if wrong := [level for level in levels if not 1 <= level <= most[challenge]]:
        raise ValueError(f"levels of {challenge} go from 1 to {most[challenge]}, got {wrong[0]}")
    if not levels:
        raise ValueError("levels must not be empty")


def make_game(challenge: Challenge, level: int, seed: int, path: Path, *, hints: bool) -> None:
    """Make a game and write its ``.json`` form; the file is there whole or not at all.

    Raises:
        ImportError: where TextWorld is not installed.
    """
    options = textworld().GameOptions()
    from textworld.challenges import CHALLENGES

    options.seeds = seed
    options.grammar.only_last_action = not hints
    settings: dict[str, Any] = {"level": level}
    if challenge == "cooking":
        settings = {"recipe": 1, "open": False, "cook": False, "cut": False, "drop": False} | COOKING[level - 1]
        settings |= {"recipe_seed": seed, "split": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the interpreter that finds the walkthrough does not know the game
        game = CHALLENGES[f"tw-{challenge}"][1](settings, options)
    written = path.with_suffix(f".{os.getpid()}.part")
    game.save(str(written))
    written.replace(path)


def objective(path: Path) -> str:
    """What a game asks for: from its ``.json`` form, which of a ``.z8`` game may lie beside it."""
    if path.suffix not in KINDS:
        raise ValueError(f"{path}: a TextWorld game ends in {', '.join(KINDS)}")
    described = path.with_suffix(".json")
    if not described.is_file():
        return FINISH
    try:
        content = json.loads(described.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{described}: is no JSON ({error})") from None
    if not isinstance(content, dict) or not {"world", "infos"} <= content.keys():
        raise ValueError(f"{described}: is no TextWorld game: 'world' and 'infos' are missing")
    return content.get("objective") or FINISH
