"""Settings that cannot work: their error, and checks that several rooms share."""

from __future__ import annotations

import math
from collections.abc import Sequence


class SettingsError(ValueError):
    """A setting is wrong; the message names it and says what would be right."""


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is above 0 and finite."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, got {value}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError where ``value`` is none of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
