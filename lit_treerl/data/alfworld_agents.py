"""A scripted agent for ALFWorld that knows what an agent is told: the task, what it sees, what it can do."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence

_SEEN = re.compile(r"\ban? ([a-z]+ \d+)")
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}


class HouseholdAgent:
    """Looks for the object, treats it where the task wants that, and brings it where it belongs.

    It searches receptacles in the order of their names, or in one drawn by ``rng``, remembers what it has seen where,
    and wins all six types of tasks. Call :meth:`act` once per turn with what the environment shows.

    Args:
        task_type: one of the six.
        params: kinds of the ``object``, of the ``parent`` receptacle and of the lamp to ``toggle``; as in the
            ``extra["params"]`` of a task.
        rng: draws the order of the search.
    """

    def __init__(self, task_type: str, params: Mapping[str, str], rng: random.Random | None = None) -> None:
        self.object, self.parent, self.lamp = (params.get(key, "").lower() for key in ("object", "parent", "toggle"))
        self.verb, self.appliance = TREATMENTS.get(task_type, ("", ""))
        self._rng = rng
        self._order: list[str] = []  # receptacles, as they are searched
        self._searched: set[str] = set()
        self._where: dict[str, str] = {}  # receptacle by object seen
        self._here = self._held = self._goal = ""
        self._treated = False
        self._placed: set[str] = set()

    def act(self, text: str, commands: Sequence[str]) -> str:
        """The next command.

        Args:
            text: what was seen last.
            commands: what can be done now.
        """
        self._look(text, commands)
        command = self._next(set(commands))
        self._remember(command)
        return command

    def _look(self, text: str, commands: Iterable[str]) -> None:
        if not self._order:
            self._order = sorted(_after(commands, "go to "), key=_by_number)
            if self._rng is not None:
                self._rng.shuffle(self._order)
        if self._here and "you see" in text:
            self._searched.add(self._here)
            self._where |= dict.fromkeys(_SEEN.findall(text.partition("you see")[2]), self._here)

    def _next(self, commands: set[str]) -> str:
        if not self._held:
            return self._fetch(commands)
        if self.lamp:
            return self._use_lamp(commands)
        if self.verb and not self._treated:
            at = self._first(self.appliance)
            return self._at(at, f"{self.verb} {self._held} with {at}", commands)
        self._goal = self._goal or self._first(self.parent)
        return self._at(self._goal, f"move {self._held} to {self._goal}", commands)

    def _fetch(self, commands: set[str]) -> str:
        for thing, place in self._where.items():
            if kind_of(thing) == self.object and thing not in self._placed:
                return self._at(place, f"take {thing} from {place}", commands)
        return self._search(commands)

    def _use_lamp(self, commands: set[str]) -> str:
        for thing, place in self._where.items():
            if kind_of(thing) == self.lamp:
                return self._at(place, f"use {thing}", commands)
        return self._search(commands)

    def _search(self, commands: set[str]) -> str:
        if self._here and self._here not in self._searched and f"open {self._here}" in commands:
            return f"open {self._here}"
        for place in self._order:
            if place not in self._searched and f"go to {place}" in commands:
                return f"go to {place}"
        return "look"

    def _at(self, place: str, command: str, commands: set[str]) -> str:
        """Do ``command`` at a place: go there and open it first where needed."""
        wanted = (command, f"open {place}" if self._here == place else "", f"go to {place}")
        return next((option for option in wanted if option in commands), "look")

    def _first(self, kind: str) -> str:
        return next((place for place in self._order if kind_of(place) == kind), "")

    def _remember(self, command: str) -> None:
        verb, _, rest = command.partition(" ")
        if verb == "go":
            self._here = rest.removeprefix("to ")
        elif verb == "take":
            self._held = rest.partition(" from ")[0]
            self._where.pop(self._held, None)
        elif verb == "move":
            self._placed.add(self._held)
            self._held, self._treated = "", False
        elif verb and verb == self.verb:
            self._treated = True


def _after(commands: Iterable[str], start: str) -> list[str]:
    return [command.removeprefix(start) for command in commands if command.startswith(start)]


def kind_of(name: str) -> str:
    """A thing's or place's name without its number."""
    return name.rpartition(" ")[0]


def _by_number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition(" ")
    return kind, int(number) if number.isdigit() else 0
