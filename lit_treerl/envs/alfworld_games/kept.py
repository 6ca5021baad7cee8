"""Generated games kept in the package's cache, made on first use."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lit_treerl.envs.alfworld.downward import installed
from lit_treerl.envs.alfworld_games.make import LAYOUT, write_games
from lit_treerl.envs.alfworld_games.settings import VERSION, GameSettings
from lit_treerl.retrieval.index_cache import default_cache


def generated_games(n: int, seed: int, split: str, settings: GameSettings, task_types: Sequence[str]) -> Path:
    """The folder of generated games, one for all equal arguments and versions of generator and alfworld.

    They are made beside it and renamed, so that others see all of them or none.
    """
    what = [VERSION, installed("alfworld.info").__version__, n, seed, split, asdict(settings), list(task_types)]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:20]
    folder = default_cache() / "alfworld" / f"games-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent, ignore_cleanup_errors=True) as beside:
            made = Path(beside) / "games"
            write_games(made, n, seed, split, settings, task_types)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was first; its games are the same
                    raise
    return folder / LAYOUT / split
