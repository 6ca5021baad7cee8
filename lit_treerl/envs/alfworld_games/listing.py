"""Which games a folder holds; the answer is kept, since thousands of files have to be read for it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from lit_treerl.envs.alfworld_games.settings import TASK_TYPES
from lit_treerl.retrieval.index_cache import default_cache

_log = logging.getLogger(__name__)
_GOAL = re.compile(r"Your task is to: ([^\"]+?)\.?\"")
_FORMAT = 1  # of the lists


def list_games(folder: Path) -> list[dict[str, Any]]:
    """The games below a folder, from the cache where no file has changed since it was written.

    Returns:
        rows of ``folder`` (relative), ``trial``, ``task_type``, ``goal`` (as the game says it) and ``params`` (kinds of
        the ``object``, the ``parent`` receptacle and the lamp to ``toggle``). Games that alfworld leaves out as well
        are not among them: those with sliced objects or movable receptacles, and those not known to be solvable.

    Raises:
        ValueError: naming a broken file and its field.
    """
    found = sorted(folder.rglob("traj_data.json"))
    stamps = []
    for file in (*found, *(file.with_name("game.tw-pddl") for file in found)):
        state = file.stat() if file.exists() else None
        stamps.append([str(file.relative_to(folder)), state and state.st_size, state and state.st_mtime_ns])
    text = json.dumps([_FORMAT, str(folder.resolve()), stamps])
    kept = default_cache() / "alfworld" / "lists" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
    try:
        return json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        rows = [row for file in found if (row := _row(folder, file)) is not None]
    _log.info("%s: %d games, %d left out as alfworld does", folder, len(rows), len(found) - len(rows))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(rows), encoding="utf-8")
        beside.replace(kept)
    except OSError as error:
        _log.warning("cannot keep the list of games in %s: %s", kept.parent, error)
    return rows


def _row(folder: Path, file: Path) -> dict[str, Any] | None:
    """What a task needs of a game; None for those that alfworld leaves out as well (sliced, movable, unsolvable)."""
    place, game = file.parent.relative_to(folder).as_posix(), file.with_name("game.tw-pddl")
    if "movable" in place or "Sliced" in place or not game.exists():
        return None
    trajectory, data = _read(file), _read(game)
    task_type, params = trajectory.get("task_type"), trajectory.get("pddl_params")
    if not isinstance(task_type, str):
        raise ValueError(f"{file}: the field 'task_type' must be text, got {task_type!r:.80}")
    if not isinstance(params, dict):
        raise ValueError(f"{file}: the field 'pddl_params' must be an object, got {params!r:.80}")
    if task_type not in TASK_TYPES or not data.get("solvable"):
        return None
    for field in ("pddl_domain", "pddl_problem", "grammar"):
        if not isinstance(data.get(field), str) or not data[field].strip():
            raise ValueError(f"{game}: the field {field!r} must be text, got {data.get(field)!r:.80}")
    if (goal := _GOAL.search(data["grammar"])) is None:
        raise ValueError(f"{game}: the field 'grammar' does not say the task ('Your task is to: ...')")
    names = {"object": "object_target", "parent": "parent_target", "toggle": "toggle_target"}
    wanted = {name: str(params.get(field) or "") for name, field in names.items()}
    return {"folder": place, "trial": file.parent.name, "task_type": task_type, "goal": goal[1], "params": wanted}


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{file}: is not JSON ({error}); it may have been cut off: download or make it again"
        ) from error
    if not isinstance(data, dict):
        raise ValueError(f"{file}: must be a JSON object, but is a {type(data).__name__}")
    return data
