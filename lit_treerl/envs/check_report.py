"""What a check of an environment found: problems in words, and seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lit_treerl.envs.base import EnvironmentFailure, StepResult

_FIELDS = ("observation", "closing", "reward", "done", "action_key", "prompt")
_SHOWN = 160  # characters of a value
_AROUND = 30  # characters before the first difference of two texts


class EnvironmentProblems(AssertionError):
    """An environment does not keep its contract; the message lists how."""


@dataclass
class Problem:
    """A promise that an environment did not keep.

    Attributes:
        check: which one (``determinism``, ``snapshot``, ...).
        what: was wrong.
        where: it was seen first.
        times: how often it was seen.
    """

    check: str
    what: str
    where: str
    times: int = 1

    def __str__(self) -> str:
        more = f" (and {self.times - 1} more times)" if self.times > 1 else ""
        return f"{self.check}: {self.where}: {self.what}{more}"


@dataclass
class Report:
    """What was checked and what came of it.

    Attributes:
        problems: one of a kind; empty where the environment keeps its contract.
        notes: worth knowing, but no breach of the contract.
        episodes: that were played.
        turns: of these episodes.
        won: episodes whose ``success`` is above 0; where it is 0, much of the world may not have been seen.
        seconds: of every ``reset``, ``step``, ``snapshot`` and ``restore``.
    """

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    episodes: int = 0
    turns: int = 0
    won: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    _known: dict[tuple[str, str], Problem] = field(default_factory=dict, repr=False)

    def add(self, check: str, kind: str, what: str, where: str) -> None:
        """Keep a problem, or count it where one of its ``kind`` is known."""
        if (check, kind) in self._known:
            self._known[check, kind].times += 1
            return
        self._known[check, kind] = Problem(check, what, where)
        self.problems.append(self._known[check, kind])

    def assert_ok(self) -> Report:
        """Itself, for tests.

        Raises:
            EnvironmentProblems: where there are problems; it lists them.
        """
        if self.problems:
            raise EnvironmentProblems("the environment breaks its contract:\n" + "\n".join(map(str, self.problems)))
        return self

    @contextmanager
    def guard(self, check: str, where: str) -> Iterator[None]:
        """Keep what is raised as a problem."""
        try:
            yield
        except EnvironmentFailure as failure:
            self.add(check, "failure", f"external trouble, so this could not be checked: {failure}", where)
        except Exception as error:
            self.add(check, f"raised {type(error).__name__}", f"raised {type(error).__name__}: {error}", where)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Take the time of one call."""
        start = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)


def differences(before: StepResult, now: StepResult, ignore: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(field, in words) of what differs; keys of ``info`` in ``ignore`` may."""
    for name in _FIELDS:
        old, new = getattr(before, name, None), getattr(now, name, None)
        if not _same(old, new):
            yield name, f"{name} was {_shown(old, new)} and is now {_shown(new, old)}"
    for key in sorted({*before.info, *now.info} - ignore, key=str):
        old, new = before.info.get(key, "missing"), now.info.get(key, "missing")
        if not _same(old, new):
            yield f"info[{key!r}]", f"info[{key!r}] was {_shown(old, new)} and is now {_shown(new, old)}"


def short(value: Any) -> str:
    """A value's repr, cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _shown(value: Any, other: Any) -> str:
    """``value`` from a little before it parts from ``other``."""
    text, against = repr(value), repr(other)
    first = next((i for i, (a, b) in enumerate(zip(text, against, strict=False)) if a != b), 0)
    start = max(0, first - _AROUND)
    return f"{'...' if start else ''}{text[start : start + _SHOWN]}{'...' if len(text) > start + _SHOWN else ''}"


def _same(old: Any, new: Any) -> bool:
    try:
        return bool(old == new) or repr(old) == repr(new)  # by repr too: not a number is itself
    except Exception:  # arrays do not say whether they are equal
        return repr(old) == repr(new)
