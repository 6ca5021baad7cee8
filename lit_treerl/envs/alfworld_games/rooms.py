"""Rooms: which receptacles a floor plan has, which kinds of objects, and what goes where."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lit_treerl.envs.alfworld.downward import installed
from lit_treerl.envs.alfworld_games.settings import GameSettings

LAMPS = ("DeskLamp", "FloorLamp")
APPLIANCES = ("SinkBasin", "Microwave", "Fridge")  # the rules name their types
SURFACES = ("SideTable", "Desk", "Dresser", "Shelf", "CoffeeTable", "DiningTable")  # where a lamp may stand
_NO_PLACE = ("PaintingHanger",)  # a receptacle of the simulator that nothing goes into
_SEVERAL = {"CounterTop": 3, "StoveBurner": 4, "Shelf": 4, "SideTable": 2, "DiningTable": 2, "TowelHolder": 2}
_SEVERAL |= {"HandTowelHolder": 2, "ArmChair": 2, "Desk": 2, "CoffeeTable": 2}


@dataclass(frozen=True)
class Lore:
    """What is known about kinds of things, from ALFWorld's own tables.

    Attributes:
        holds: kinds of objects by the kind of receptacle that may hold them.
        can: kinds of objects by what can be done to them (``Heatable``, ...).
        openable: kinds of receptacles that open.
        portable: kinds of objects that can be carried.
        vessels: kinds of portable objects that hold others.
        folder: of the floor plans.
    """

    holds: dict[str, frozenset[str]]
    can: dict[str, frozenset[str]]
    openable: frozenset[str]
    portable: frozenset[str]
    vessels: frozenset[str]
    folder: Path


@dataclass(frozen=True)
class Room:
    """A room: kinds of receptacles by their id, and kinds of objects that belong there, sorted."""

    scene: int
    receptacles: dict[str, str]
    objects: tuple[str, ...]


@lru_cache(maxsize=1)
def lore() -> Lore:
    """Read the tables of the installed alfworld."""
    tables = installed("alfworld.gen.constants")
    vessels = frozenset(tables.MOVABLE_RECEPTACLES)
    holds = {
        kind: frozenset(objects)
        for kind, objects in tables.VAL_RECEPTACLE_OBJECTS.items()
        if kind in tables.RECEPTACLES and kind not in vessels and kind not in _NO_PLACE
    }
    placed = frozenset().union(*holds.values(), *(tables.VAL_RECEPTACLE_OBJECTS[kind] for kind in vessels))
    portable = frozenset(kind for kind in placed if not kind.endswith("Sliced")) - set(LAMPS)
    can = {what: frozenset(kinds) for what, kinds in tables.VAL_ACTION_OBJECTS.items()}
    folder = Path(tables.__file__).parent / "layouts"
    return Lore(holds, can, frozenset(tables.OPENABLE_CLASS_LIST) - vessels, portable, vessels, folder)


def scenes(task_type: str, held_out: bool, rooms: int | None) -> list[int]:
    """Numbers of the floor plans for a task: ALFRED's training or held-out rooms of the kinds that suit it."""
    tables: Any = installed("alfworld.gen.constants")
    numbers = set(tables.TEST_SCENE_NUMBERS if held_out else tables.TRAIN_SCENE_NUMBERS)
    kinds = (kind for kind in tables.SCENE_TYPE if kind in tables.GOALS_VALID[task_type])
    return [scene for kind in kinds for scene in sorted(numbers & set(tables.SCENE_TYPE[kind]))[:rooms]]


def draw_room(scene: int, settings: GameSettings, rng: random.Random) -> Room:
    """Furnish a floor plan: its openable receptacles stand where they do there, the others anywhere."""
    known = lore()
    kinds, standing = _floor_plan(scene)
    receptacles: dict[str, str] = {}
    counts: dict[str, int] = {}
    for name in rng.sample(standing, len(standing)):
        kind = name.split("|")[0]
        if kind in known.holds and counts.get(kind, 0) < settings.alike:
            receptacles[name] = kind
            counts[kind] = counts.get(kind, 0) + 1
    for kind in kinds:
        if kind in known.holds and kind not in counts:
            number = 1 if kind in known.openable else rng.randint(1, min(settings.alike, _SEVERAL.get(kind, 1)))
            receptacles |= {new_id(kind, rng): kind for _ in range(number)}
    if settings.receptacles is not None:
        receptacles = _fewer(receptacles, settings.receptacles, rng)
    objects = tuple(kind for kind in kinds if kind in known.portable or kind in LAMPS)
    return Room(scene, receptacles, objects)


def new_id(kind: str, rng: random.Random) -> str:
    """An id as the simulator gives them, with a place in the room; basins are named after what they belong to."""
    x, y, z = rng.uniform(-4, 4), rng.uniform(0, 2.3), rng.uniform(-4, 4)
    owner = kind.removesuffix("Basin")
    return f"{owner}|{x:+06.2f}|{y:+06.2f}|{z:+06.2f}" + (f"|{kind}" if owner != kind else "")


def _fewer(receptacles: dict[str, str], most: int, rng: random.Random) -> dict[str, str]:
    """Leave out receptacles; appliances, and then kinds that are not yet there, stay with preference."""
    names = rng.sample(sorted(receptacles), len(receptacles))
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(receptacles[name], name)
    order = sorted(first.values(), key=lambda name: receptacles[name] not in APPLIANCES)
    order += [name for name in names if name not in order]
    return {name: receptacles[name] for name in order[:most]}


@lru_cache(maxsize=256)
def _floor_plan(scene: int) -> tuple[list[str], list[str]]:
    """Kinds of things in a floor plan, and ids of what opens there; both sorted."""
    folder = lore().folder
    kinds = json.loads((folder / f"FloorPlan{scene}-objects.json").read_text(encoding="utf-8"))
    standing = json.loads((folder / f"FloorPlan{scene}-openable.json").read_text(encoding="utf-8"))
    return sorted(set(kinds)), sorted(standing)
