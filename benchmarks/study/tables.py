"""The study's summary as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.study.arms import ARMS
from benchmarks.study.estimates import Estimate
from benchmarks.study.report import LEVELS, REFERENCE

Row = dict[str, Any]


def markdown(summary: dict[str, Any]) -> str:
    """All tables, a section per regime."""
    return "\n".join(section(name, regime) for name, regime in summary.items())


def section(name: str, regime: dict[str, Any]) -> str:
    """One regime: outcome, speed, cost and, where there are any, budgets."""
    arms: dict[str, Row] = regime["arms"]
    marks = [f"success at {thousands(mark)}" for mark in regime["marks"]]
    parts = [
        f"## {name}: {regime['about']}",
        f"{regime['limit']:,} sampled tokens a run. Means with 95% t-intervals over seeds, differences paired by seed."
        + (f" Made by {regime['versions']} versions of the code." if regime["versions"] > 1 else ""),
        table(
            arms,
            ["test success", f"less {REFERENCE}", "mean success", f"less {REFERENCE}", "stalled"],
            outcome,
            seeds=True,
        ),
        table(arms, marks, lambda row: [interval(found) for found in row["em_at"]]),
        table(arms, [*(f"tokens to {level}" for level in LEVELS), f"tokens to {REFERENCE}'s last success"], speed),
        table(arms, COSTS, cost),
    ]
    shared = {arm: row for arm, row in arms.items() if row["trees_by_difficulty"]}
    if shared:
        fifths = sorted({fifth for row in shared.values() for fifth in row["trees_by_difficulty"]})
        heads = [f"trees at p from {fifth}" for fifth in fifths]
        parts.append(
            table(shared, heads, lambda row: [interval(row["trees_by_difficulty"].get(fifth)) for fifth in fifths])
        )
    parts.append("\n".join(f"- `{arm}`: {ARMS[arm].about}" for arm in arms))
    return "\n\n".join(parts) + "\n"


def table(arms: dict[str, Row], heads: Sequence[str], cells: Callable[[Row], list[str]], *, seeds: bool = False) -> str:
    """One line per arm."""
    lines = [["arm", *(["seeds"] if seeds else []), *heads]]
    lines.append(["---"] * len(lines[0]))
    for arm, row in arms.items():
        lines.append([f"`{arm}`", *([str(row["seeds"])] if seeds else []), *cells(row)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def outcome(row: Row) -> list[str]:
    """How well it ended, how well it did on the way, and how often it did not begin."""
    return [
        interval(row["test_success"]),
        interval(row["test_success_difference"], signed=True),
        interval(row["mean_success"]),
        interval(row["mean_success_difference"], signed=True),
        f"{row['stalled']}/{row['seeds']}",
    ]


def speed(row: Row) -> list[str]:
    """Median tokens to levels of success, with the runs that reach them."""
    reached = [row["tokens_to"][str(level)] for level in LEVELS]
    cells = [f"{thousands(found['median'])} ({found['reached']}/{row['seeds']})" for found in reached]
    return [*cells, thousands(row["tokens_to_reference"])]


COSTS = ["iterations", "tokens", "episodes", "seconds", "rollout s", "train s"]
COSTS += ["warm-up tokens", "warm-up iterations", "EV after it", "EV at the end"]


def cost(row: Row) -> list[str]:
    """What the arm took; EV is the critic's explained variance."""
    seconds = row["seconds"]
    return [
        f"{row['iterations']:.0f}",
        thousands(row["tokens"]),
        f"{row['leaves']:.0f}",
        *(f"{seconds[name]:.0f}" for name in ("fit", "rollout", "train")),
        thousands(row["warmup_tokens"] or None),
        number(row["warmup_iterations"] or None, 1),
        number(row["warmup_explained_variance"], 2),
        number(row["explained_variance"], 2),
    ]


def interval(found: dict[str, Any] | None, *, signed: bool = False) -> str:
    """``0.512 ± 0.034``, or a dash."""
    if found is None:
        return "-"
    shown = Estimate(**found | {"mean": round(found["mean"], 3) + 0.0})  # no minus zero
    return ("+" if signed and shown.mean >= 0 else "") + str(shown)


def thousands(tokens: float | None) -> str:
    """``87k``, or a dash."""
    return "-" if tokens is None else f"{tokens / 1000:.0f}k" if tokens >= 10_000 else f"{tokens / 1000:.1f}k"


def number(value: float | None, digits: int) -> str:
    """A number, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"
