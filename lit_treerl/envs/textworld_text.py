"""A TextWorld game's state in words: its ``.json`` form plays without an interpreter, and so without text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

STATES = ("open", "closed", "locked", "raw", "grilled", "fried", "roasted", "burned")
STATES += ("uncut", "sliced", "chopped", "diced")
_DIRECTION = re.compile(r"(north|south|east|west)_of")
_CONDITION = re.compile(r"\[if .*?\[end if\]|\[(?!noun\])[^\]]*\]", re.DOTALL)  # of Inform 7
_HIDING = ("closed", "locked")


class WorldInWords:
    """The facts of one state, and what can be seen of them.

    Args:
        infos: the game's ``infos``: names and descriptions by id.
        facts: propositions, with ids as names.
    """

    def __init__(self, infos: dict[str, Any], facts: Iterable[Any]) -> None:
        self._infos = infos
        self._held: dict[str, list[str]] = defaultdict(list)  # by room, supporter, container, and I for the player
        self._states: dict[str, list[str]] = defaultdict(list)
        self._exits: dict[str, dict[str, str]] = defaultdict(dict)  # room -> direction -> room
        self._doors: dict[tuple[str, str], str] = {}
        self._room = ""
        for fact in facts:
            self._read(fact.name, [argument.name for argument in fact.arguments])

    def _read(self, name: str, ids: list[str]) -> None:
        if name == "at" and ids[0] == "P":
            self._room = ids[1]
        elif name in ("at", "in", "on"):
            self._held[ids[1]].append(ids[0])
        elif name in STATES and len(ids) == 1:
            self._states[ids[0]].append(name)
        elif name == "link":
            self._doors[ids[0], ids[2]] = ids[1]
        elif match := _DIRECTION.fullmatch(name):
            self._exits[ids[1]][match[1]] = ids[0]

    def scene(self) -> str:
        """The room, what is in it, the ways out, and what the player carries."""
        lines = [f"You are in: {self._name(self._room)}.", f"Here: {self._listed(self._held[self._room])}."]
        ways = [self._way(direction, to) for direction, to in sorted(self._exits[self._room].items())]
        return "\n".join([*lines, f"Ways out: {', '.join(ways) or 'none'}.", self.carried()])

    def carried(self) -> str:
        """What the player carries."""
        return f"You carry: {self._listed(self._held['I'])}."

    def details(self, name: str) -> str:
        """The description of what has this name; "" where nothing has. Conditional parts are left out."""
        for info in self._infos.values():
            if info.name == name and info.desc:
                return _CONDITION.sub("", info.desc).replace("[noun]", info.noun or name).strip()
        return ""

    def _name(self, key: str) -> str:
        info = self._infos.get(key)
        return (info.name if info else None) or key

    def _listed(self, keys: list[str]) -> str:
        return "; ".join(sorted(map(self._thing, keys))) or "nothing"

    def _thing(self, key: str) -> str:
        states = self._states[key]
        text = self._name(key) + (f" ({', '.join(sorted(states))})" if states else "")
        inside = sorted(map(self._thing, self._held[key])) if not set(states) & set(_HIDING) else []
        return f"{text} with {', '.join(inside)}" if inside else text

    def _way(self, direction: str, to: str) -> str:
        door = self._doors.get((self._room, to))
        return f"{direction} through {self._thing(door)}" if door else direction
