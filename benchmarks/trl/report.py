"""From the runs' curves to what was spent until a target: medians, ranges, and ratios to TRL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.study.curves import tokens_to
from benchmarks.trl.job import Point

AXES = ("seconds", "cpu", "tokens")
REFERENCE = "trl"


def spent(points: Sequence[Point], axis: str, target: float) -> float:
    """How much of ``axis`` a run had spent when its exact match first reached ``target``; infinite where it did not.

    Linear between the examinations around it.
    """
    return tokens_to([(point[axis], point["em"]) for point in points], target)


def rate(points: Sequence[Point], axis: str) -> float:
    """How much of ``axis`` the whole run spent for 1,000 sampled tokens."""
    return 1000 * points[-1][axis] / points[-1]["tokens"]


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Median, range and number of the values; None stands for what was never reached, nan is left out."""
    known = sorted(value for value in values if not math.isnan(value))
    shown = [value if math.isfinite(value) else None for value in (median(known), known[0], known[-1])] if known else []
    return dict(zip(("median", "least", "most"), shown or [None] * 3, strict=True)) | {"runs": len(known)}


def ratios(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Ours over theirs for the seeds that both ran; nan where neither reached the target."""
    return [ours[seed] / theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def report(runs: Sequence[dict[str, Any]], targets: Sequence[float]) -> list[dict[str, Any]]:
    """A row for each thing measured and each side that ran: summaries of its values and of their ratios to TRL's."""
    sides = list(dict.fromkeys(run["side"] for run in runs))
    measures: list[tuple[str, Any]] = [
        (f"{axis} to em {target:g}", lambda points, axis=axis, target=target: spent(points, axis, target))
        for target in targets
        for axis in AXES
    ]
    measures += [(f"{axis} per 1,000 tokens", lambda points, axis=axis: rate(points, axis)) for axis in AXES[:2]]
    rows = []
    for name, measure in measures:
        values = {side: {run["seed"]: measure(run["points"]) for run in runs if run["side"] == side} for side in sides}
        for side in sides:
            row = {"what": name, "side": side} | summary(list(values[side].values()))
            if side != REFERENCE and REFERENCE in values:
                row["over trl"] = summary(ratios(values[side], values[REFERENCE]))
            rows.append(row)
    return rows


def number(value: float | None) -> str:
    """Short; what was never reached is a dash."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def line(row: dict[str, Any]) -> str:
    """A row for people."""

    def words(part: dict[str, Any]) -> str:
        return f"{number(part['median'])} ({number(part['least'])} to {number(part['most'])})"

    over = f"   over trl {words(row['over trl'])}" if "over trl" in row else ""
    return f"{row['what']:>24}  {row['side']:>9}  {words(row):<28} of {row['runs']}{over}"
