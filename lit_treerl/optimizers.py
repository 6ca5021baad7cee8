"""Optimizers and their steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lit_treerl.schedules import ScheduleConfig, schedule_factor


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule.

    Args:
        weight_decay: decoupled weight decay.
        betas: of AdamW.
        max_grad_norm: gradients are clipped to this norm.
        schedule: of the learning rate, counted in optimizer steps.
    """

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    schedule: ScheduleConfig = ScheduleConfig()

    def __post_init__(self) -> None:
        if not self.max_grad_norm > 0:
            raise ValueError(f"optimizer.max_grad_norm must be above 0, got {self.max_grad_norm}")


def check_rate(name: str, lr: float) -> None:
    """Raise ValueError unless ``lr`` is a learning rate."""
    if not 0 <= lr < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {lr}")


def build_optimizer(
    parameters: Sequence[nn.Parameter], lr: float, config: OptimizerConfig
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW over ``parameters`` with its schedule."""
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule_factor(step, config.schedule))


def step_now(parameters: Sequence[nn.Parameter], optimizer: Any, schedule: Any, max_grad_norm: float) -> float | None:
    """Clip, step and clear the gradients; returns their norm, None where it was not finite and the step skipped."""
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    finite = math.isfinite(norm)
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    return norm if finite else None
