"""Training step of actor (and critic): each unique token once, against every trajectory as a row of its own.

    python -m benchmarks.train_step [--steps 20 100 200] [--repeats 3] [--out train_step.json]
    python -m benchmarks.train_step --device cuda --dtype bfloat16 --size 0.5b --steps 200 400

Trees of 8 leaves and 7 turns, half of each turn's tokens sampled, forked after turn 6, 4 or 2: a quarter, half and
three quarters of the trajectories' tokens are unique. Printed are ratios of one run: time of the trajectories over time
of the tree (ceiling: raw tokens over unique ones; share: of the ceiling), peak memory of the tree over that of the
trajectories, and how far losses and gradients differ, relative to the largest. Trajectories are equally long, so that
their rows hold no padding and need no mask. Each way runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.train_step.cases import Case
from benchmarks.train_step.measure import Way, run_case

LEAVES, TURNS, FORKS = 8, 7, (6, 4, 2)


def compare(case: Case, repeats: int) -> dict[str, Any]:
    """Both ways of one case, in turn."""
    ways: tuple[Way, Way] = ("tree", "trajectories")
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way in ways if repeat % 2 else ways[::-1]:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[way].append(pool.apply(run_case, (case, way)))
    pairs = list(zip(found["tree"], found["trajectories"], strict=True))
    tree, rows = pairs[0]
    ratios = [b["seconds"] / a["seconds"] for a, b in pairs]
    ceiling = rows["tokens"] / tree["tokens"]
    return {
        "trained": "actor + critic" if case.critic else "actor",
        "tokens of a turn": case.step,
        "unique": round(1 / ceiling, 2),
        "ceiling": round(ceiling, 2),
        "time ratio": round(median(ratios), 2),
        "range": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "share": round(median(ratios) / ceiling, 2),
        "memory": round(median(a["memory"] / b["memory"] for a, b in pairs), 2),
        "loss gap": float(f"{abs(tree['loss'] - rows['loss']) / abs(rows['loss']):.1e}"),
        "gradient gap": float(
            f"{np.abs(tree['gradient'] - rows['gradient']).max() / np.abs(rows['gradient']).max():.1e}"
        ),
    }


def main(args: Sequence[str] | None = None) -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(
        "benchmarks.train_step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 100, 200], help="tokens of a turn")
    parser.add_argument("--size", choices=("5m", "0.5b"), default="5m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--critic", choices=("without", "with", "both"), default="both")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(args)
    rows = []
    for critic in {"without": (False,), "with": (True,), "both": (False, True)}[given.critic]:
        for step in given.steps:
            for fork in FORKS:
                case = Case(LEAVES, TURNS, fork, step, critic, given.size, given.device, given.dtype, given.threads)
                rows.append(compare(case, given.repeats))
                print(json.dumps(rows[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
