"""A game: its file, and what is worked out about it once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_treerl.envs.alfworld.downward import installed
from lit_treerl.envs.alfworld.facts import Fact, Facts, Slot
from lit_treerl.envs.alfworld.goals import Goal, read_goal
from lit_treerl.envs.alfworld.grammar import Grammar, Setting
from lit_treerl.envs.alfworld.translation import Translation, translation
from lit_treerl.envs.base import EnvironmentFailure

FIELDS = ("pddl_domain", "grammar", "pddl_problem")


@dataclass(frozen=True)
class Action:
    """An operator as the grammar sees it.

    Attributes:
        command: what the agent writes to do it.
        feedback: start of the text about it.
        binding: its arguments.
    """

    command: str
    feedback: str
    binding: dict[Slot, str]


class Game:
    """A game file, translated. ``actions`` and ``effects`` fill up as operators are met; neither ever changes.

    Raises:
        ValueError: naming the file and the field that is missing or wrong.
        EnvironmentFailure: where the engine cannot read the game's PDDL or grammar.
    """

    def __init__(self, file: str, cache: str | Path | None = None) -> None:
        data = read_game(file)
        self.file = file
        try:
            self.translation: Translation = translation(data["pddl_domain"], data["pddl_problem"], cache)
        except ValueError as error:
            raise EnvironmentFailure(f"{file}: the field 'pddl_problem' {error}") from error
        try:
            self.grammar = Grammar(data["grammar"])
        except ImportError:
            raise
        except Exception as error:  # whatever the parser raises
            raise EnvironmentFailure(f"{file}: the field 'grammar' cannot be read: {error}") from error
        self.goal: Goal | None = read_goal(data["pddl_problem"])
        self._things = _named(self.translation.facts, self.translation.types)
        self.actions: dict[int, Action] = {}
        self.effects: dict[int, list[Fact]] = {}

    def setting(self, facts: Facts) -> Setting:
        """What texts about a state are made from."""
        return Setting(facts, self._things, self.translation.types)

    def action(self, operator: Any, facts: Facts) -> Action:
        """The action that an operator of the library stands for."""
        known = self.actions.get(operator.id)
        if known is None:
            name, *args = operator.name.split()
            slots = (Slot(*parameter) for parameter in self.translation.parameters[name])
            binding = dict(zip(slots, args, strict=False))  # more parameters than arguments: the inner variables
            logic = self.grammar.actions[name]
            # where things stand is fixed, and a template asks for nothing else: a command is made once per game
            command = self.grammar.text(logic.template, self.setting(facts), binding)
            known = self.actions[operator.id] = Action(command, logic.feedback_rule, binding)
        return known


def read_game(file: str | Path) -> dict[str, Any]:
    """Read a game file and make sure that it has what a game needs.

    Raises:
        ValueError: naming the file and the field.
    """
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: the game cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{file}: a game is a JSON object, but this is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{file}: a game is a JSON object, but this is a {type(data).__name__}")
    for field in FIELDS:
        if not isinstance(data.get(field), str) or not data[field].strip():
            raise ValueError(f"{file}: the field {field!r} of a game must be text, got {data.get(field)!r:.80}")
    return data


def _named(facts: Facts, types: dict[str, str]) -> dict[str, Any]:
    """All things that facts speak of, under the names that ALFWorld gives them (``cabinet 2``)."""
    information = installed("textworld.generator.game").EntityInfo
    things = {arg: information(arg, types[arg]) for rows in facts.values() for args in rows for arg in args}
    names = installed("alfworld.agents.utils.misc").Demangler(game_infos=things)
    for thing in things.values():
        thing.name, thing.definite, thing.indefinite = names.demangle_alfred_name(thing.id), "the", "a"
    return things
