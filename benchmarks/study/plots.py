"""Success against sampled tokens, one plot per regime."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.study.curves import at
from benchmarks.study.estimates import estimate
from benchmarks.study.report import GRID, Result, limit_of


def plot_curves(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write each regime's mean success per arm with 95% bands; returns the files, none without matplotlib."""
    if find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed (pip install 'lit-treerl[dev]')")
        return []
    return [
        plot_regime([result for result in results if result["regime"] == regime], folder / f"em_{regime}.svg")
        for regime in dict.fromkeys(result["regime"] for result in results)
    ]


def plot_regime(results: Sequence[Result], path: Path) -> Path:
    """One regime's plot; returns its path."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    marks = [limit_of(results[0]) * part / GRID for part in range(GRID + 1)]
    for number, arm in enumerate(dict.fromkeys(result["arm"] for result in results)):
        curves = [result["points"] for result in results if result["arm"] == arm]
        found = [estimate([at(points, mark) for points in curves]) for mark in marks]
        style = ("-", "--", ":")[number // 10 % 3]  # matplotlib has ten colours
        (line,) = axes.plot(marks, [one.mean for one in found], style, label=f"{arm} ({len(curves)})")
        low, high = ([one.mean + sign * (one.half or 0) for one in found] for sign in (-1, 1))
        axes.fill_between(marks, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    axes.set(xlabel="sampled tokens", ylabel="validation success", title=results[0]["regime"], ylim=(0, 1))
    axes.legend(title="arm (seeds)", fontsize="small")
    with rc_context({"svg.hashsalt": "study", "svg.fonttype": "none"}):  # the same file for the same numbers
        figure.savefig(path, metadata={"Date": None})
    return path
