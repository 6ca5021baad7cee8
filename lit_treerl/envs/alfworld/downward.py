"""Fast Downward's library: one per process, one planning task loaded at a time; it is asked, never made to plan."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import lru_cache
from typing import Any

MISSING = "ALFWorld's engine is not installed ({error}): pip install 'lit-treerl[alfworld]'"


def installed(module: str) -> Any:
    """Import a module of the engine.

    Raises:
        ImportError: saying which extra to install.
    """
    from importlib import import_module

    data = os.environ.get("ALFWORLD_DATA")
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(MISSING.format(error=error)) from error
    finally:
        if data is None:  # which alfworld sets when it is imported
            os.environ.pop("ALFWORLD_DATA", None)


class Downward:
    """The library. A state is a number that is valid until the next :meth:`load`.

    What it has loaded is global to the process, so callers share one instance (:func:`library`), hold ``lock`` while
    they use states, and look at ``loaded_for``, whom the task was loaded for.
    """

    def __init__(self) -> None:
        engine = installed("fast_downward")
        self._operator, self._atom = engine.Operator, engine.Atom
        self._library = engine.load_lib()
        self.lock = threading.RLock()
        self.loaded_for: object = None

    def load(self, sas: bytes, owner: object = None) -> int:
        """Load a task for ``owner``; returns its first state."""
        self.loaded_for = owner
        self._library.load_sas(sas)
        return self._library.get_state_id()

    def atoms(self, state: int) -> list[str]:
        """What holds in a state, each as ``Atom name(argument, ...)`` or ``NegatedAtom ...``."""
        self._library.set_state_id(state)
        found = (self._atom * self._library.get_state_size())()
        self._library.get_state(found)
        return [atom.name for atom in found]

    def operators(self, state: int) -> list[Any]:
        """What can be done in a state: each has ``id`` and ``name`` (an action and its arguments)."""
        self._library.set_state_id(state)
        found = (self._operator * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(found)
        return list(found)

    def apply(self, state: int, operator: int) -> int:
        """Do something; returns the state it leads to."""
        self._library.set_state_id(state)
        self._library.apply_operator(operator, None)
        return self._library.get_state_id()

    def effects(self, state: int, operator: int) -> list[str]:
        """All effects of an operator in their order, as atoms."""
        self._library.set_state_id(state)
        number = self._library.apply_operator(operator, None)
        found = (self._atom * number)()
        self._library.set_state_id(state)
        self._library.apply_operator(operator, ctypes.cast(found, ctypes.POINTER(self._atom)))
        return [atom.name for atom in found]

    def won(self, state: int) -> bool:
        """Whether the goal holds in a state."""
        self._library.set_state_id(state)
        return bool(self._library.check_goal())


@lru_cache(maxsize=1)
def library() -> Downward:
    """The library of this process."""
    return Downward()
