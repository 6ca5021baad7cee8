"""Words for states: derives texts from a game's grammar, as TextWorld does, but parses and copies nothing twice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

from lit_treerl.envs.alfworld.facts import Binding, Facts, Pattern, Slot, solutions

_GOAL = re.compile(r"(Your task is to: )([\w ,.'-]*?)(\.\")")
_STAND_IN = "UNKNOWN GOAL"
DEEPEST = 50  # rules within rules


class Setting(NamedTuple):
    """What a text is about: facts, things by id, and their types."""

    facts: Facts
    things: Mapping[str, Any]
    types: Mapping[str, str]


class Grammar:
    """A game's grammar and the templates of its actions.

    Args:
        text: the field ``grammar`` of a game file.
    """

    def __init__(self, text: str) -> None:
        goals = _GOAL.findall(text)
        self._goal = goals[0][1] if len(goals) == 1 else _STAND_IN
        text = _GOAL.sub(rf"\1{_STAND_IN}\3", text) if len(goals) == 1 else text
        self.actions, self._rules = _parsed(text)  # what stays the same in all games is parsed once

    def text(self, start: str, setting: Setting, binding: Binding) -> str:
        """Derive the text of ``start``, say ``"#intro#"``."""
        derived = "".join(self._derive(_symbols(start), setting, binding, DEEPEST))
        return derived if self._goal == _STAND_IN else derived.replace(_STAND_IN, self._goal)

    def _derive(self, symbols: Sequence[Any], setting: Setting, binding: Binding, depth: int) -> list[str]:
        if not depth:
            raise ValueError(f"the grammar's rules go more than {DEEPEST} deep")
        out: list[str] = []
        for symbol in symbols:
            for part, bound in _chosen(symbol, setting, binding):
                kind = type(part).__name__
                if kind == "TerminalSymbol":
                    out.append(str(part.symbol))
                elif kind == "EvalSymbol":
                    out.append(str(eval(_compiled(part.expression), _names(setting, bound))))
                else:
                    out += self._derive(self._rule(part.symbol, setting, bound), setting, bound, depth - 1)
        return out

    def _rule(self, name: str, setting: Setting, binding: Binding) -> Sequence[Any]:
        """The right side of the first rule whose condition holds."""
        for rule in self._rules.get(str(name), ()):
            if not rule.condition or _any(rule.condition, setting, binding):
                return rule.rhs
        raise ValueError(f"the grammar has no rule for #{name}#")


@lru_cache(maxsize=8)
def _parsed(text: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    from textworld.envs.pddl.logic import GameLogic

    logic = GameLogic(domain="", grammar=text)
    return logic.actions, dict(logic.grammar._rules)


@lru_cache(maxsize=1024)
def _symbols(text: str) -> list[Any]:
    from textworld.envs.pddl.textgen import _parse_and_convert

    return _parse_and_convert(text, rule_name="symbols")


@lru_cache(maxsize=1024)
def _patterns(query: str) -> tuple[Pattern, ...]:
    from textworld.logic import Rule

    rule = Rule.parse_conjunctive_query(query)
    return tuple(
        Pattern(part.name, tuple(Slot(slot.name, slot.type) for slot in part.parameters)) for part in rule.preconditions
    )


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> CodeType:
    return compile(expression.strip(), "<grammar>", "eval")


def _any(query: str, setting: Setting, binding: Binding) -> bool:
    return next(solutions(setting.facts, _patterns(query), binding, setting.types), None) is not None


def _names(setting: Setting, binding: Binding) -> dict[str, Any]:
    return {"__builtins__": {}, **{slot.name: setting.things[thing] for slot, thing in binding.items()}}


def _chosen(symbol: Any, setting: Setting, binding: Binding) -> list[tuple[Any, Binding]]:
    """Plain symbols that stand for ``symbol``, each with what its slots hold."""
    kind = type(symbol).__name__
    if kind == "ListSymbol":
        return _listed(_chosen(symbol.symbol, setting, binding), binding)
    if kind == "ConditionalSymbol":
        if not symbol.given:
            return [(symbol.expression, binding)]
        found = solutions(setting.facts, _patterns(symbol.given), binding, setting.types)
        return [(symbol.expression, bound) for bound in found]
    return [(symbol, binding)]


def _listed(items: list[tuple[Any, Binding]], binding: Binding) -> list[tuple[Any, Binding]]:
    """``a``, ``a, and b``, ``a, b, and c``, in the grammar's own words for between."""
    from textworld.envs.pddl.textgen import NonterminalSymbol

    if not items:
        return [(NonterminalSymbol("list_empty"), binding)]
    out = [items[0]]
    for place, item in enumerate(items[1:], 2):
        between = "list_last_separator" if place == len(items) else "list_separator"
        out += [(NonterminalSymbol(between), binding), item]
    return out
