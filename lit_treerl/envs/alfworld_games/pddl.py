"""Problems written down: PDDL as ALFWorld's rules want it."""

from __future__ import annotations

import re

from lit_treerl.envs.alfworld.downward import installed
from lit_treerl.envs.alfworld_games.problems import Problem
from lit_treerl.envs.alfworld_games.rooms import APPLIANCES, lore

START = "loc|99|99|0|30"  # where the agent begins, away from everything
_ESCAPES = {"-": "_minus_", "#": "-", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}
_ESCAPED = re.compile("|".join(map(re.escape, _ESCAPES)))
_PROPERTIES = {"Heatable": "heatable", "Coolable": "coolable", "Cleanable": "cleanable"}
_PROPERTIES |= {"Toggleable": "toggleable", "Sliceable": "sliceable"}
_KNIVES = ("Knife", "ButterKnife")  # kinds that the rules name


def problem_text(problem: Problem, name: str) -> str:
    """The PDDL problem; in names, signs that PDDL does not take are spelt out, and ``#`` stands for the type's dash."""
    lines = [f"(define (problem plan_{name})", "(:domain alfred)", "(:objects", *_indented(_things(problem)), ")"]
    lines += ["(:init", *_indented(_facts(problem)), ")"]
    goals = installed("alfworld.gen.goal_library").gdict
    goal = goals[problem.task_type]["pddl"].format(
        obj=problem.target, recep=problem.parent, toggle=problem.toggle, mrecep=""
    )
    return _escaped("\n".join(lines) + goal)  # the goal's text closes the definition


def goal_texts(problem: Problem) -> list[str]:
    """The ways to say the goal."""
    templates = installed("alfworld.gen.goal_library").gdict[problem.task_type]["templates"]
    words = {"obj": problem.target, "recep": problem.parent, "toggle": problem.toggle, "mrecep": ""}
    return [template.format(**{name: word.lower() for name, word in words.items()}) for template in templates]


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _things(problem: Problem) -> list[str]:
    objects = {kind for kind, _ in problem.objects.values()} | set(_KNIVES)
    receptacles = set(problem.room.receptacles.values()) | set(APPLIANCES)
    return [
        "agent1 # agent",
        *(f"{kind}Type # otype" for kind in sorted(objects)),
        *(f"{kind}Type # rtype" for kind in sorted(receptacles)),
        *(f"{name} # object" for name in sorted(problem.objects)),
        *(f"{name} # receptacle" for name in sorted(problem.room.receptacles)),
        *(f"{place} # location" for place in sorted({*problem.places.values(), START})),
    ]


def _facts(problem: Problem) -> list[str]:
    known, receptacles = lore(), problem.room.receptacles
    facts: list[str] = []
    for name, kind in sorted(receptacles.items()):
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {problem.places[name]})"]
        facts += [f"(openable {name})"] * (kind in known.openable)
    kinds = sorted({kind for kind, _ in problem.objects.values()})
    for receptacle in sorted(set(receptacles.values())):
        facts += [f"(canContain {receptacle}Type {kind}Type)" for kind in kinds if kind in known.holds[receptacle]]
    for name, (kind, receptacle) in sorted(problem.objects.items()):
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {receptacle})"]
        facts += [f"(objectAtLocation {name} {problem.places[receptacle]})"]
        facts += [f"(pickupable {name})"] * (kind in known.portable)
        facts += [f"(isReceptacleObject {name})"] * (kind in known.vessels)
        facts += [f"({fact} {name})" for what, fact in _PROPERTIES.items() if kind in known.can[what]]
    return [*facts, f"(atLocation agent1 {START})"]
