"""Keys of the value tree: what makes two tasks, and two actions, the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from lit_treerl.trees.task import Task

INVALID = "INVALID"  # upper case, so that no canonical action equals it
LONGEST_KEY = 200  # characters; of a longer action the digest is kept, so that keys stay small

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def action_key(raw: str) -> str:
    """The canonical form of an executed action: lower case, white space collapsed.

    What no environment could parse (an empty key, or "invalid" in any case) is the one token :data:`INVALID`; more
    than :data:`LONGEST_KEY` characters become their digest. Applying it twice changes nothing.

    >>> action_key("  Search:  Who was\\tHe? "), action_key("")
    ('search: who was he?', 'INVALID')
    """
    key = " ".join(raw.lower().split())
    if key in ("", "invalid"):
        return INVALID
    return key if len(key) <= LONGEST_KEY else _digest(key)


def task_key(task: Task) -> str:
    """A hash of what the task IS: data source, question, answers, prompt and extra, never its id.

    The same on every machine and in every process. Tuples count as lists, mappings and sets in any order; values
    that JSON does not know count by their ``tolist()`` where they have one (arrays), else by their ``repr`` without
    memory addresses.
    """
    content = [task.data_source, task.question, task.answers, task.prompt, task.extra]
    return _digest(_canonical(content))


def _canonical(value: Any) -> str:
    """JSON text of :func:`_plain`."""
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    """``value`` as lists and JSON's own scalars; mappings become ``{"map": sorted pairs}``, so that keys keep types."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        pairs = [[key if isinstance(key, str) else _plain(key), _plain(item)] for key, item in value.items()]
        return {"map": sorted(pairs, key=json.dumps)}
    if isinstance(value, set | frozenset):
        return {"set": sorted((_plain(item) for item in value), key=json.dumps)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if callable(to_list := getattr(value, "tolist", None)):
        return _plain(to_list())
    return {"repr": _ADDRESS.sub("", repr(value))}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
