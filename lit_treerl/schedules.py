"""Learning rate schedules in optimizer steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ScheduleConfig:
    """Linear warm-up, then constant or a decay to 0.

    Args:
        warmup_steps: optimizer steps over which the rate rises linearly.
        decay: what follows the warm-up.
        decay_steps: optimizer step at which a decay reaches 0.
    """

    warmup_steps: int = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: int | None = None

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"schedule.warmup_steps must not be negative, got {self.warmup_steps}")
        if self.decay != "constant" and not (self.decay_steps and self.decay_steps > self.warmup_steps):
            raise ValueError(
                f"schedule.decay {self.decay!r} needs schedule.decay_steps above warmup_steps "
                f"({self.warmup_steps}), got {self.decay_steps}"
            )


def schedule_factor(step: int, config: ScheduleConfig) -> float:
    """Factor on the learning rate for optimizer step ``step`` (the first is 0).

    >>> [schedule_factor(step, ScheduleConfig(warmup_steps=2)) for step in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay == "constant":
        return 1.0
    assert config.decay_steps is not None
    done = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    return 1.0 - done if config.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
