"""What a budget did, in numbers and as a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from lit_treerl.trees.apportion import allocation_entropy
from lit_treerl.trees.budget import Budget
from lit_treerl.trees.difficulty import DifficultyBin, by_difficulty

BINS = 5


def budget_numbers(budget: Budget, counts: Sequence[int]) -> dict[str, float]:
    """Numbers to log of one iteration's allocation, in trees.

    ``budget/by_difficulty/LOW`` is the mean of the tasks whose predicted success lies in the fifth of [0, 1] that
    begins at LOW; only for budgets that predict success, and nan for a fifth without tasks.
    """
    if not counts:
        return {}
    numbers = {
        "budget/min": float(min(counts)),
        "budget/max": float(max(counts)),
        "budget/entropy": allocation_entropy(counts),
    }
    return numbers | {
        f"budget/by_difficulty/{found.low:.1f}": found.mean if found.tasks else float("nan")
        for found in difficulty_bins(budget, counts)
    }


def difficulty_bins(budget: Budget, counts: Sequence[int]) -> list[DifficultyBin]:
    """Mean trees against predicted success; none where the budget asks for no outlook."""
    if not budget.uses_outlook:
        return []
    predicted = getattr(budget, "predicted", None)
    return by_difficulty(counts, predicted if predicted is not None else [float("nan")] * len(counts), BINS)


def log_histogram(trainer: L.Trainer, bins: Sequence[DifficultyBin]) -> None:
    """Write ``budget/by_difficulty`` to TensorBoard and W&B: predicted success on the axis, mean trees as height."""
    if not any(found.tasks for found in bins):
        return
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            _to_tensorboard(logger.experiment, bins, trainer.global_step)
        elif type(logger).__name__ == "WandbLogger":
            _to_wandb(logger.experiment, bins)  # type: ignore[attr-defined]


def _to_tensorboard(writer: Any, bins: Sequence[DifficultyBin], step: int) -> None:
    heights = [found.mean for found in bins]
    middles = [(found.low + found.high) / 2 for found in bins]
    writer.add_histogram_raw(
        "budget/by_difficulty",
        min=bins[0].low,
        max=bins[-1].high,
        num=sum(heights),
        sum=sum(h * m for h, m in zip(heights, middles, strict=True)),
        sum_squares=sum(h * m * m for h, m in zip(heights, middles, strict=True)),
        bucket_limits=[found.high for found in bins],
        bucket_counts=heights,
        global_step=step,
    )


def _to_wandb(run: Any, bins: Sequence[DifficultyBin]) -> None:
    import numpy
    import wandb

    edges = numpy.array([bins[0].low, *(found.high for found in bins)])
    heights = numpy.array([found.mean for found in bins])
    run.log({"budget/by_difficulty": wandb.Histogram(np_histogram=(heights, edges))}, commit=False)
