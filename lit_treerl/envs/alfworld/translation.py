"""A game's PDDL translated for Fast Downward, kept on disk: translating takes much longer than reading it back."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_treerl.envs.alfworld.downward import installed, library
from lit_treerl.envs.alfworld.facts import NOT, Fact, Facts, gathered
from lit_treerl.retrieval.index_cache import default_cache

_log = logging.getLogger(__name__)
FORMAT = 1  # of the files


@dataclass(frozen=True)
class Translation:
    """What is fixed about a game.

    Attributes:
        sas: the planning task as the library reads it.
        facts: what holds at the beginning.
        types: type of every thing.
        parameters: names and types of every action's parameters.
    """

    sas: bytes
    facts: Facts
    types: dict[str, str]
    parameters: dict[str, list[tuple[str, str]]]


def translation(domain: str, problem: str, cache: str | Path | None = None) -> Translation:
    """Translate a problem, or read its translation from the cache.

    Args:
        domain: PDDL text.
        problem: PDDL text.
        cache: folder; ``alfworld`` in the package's own when None.

    Raises:
        ValueError: where the PDDL cannot be translated.
    """
    key = hashlib.sha256(json.dumps([FORMAT, _version(), domain, problem]).encode()).hexdigest()[:32]
    file = (Path(cache).expanduser() if cache else default_cache() / "alfworld") / "translations" / f"{key}.z"
    if (kept := _read(file)) is not None:
        return kept
    made = _translated(domain, problem)
    _write(file, made)
    return made


def fact(atom: str) -> Fact:
    """Read the library's way to write a fact.

    >>> fact("NegatedAtom opened(fridge)")
    Fact(name='not_opened', args=('fridge',))
    """
    kind, _, rest = atom.partition(" ")
    name, _, args = rest.partition("(")
    return Fact((NOT if kind == "NegatedAtom" else "") + name, tuple(arg for arg in args[:-1].split(", ") if arg))


def _version() -> str:
    from importlib.metadata import version

    installed("fast_downward")
    return version("fast-downward-textworld")


def _translated(domain: str, problem: str) -> Translation:
    arguments = sys.argv  # the translator puts its own there, and reads options from there
    try:
        task, sas = installed("fast_downward").pddl2sas(domain, problem)
    except (Exception, SystemExit) as error:
        raise ValueError(f"cannot be translated: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = arguments
    engine, encoded = library(), sas.encode()
    held = [fact(atom) for atom in engine.atoms(engine.load(encoded))]
    return Translation(
        encoded,
        gathered([*_stated(task.init), *(one for one in held if not one.name.startswith(NOT))]),
        {thing.name: thing.type_name for thing in task.objects},
        {action.name: [(p.name.strip("?"), p.type_name) for p in action.parameters] for action in task.actions},
    )


def _stated(init: Iterable[Any]) -> list[Fact]:
    """Facts of a problem's ``:init``; no numbers."""
    return [
        Fact(atom.predicate, tuple(atom.args))
        for atom in init
        if type(atom).__name__ == "Atom" and atom.predicate != "="
    ]


def _read(file: Path) -> Translation | None:
    try:
        row = json.loads(zlib.decompress(file.read_bytes()))
        facts = {name: tuple(map(tuple, rows)) for name, rows in row["facts"].items()}
        parameters = {name: [(p, kind) for p, kind in rows] for name, rows in row["parameters"].items()}
        return Translation(row["sas"].encode(), facts, row["types"], parameters)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a damaged file makes the readers raise
        _log.warning("%s is damaged (%s: %s); translating again", file, type(error).__name__, error)
        return None


def _write(file: Path, made: Translation) -> None:
    """Write beside the final place, then rename; a folder that cannot be written to costs time only."""
    row = {"sas": made.sas.decode(), "facts": made.facts, "types": made.types, "parameters": made.parameters}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".writing-", delete=False) as temporary:
            temporary.write(zlib.compress(json.dumps(row).encode(), 1))
        os.replace(temporary.name, file)
    except OSError as error:
        _log.warning("cannot keep a translation in %s: %s", file.parent, error)
