"""Training step of actor (and critic): every token of a tree once, against every trajectory as a row of its own.

    python -m benchmarks.train_step [--steps 20 100 200] [--repeats 3] [--out train_step.json]
    python -m benchmarks.train_step --device cuda --dtype bfloat16 --size 0.5b --steps 200 400

Trees of 8 leaves and 7 turns, half of each turn's tokens sampled, forked after turn 6, 4 or 2: a quarter, half and
three quarters of the trajectories' tokens are the tree's. Printed are ratios of one run: time of the trajectories over
time of the tree (ceiling: their tokens over the tree's; share: of the ceiling), peak memory of the tree over that of
the trajectories, and the largest gaps: how far losses, the critic's values and the gradients of single parameters
differ, as the norm of the difference over the norm of what the trajectories give. Where a gap is above the tolerance a
line says so and the exit code is 1. Trajectories are equally long, so that their rows hold no padding and need no mask.
Each way runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.train_step.cases import SIZES, Case
from benchmarks.train_step.check import TOLERANCES, gaps_of_files, too_far, worst
from benchmarks.train_step.measure import Way, run_case

LEAVES, TURNS, FORKS = 8, 7, (6, 4, 2)


def compare(case: Case, repeats: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Both ways of one case, in turn: a line of the table, and the gap of everything that is compared."""
    ways: tuple[Way, Way] = ("tree", "trajectories")
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        files = {way: Path(folder, f"{way}.pt") for way in ways}
        for repeat in range(repeats):
            for way in ways if repeat % 2 else ways[::-1]:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    found[way].append(pool.apply(run_case, (case, way, None if repeat else files[way])))
        gaps = gaps_of_files(files["tree"], files["trajectories"])
    pairs = list(zip(found["tree"], found["trajectories"], strict=True))
    ratios = [b["seconds"] / a["seconds"] for a, b in pairs]
    ceiling = found["trajectories"][0]["tokens"] / found["tree"][0]["tokens"]
    line = {
        "trained": "actor + critic" if case.critic else "actor",
        "tokens of a turn": case.step,
        "unique": round(1 / ceiling, 2),
        "ceiling": round(ceiling, 2),
        "time ratio": round(median(ratios), 2),
        "range": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "share": round(median(ratios) / ceiling, 2),
        "memory": round(median(a["memory"] / b["memory"] for a, b in pairs), 2),
        "gaps": {kind: float(f"{size:.1e}") for kind, (size, _) in worst(gaps).items()},
    }
    return line, gaps


def main(args: Sequence[str] | None = None) -> int:
    """Print a line for each case; returns the exit code, 1 where trees and trajectories do not come to the same."""
    given = _parser().parse_args(args)
    tolerance = TOLERANCES[given.dtype] if given.tolerance is None else given.tolerance
    rows, wrong = [], False
    for critic in {"without": (False,), "with": (True,), "both": (False, True)}[given.critic]:
        for step in given.steps:
            for fork in given.forks:
                case = Case(LEAVES, TURNS, fork, step, critic, given.size, given.device, given.dtype, given.threads)
                line, gaps = compare(case, given.repeats)
                rows.append(line)
                print(json.dumps(line), flush=True)
                for problem in too_far(gaps, tolerance):
                    wrong = True
                    print(f"NOT EQUAL, {step} tokens a turn, fork after turn {fork}: {problem}", file=sys.stderr)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return int(wrong)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "benchmarks.train_step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 100, 200], help="tokens of a turn")
    parser.add_argument("--forks", type=int, nargs="+", default=FORKS, help="turns before the leaves part")
    parser.add_argument("--size", choices=tuple(SIZES), default="5m")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=tuple(TOLERANCES), default="float32")
    parser.add_argument(
        "--tolerance", type=float, help=f"largest gap allowed, by data type when not given: {TOLERANCES}"
    )
    parser.add_argument("--critic", choices=("without", "with", "both"), default="both")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
