"""One run, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.trl import ours, theirs
from benchmarks.trl.job import Job


def run_job(job: Job) -> dict[str, Any]:
    """One run, in the process that calls it."""
    with tempfile.TemporaryDirectory() as folder:
        points = (theirs if job.side == "trl" else ours).run(job, Path(folder))
    return asdict(job) | {"points": points}


def run_apart(job: Job) -> dict[str, Any]:
    """One run, in a process of its own."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run_job, (job,))
