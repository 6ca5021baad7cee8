"""The study's numbers per regime and arm, from the result files of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.study.arms import ARMS, REGIMES
from benchmarks.study.curves import Points, at, tokens_to
from benchmarks.study.estimates import Estimate, estimate, paired

Result = dict[str, Any]

REFERENCE = "grpo"
LEVELS = (0.3, 0.5, 0.7)
STALLED = 0.1  # least gain of a run that is not stalled
GRID = 100


def load(root: Path) -> list[Result]:
    """All finished runs below ``root``, in the order of regimes, arms and seeds.

    Raises:
        ValueError: where one is of an unknown arm or regime.
    """
    found, regimes, arms = [], list(REGIMES), list(ARMS)
    for path in sorted(root.glob("*/*/seed_*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["arm"] not in arms or result["regime"] not in regimes:
            raise ValueError(f"{path}: there is no arm {result['arm']} or no regime {result['regime']} in the study")
        found.append(result)
    return sorted(found, key=lambda r: (regimes.index(r["regime"]), arms.index(r["arm"]), r["seed"]))


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Per regime its token limit, marks and one row per arm; made of numbers, text and None, so fit for JSON.

    Raises:
        ValueError: where runs of one regime have different token limits.
    """
    out = {}
    for regime in dict.fromkeys(result["regime"] for result in results):
        mine = [result for result in results if result["regime"] == regime]
        limits = sorted({limit_of(result) for result in mine})
        if len(limits) > 1:
            raise ValueError(f"runs of regime {regime} have different --tokens: {limits}")
        marks = [limits[0] * part / 5 for part in range(1, 6)]
        reference = [result for result in mine if result["arm"] == REFERENCE]
        arms = dict.fromkeys(result["arm"] for result in mine)
        out[regime] = {
            "about": REGIMES[regime].about,
            "limit": limits[0],
            "marks": marks,
            "versions": len({result.get("code") for result in mine}),
            "arms": {arm: summarise_arm([r for r in mine if r["arm"] == arm], reference, marks) for arm in arms},
        }
    return out


def summarise_arm(runs: Sequence[Result], reference: Sequence[Result], marks: Sequence[float]) -> dict[str, Any]:
    """One arm's numbers; ``reference`` are the runs of chain GRPO in the same regime."""
    limit = marks[-1]
    curves = [run["points"] for run in runs]
    target = fmean(at(run["points"], limit) for run in reference) if reference else math.nan
    return {
        "seeds": len(runs),
        "test_success": asdict(estimate([test_success(run) for run in runs])),
        "test_success_difference": difference(runs, reference, test_success),
        "mean_success": asdict(estimate([mean_success(run["points"], limit) for run in runs])),
        "mean_success_difference": difference(runs, reference, lambda run: mean_success(run["points"], limit)),
        "em_at": [asdict(estimate([at(points, mark) for points in curves])) for mark in marks],
        "tokens_to": {str(level): reaching(curves, level) for level in LEVELS},
        "tokens_to_reference": finite(tokens_to(mean_curve(curves, limit), target)) if reference else None,
        "stalled": sum(points[-1][1] < points[0][1] + STALLED for points in curves),
        "test_success_by_source": by_source(runs),
    } | costs(runs)


def limit_of(run: Result) -> int:
    """Sampled tokens after which the run was to stop."""
    options = run["settings"]
    return int(next(value for key, value in reversed(list(pairwise(options))) if key == "--max_sampled_tokens"))


def test_success(run: Result) -> float:
    """Success of the last weights on the test questions."""
    return run["test"]["all"]["success_rate"]


def mean_success(points: Points, limit: float) -> float:
    """Validation success averaged over the tokens up to ``limit``: how early a run learns, and how much."""
    return fmean([em for _, em in mean_curve([points], limit)])


def mean_curve(curves: Sequence[Points], limit: float) -> list[tuple[float, float]]:
    """The mean of several learning curves at evenly spaced tokens."""
    marks = [limit * part / GRID for part in range(GRID + 1)]
    return [(mark, fmean(at(points, mark) for points in curves)) for mark in marks]


def reaching(curves: Sequence[Points], level: float) -> dict[str, Any]:
    """How many runs reach ``level``, and the median of the tokens it takes, None where half of them do not."""
    taken = [tokens_to(points, level) for points in curves]
    return {"median": finite(median(taken)), "reached": sum(map(math.isfinite, taken))}


def difference(
    runs: Sequence[Result], reference: Sequence[Result], of: Callable[[Result], float]
) -> dict[str, Any] | None:
    """The arm less chain GRPO over common seeds; None where there are none, or for chain GRPO itself."""
    if not reference or runs[0]["arm"] == reference[0]["arm"]:
        return None
    found = paired({run["seed"]: of(run) for run in runs}, {run["seed"]: of(run) for run in reference})
    return asdict(found) if isinstance(found, Estimate) else None


def by_source(runs: Sequence[Result]) -> dict[str, float]:
    """Mean test success per data source."""
    sources = [source for source in runs[0]["test"] if source != "all"]
    return {source: fmean(run["test"][source]["success_rate"] for run in runs) for source in sources}


def costs(runs: Sequence[Result]) -> dict[str, Any]:
    """What the runs took: medians over seeds of work and time, means of what a critic and a budget did."""

    def mean(name: str) -> float | None:
        known = [run[name] for run in runs if run[name] is not None]
        return fmean(known) if known else None

    fifths = sorted({fifth for run in runs for fifth in run["trees_by_difficulty"]})
    spent = {f: [run["trees_by_difficulty"][f] for run in runs if f in run["trees_by_difficulty"]] for f in fifths}
    return {
        "iterations": median(run["iterations"] for run in runs),
        "tokens": median(run["tokens"] for run in runs),
        "leaves": median(run["leaves"] for run in runs),
        "seconds": {name: median(run["seconds"][name] for run in runs) for name in ("fit", "rollout", "train")},
        "warmup_tokens": mean("warmup_tokens"),
        "warmup_iterations": mean("warmup_iterations"),
        "warmup_explained_variance": mean("warmup_explained_variance"),
        "explained_variance": mean("explained_variance"),
        "trees_by_difficulty": {fifth: asdict(estimate(values)) for fifth, values in spent.items()},
    }


def finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None
