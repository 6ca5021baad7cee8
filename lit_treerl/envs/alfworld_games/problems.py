"""Problems: a goal drawn for a room, and objects put so that it can be reached and is not met yet."""

from __future__ import annotations

import random
from dataclasses import dataclass

from lit_treerl.envs.alfworld_games.rooms import LAMPS, SURFACES, Room, draw_room, lore, new_id, scenes
from lit_treerl.envs.alfworld_games.settings import GameSettings

_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
TRIES = 300


@dataclass(frozen=True)
class Problem:
    """A task in a room.

    Attributes:
        task_type: one of the six.
        target: kind of the object.
        parent: kind of the receptacle that it is to go to; "" where it is to be looked at.
        toggle: kind of the lamp to look by, or "".
        room: with its receptacles.
        objects: kind and receptacle of every object by its id.
        places: location of every receptacle; each stands alone.
    """

    task_type: str
    target: str
    parent: str
    toggle: str
    room: Room
    objects: dict[str, tuple[str, str]]
    places: dict[str, str]


def draw_problem(task_type: str, held_out: bool, settings: GameSettings, rng: random.Random) -> Problem:
    """Draw rooms and goals until one is possible.

    Raises:
        ValueError: where none is, which tight settings can bring about.
    """
    plans = scenes(task_type, held_out, settings.rooms)
    for _ in range(TRIES):
        room = draw_room(rng.choice(plans), settings, rng)
        goal = _draw_goal(task_type, room, rng)
        if goal is not None:
            return Problem(task_type, *goal, room, _objects(task_type, goal, room, settings, rng), _places(room, rng))
    raise ValueError(f"no game of the type {task_type} came of {TRIES} tries with {settings}; allow more receptacles")


def _draw_goal(task_type: str, room: Room, rng: random.Random) -> tuple[str, str, str] | None:
    known, kinds = lore(), set(room.receptacles.values())
    targets = [kind for kind in room.objects if kind in known.portable]
    if task_type == "look_at_obj_in_light":
        lamps = [kind for kind in room.objects if kind in LAMPS]
        targets = [kind for kind in targets if _spots(kind, room)]
        possible = lamps and targets and kinds & set(SURFACES)
        return (rng.choice(targets), "", rng.choice(lamps)) if possible else None
    if task_type in _TREATMENTS:
        what, appliance = _TREATMENTS[task_type]
        targets = [kind for kind in targets if kind in known.can[what]] if appliance in kinds else []
    pairs = [
        (target, parent, "")
        for target in targets
        for parent in sorted(kinds)
        if target in known.holds[parent] and _spots(target, room, parent)
    ]
    return rng.choice(pairs) if pairs else None


def _spots(kind: str, room: Room, but: str = "") -> list[str]:
    """Receptacles that may hold a kind of object, sorted, without those of the kind ``but``."""
    holds = lore().holds
    return sorted(name for name, its in room.receptacles.items() if kind in holds[its] and its != but)


def _objects(
    task_type: str, goal: tuple[str, str, str], room: Room, settings: GameSettings, rng: random.Random
) -> dict[str, tuple[str, str]]:
    target, parent, toggle = goal
    kinds = [target] * (2 if task_type == "pick_two_obj_and_place" else rng.randint(1, 2))
    portable = [kind for kind in room.objects if kind in lore().portable and _spots(kind, room)]
    kinds += rng.choices(portable, k=rng.randint(*settings.distractors))
    placed: dict[str, tuple[str, str]] = {}
    for kind in kinds:
        spots = _spots(kind, room, parent if kind == target else "")
        placed[new_id(kind, rng)] = (kind, rng.choice(spots))
    if toggle:
        surfaces = sorted(name for name, kind in room.receptacles.items() if kind in SURFACES)
        placed[new_id(toggle, rng)] = (toggle, rng.choice(surfaces))
    return placed


def _places(room: Room, rng: random.Random) -> dict[str, str]:
    """One location for each receptacle: from one place the engine would show all that stand there."""
    taken: set[str] = set()
    places: dict[str, str] = {}
    for name in sorted(room.receptacles):
        place = ""
        while not place or place in taken:
            x, y, turn = rng.randint(-15, 15), rng.randint(-15, 15), rng.randint(0, 3)
            place = f"loc|{x}|{y}|{turn}|{rng.choice((30, 45, 60))}"
        taken.add(place)
        places[name] = place
    return places
