"""Runs the study of the embedded world and writes its report.

    python -m benchmarks.study [--regime default low long] [--arms grpo tree_ppo ...] [--seeds 8] [--parallel 2]
    python -m benchmarks.study --report_only
    python -m benchmarks.study --arms grpo --root runs/grid/3e-4 -- --model.actor_lr 3e-4

Each run trains one arm with one seed until it has sampled --tokens tokens, then validates and tests its last weights.
All arms of seed 0 come first, then those of seed 1, and so on. Finished runs are kept, so it goes on where it stopped;
several of these commands may work in one root. What follows `--` is given to every run. From the project's root.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.study.arms import ABLATIONS, ARMS, MAIN, REGIMES
from benchmarks.study.plots import plot_curves
from benchmarks.study.report import load, summarise
from benchmarks.study.runs import Job, run_job, write_json
from benchmarks.study.tables import markdown

PRELOAD = ["lit_treerl.command", "transformers.models.qwen3.modeling_qwen3", "bm25s", "numba"]


def run_jobs(jobs: Sequence[Job], parallel: int) -> list[Job]:
    """Run them, ``parallel`` at a time, each in a process of its own; returns those that failed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)  # imported once for all

    def one(job: Job) -> bool:
        if job.is_done():
            return True
        start = time.perf_counter()
        child = context.Process(target=run_job, args=(job,))
        child.start()
        child.join()
        what = "done" if job.is_done() else "left to another process" if not child.exitcode else "FAILED, see log.txt"
        print(f"{job.folder.relative_to(job.root)}: {what} ({time.perf_counter() - start:.0f} s)", flush=True)
        return not child.exitcode

    with ThreadPoolExecutor(parallel) as pool:
        return [job for job, fine in zip(jobs, pool.map(one, jobs), strict=True) if not fine]


def write_report(root: Path) -> None:
    """Write report.json, report.md and a plot per regime into ``root``, of the runs that are done."""
    results = load(root)
    if not results:
        print(f"no finished run below {root}")
        return
    summary = summarise(results)
    write_json(root / "report.json", summary)
    text = markdown(summary)
    (root / "report.md").write_text(text, encoding="utf-8")
    print(text)
    for plot in plot_curves(results, root):
        print(f"plot: {plot}")


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "benchmarks.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=["default"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*MAIN, *ABLATIONS])
    for name, default in (("--seeds", 8), ("--parallel", 2), ("--tokens", 75_000)):
        parser.add_argument(name, type=positive, default=default)
    parser.add_argument("--root", type=Path, default=Path("runs/study"))
    parser.add_argument("--report_only", "--report-only", action="store_true")
    parser.add_argument("more", nargs="*", help="after --: options for every run")
    return parser.parse_args(args)


def positive(text: str) -> int:
    """A whole number of at least 1, with or without underscores."""
    number = int(text)
    if number < 1:
        raise ValueError(number)
    return number


def plan(given: argparse.Namespace, root: Path) -> list[Job]:
    """The runs in their order, which gives all arms equally many seeds wherever it is broken off."""
    return [
        Job(arm, regime, seed, given.tokens, root, tuple(given.more))
        for seed in range(given.seeds)
        for regime in given.regime
        for arm in given.arms
    ]


def main(args: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a run failed, 2 where what is in the root does not go with what is asked for."""
    given = parse(args)
    root, failed = given.root.resolve(), []
    try:
        if not given.report_only:
            jobs = plan(given, root)
            ready = sum(job.is_done() for job in jobs)
            print(f"{len(jobs)} runs, {ready} of them done already", flush=True)
            failed = run_jobs(jobs, given.parallel)
        write_report(root)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("broken off; the same command goes on with the runs that are not done", file=sys.stderr)
        return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
