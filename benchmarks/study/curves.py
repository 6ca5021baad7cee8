"""A run's metrics.csv as a learning curve over sampled tokens."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

Points = Sequence[Sequence[float]]  # (sampled tokens, success rate), in the order of tokens


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Rows of a metrics.csv; cells that are empty or not a number are left out."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    return [{name: number for name, number in row.items() if not math.isnan(number)} for row in rows]


def curve(rows: Sequence[dict[str, float]]) -> list[tuple[float, float]]:
    """Validation success against sampled tokens; the validation before the first iteration is at 0."""
    spent = list(accumulate(row["rollout/sampled_tokens"] for row in rows if "rollout/sampled_tokens" in row))
    validations = [(int(row["epoch"]), row["val/success_rate"]) for row in rows if "val/success_rate" in row]
    return [(0.0 if epoch < 0 else spent[epoch], em) for epoch, em in validations]


def at(points: Points, mark: float) -> float:
    """Success at ``mark`` tokens, linear between validations; the first one's before, the last one's beyond."""
    if mark <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= mark <= x1 and x0 < x1:
            return y0 + (y1 - y0) * (mark - x0) / (x1 - x0)
    return points[-1][1]


def tokens_to(points: Points, level: float) -> float:
    """Tokens at which success first reaches ``level``, linear between validations; infinite where it never does."""
    if points[0][1] >= level:
        return points[0][0]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= level:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return math.inf
