"""Facts of a state of the world, as immutable values, and questions about them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

NOT = "not_"


class Fact(NamedTuple):
    """``inreceptacle(mug, table)``; a denied one is named ``not_inreceptacle``."""

    name: str
    args: tuple[str, ...]

    def denied(self) -> Fact:
        """The opposite."""
        return Fact(self.name.removeprefix(NOT) if self.name.startswith(NOT) else NOT + self.name, self.args)


class Slot(NamedTuple):
    """A place for a thing of one type."""

    name: str
    type: str


class Pattern(NamedTuple):
    """A fact with slots for its arguments."""

    name: str
    slots: tuple[Slot, ...]


Binding = Mapping[Slot, str]
Facts = Mapping[str, tuple[tuple[str, ...], ...]]
"""Arguments of all facts by name, sorted. Values are shared by states, never changed."""


def gathered(facts: Iterable[Fact]) -> Facts:
    """Sort ``facts`` by name and arguments."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for fact in facts:
        found.setdefault(fact.name, set()).add(fact.args)
    return {name: tuple(sorted(args)) for name, args in found.items()}


def changed(facts: Facts, effects: Iterable[Fact]) -> Facts:
    """The facts after ``effects`` came true one after the other; each takes the place of its opposite."""
    after = dict(facts)
    for effect in effects:
        denied = effect.denied()
        rows = after.get(denied.name, ())
        if (at := _place(rows, denied.args)) is not None:
            after[denied.name] = rows[:at] + rows[at + 1 :]
        rows = after.get(effect.name, ())
        if _place(rows, effect.args) is None:
            at = bisect_left(rows, effect.args)
            after[effect.name] = (*rows[:at], effect.args, *rows[at:])
    return after


def _place(rows: Sequence[tuple[str, ...]], args: tuple[str, ...]) -> int | None:
    at = bisect_left(rows, args)
    return at if at < len(rows) and rows[at] == args else None


def solutions(
    facts: Facts, patterns: Sequence[Pattern], bound: Binding, types: Mapping[str, str]
) -> Iterator[dict[Slot, str]]:
    """All ways to fill the slots so that every pattern is a fact, in the facts' order.

    Different slots take different things, and a slot takes things of its type only.

    Args:
        facts: of the state.
        patterns: all of which must hold.
        bound: slots that are filled already.
        types: type of every thing.
    """
    if not patterns:
        yield dict(bound)
        return
    pattern, rest = patterns[0], patterns[1:]
    for args in facts.get(pattern.name, ()):
        filled = _filled(pattern.slots, args, bound, types)
        if filled is not None:
            yield from solutions(facts, rest, filled, types)


def _filled(
    slots: Sequence[Slot], args: Sequence[str], bound: Binding, types: Mapping[str, str]
) -> dict[Slot, str] | None:
    if len(slots) != len(args):
        return None
    for slot, arg in zip(slots, args, strict=True):  # cheap: most rows fail here
        if bound.get(slot, arg) != arg or types[arg] != slot.type:
            return None
    filled = dict(bound)
    for slot, arg in zip(slots, args, strict=True):
        if slot in filled:
            if filled[slot] != arg:
                return None
        elif arg in filled.values():
            return None
        else:
            filled[slot] = arg
    return filled
