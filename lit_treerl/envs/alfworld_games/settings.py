"""What games to make."""

from __future__ import annotations

from dataclasses import dataclass

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SPLITS = ("train", "valid_seen", "valid_unseen")
VERSION = 1  # of the generator: equal settings and versions give equal games


@dataclass(frozen=True)
class GameSettings:
    """How hard generated games are; the defaults are about as large as the released ones.

    Attributes:
        receptacles: most receptacles of a room; null: all that it has.
        alike: most receptacles of a kind (cabinets, drawers).
        distractors: fewest and most objects that the task does not need.
        rooms: of each kind of room, how many floor plans are used; null: all (24 in training, 6 held out).
    """

    receptacles: int | None = None
    alike: int = 8
    distractors: tuple[int, int] = (8, 20)
    rooms: int | None = None

    def __post_init__(self) -> None:
        low, high = self.distractors
        if not 0 <= low <= high:
            raise ValueError(f"distractors must be two numbers, fewest and most, got {list(self.distractors)}")
        for name, value, least in (
            ("receptacles", self.receptacles, 2),
            ("alike", self.alike, 1),
            ("rooms", self.rooms, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")


def check_types(task_types: object) -> tuple[str, ...]:
    """All six types for None, else those named, in their usual order.

    Raises:
        ValueError: naming an unknown type, or where there is none.
    """
    if task_types is None:
        return TASK_TYPES
    named = [task_types] if isinstance(task_types, str) else list(task_types)  # type: ignore[call-overload]
    unknown = [name for name in named if name not in TASK_TYPES]
    if unknown or not named:
        what = f"has the unknown {unknown[0]!r}" if unknown else "is empty"
        raise ValueError(f"task_types {what}; the types are {', '.join(TASK_TYPES)}")
    return tuple(name for name in TASK_TYPES if name in named)
