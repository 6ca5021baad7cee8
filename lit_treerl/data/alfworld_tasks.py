"""ALFWorld's games as tasks: the released ones, or generated ones."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lit_treerl.data.row_source import TaskSource
from lit_treerl.envs.alfworld_games.kept import generated_games
from lit_treerl.envs.alfworld_games.listing import list_games
from lit_treerl.envs.alfworld_games.settings import SPLITS, GameSettings, check_types
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task

GENERATED = "generated"
HOW_TO_MAKE = "games can be made offline: `lit-treerl make-games --out DIR --n 500 --seed 0`, then games: DIR"


class AlfworldTasks(TaskSource):
    """One task per game; its ``data_source`` names the type of task, so that success is told for each.

    Args:
        split: ``train``, ``valid_seen`` (training rooms, other games) or ``valid_unseen`` (rooms held out).
        games: ``generated``: made once and kept in the package's cache; a folder, as ``lit-treerl make-games`` and
            ``alfworld-download`` write it; null: the folder that ``$ALFWORLD_DATA`` names.
        n: how many generated games.
        limit: use so many games of a folder, drawn by ``seed``; null: all.
        task_types: names of the types to use; null: all six.
        seed: of generated games and of the draw.
        receptacles: see :class:`~lit_treerl.envs.alfworld_games.settings.GameSettings`, like what follows.
        alike: most receptacles of a kind in a generated room.
        distractors: fewest and most objects that a generated task does not need.
        rooms: of each kind of room, how many floor plans are used.
    """

    def __init__(
        self,
        split: Literal["train", "valid_seen", "valid_unseen"] = "train",
        games: str | None = GENERATED,
        n: int = 500,
        limit: int | None = None,
        task_types: Sequence[str] | None = None,
        seed: int = 0,
        receptacles: int | None = None,
        alike: int = 8,
        distractors: tuple[int, int] = (8, 20),
        rooms: int | None = None,
    ) -> None:
        super().__init__()
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        for name, value in (("n", n), ("limit", limit)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.split, self.games, self.n, self.limit, self.seed = split, games, n, limit, seed
        self.task_types = check_types(task_types)
        low, high = distractors
        self.settings = GameSettings(receptacles, alike, (low, high), rooms)

    def load(self) -> list[Task]:
        """List the games, making them where they are to be generated.

        Raises:
            FileNotFoundError: where the folder is not there or holds no games; says where it was looked for.
            ValueError: naming a broken file and its field.
            ImportError: where games are to be made and alfworld is not installed.
        """
        folder = (
            generated_games(self.n, self.seed, self.split, self.settings, self.task_types)
            if self.games == GENERATED
            else self._folder()
        )
        rows = [row for row in list_games(folder) if row["task_type"] in self.task_types]
        if not rows:
            raise FileNotFoundError(f"{folder}: holds no solvable game of the types {', '.join(self.task_types)}")
        if self.limit is not None and self.limit < len(rows):
            drawn = random.Random(derive_seed("alfworld limit", self.seed, self.split)).sample(rows, self.limit)
            rows = sorted(drawn, key=rows.index)
        if self.games == GENERATED:
            rows.sort(key=lambda row: row["trial"])  # as made: types take turns
        return [_task(folder, self.split, row) for row in rows]

    def _folder(self) -> Path:
        root = self.games or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
        where = f"games: {self.games}" if self.games else "$ALFWORLD_DATA"
        where += (
            "" if self.games or os.environ.get("ALFWORLD_DATA") else ", which is not set, so that its default counts"
        )
        tried = [Path(root).expanduser() / "json_2.1.1" / self.split, Path(root).expanduser() / self.split]
        for folder in tried:
            if folder.is_dir():
                return folder
        raise FileNotFoundError(
            f"no ALFWorld games for the split {self.split!r}: there is neither {tried[0]} nor {tried[1]} ({where}). "
            f"The released games come with `alfworld-download`; {HOW_TO_MAKE}, or use games: {GENERATED}"
        )


def _task(folder: Path, split: str, row: dict[str, Any]) -> Task:
    game = str(folder / row["folder"] / "game.tw-pddl")
    extra = {"game": game, "task_type": row["task_type"], "params": row["params"]}
    return Task(f"{split}/{row['folder']}", f"alfworld/{row['task_type']}", row["goal"], extra=extra)
