"""How much of a goal is met: its conditions, read from the game's own PDDL and counted in the facts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lit_treerl.envs.alfworld.facts import Facts

_TYPED = re.compile(r"\(\s*(objecttype|receptacletype)\s+\?\w+\s+(\w+)\s*\)")
_TREATED = ("isclean", "ishot", "iscool")
_KNOWN = {"and", "exists", "not", "objecttype", "receptacletype", "inreceptacle", "holds", "istoggled", *_TREATED}
_KNOWN |= {"toggleable", "cleanable", "heatable", "coolable", "receptacleatlocation", "atlocation", "goal", "="}
_WORDS = re.compile(r"\(\s*:?([\w=-]+)")


@dataclass(frozen=True)
class Goal:
    """The goal of one of the six kinds of tasks.

    Attributes:
        object: type of what is to be moved or looked at.
        place: type of where it is to go; "" where it is to be looked at.
        treated: the fact that must hold of it (``ishot``); "" where none.
        number: how many are to be in one place.
        light: type of the lamp to look by; "" where it is to be moved.
    """

    object: str
    place: str = ""
    treated: str = ""
    number: int = 1
    light: str = ""

    def score(self, facts: Facts) -> float:
        """Share of conditions met, from 0 to 1; 1 means that the game is won.

        Conditions as in ALFRED (arXiv 1912.01734, section 5), each counted alone: the things are in one place of the
        right type (two of them count one by one); one thing is treated, and one is both treated and in place; the
        thing is in hand, and the lamp at the agent's place has been switched on.
        """
        things = _of_type(facts, "objecttype", self.object)
        if self.light:
            lamps = _of_type(facts, "objecttype", self.light) & _all(facts, "istoggled")
            here = _near(facts)
            shining = any(lamp in lamps and place in here for lamp, place in facts.get("inreceptacle", ()))
            return (shining + any(thing in things for _, thing in facts.get("holds", ()))) / 2
        placed: dict[str, set[str]] = {place: set() for place in _of_type(facts, "receptacletype", self.place)}
        for thing, place in facts.get("inreceptacle", ()):
            if thing in things and place in placed:
                placed[place].add(thing)
        if not self.treated:
            return min(self.number, max(map(len, placed.values()), default=0)) / self.number
        treated = things & _all(facts, self.treated)
        both = any(treated & inside for inside in placed.values())
        return (any(placed.values()) + bool(treated) + both) / 3


def read_goal(problem: str) -> Goal | None:
    """Read the goal of a PDDL problem; None where it is none of the six kinds."""
    _, _, text = problem.lower().partition("(:goal")
    kinds = {
        name: {value for found, value in _TYPED.findall(text) if found == name} for name, _ in _TYPED.findall(text)
    }
    things, places = kinds.get("objecttype", set()), kinds.get("receptacletype", set())
    words = set(_WORDS.findall(text))
    if not text or not words <= _KNOWN:
        return None
    if "istoggled" in words:
        lamps = {kind for kind in things if "lamp" in kind}
        others = things - lamps
        return Goal(*others, light=lamps.pop()) if len(lamps) == len(others) == 1 and not places else None
    treated = [word for word in _TREATED if word in words]
    if len(things) != 1 or len(places) != 1 or len(treated) > 1:
        return None
    return Goal(*things, *places, treated="".join(treated), number=2 if "=" in words else 1)


def _of_type(facts: Facts, predicate: str, kind: str) -> set[str]:
    return {thing for thing, its in facts.get(predicate, ()) if its == kind}


def _all(facts: Facts, predicate: str) -> set[str]:
    return {args[0] for args in facts.get(predicate, ())}


def _near(facts: Facts) -> set[str]:
    """Receptacles where the agent is."""
    at = {place for _, place in facts.get("atlocation", ())}
    return {receptacle for receptacle, place in facts.get("receptacleatlocation", ()) if place in at}
