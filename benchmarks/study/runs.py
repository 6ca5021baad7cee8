"""One run of the study: fit, a last validation, the test, and what they left behind as result.json."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.study.arms import ARMS, REGIMES, settings
from benchmarks.study.curves import curve, read_metrics

PROJECT = Path(__file__).parents[2]
TIMES = ("rollout", "train", "sync")
BY_DIFFICULTY = "budget/by_difficulty/"


@dataclass(frozen=True)
class Job:
    """One run: arm x regime x seed.

    Args:
        arm: name.
        regime: name.
        seed: of the run.
        tokens: sampled tokens after which it stops.
        root: folder of the study.
        more: further command-line options, the last of all.
    """

    arm: str
    regime: str
    seed: int
    tokens: int
    root: Path
    more: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where everything of the run lies."""
        return self.root / self.regime / self.arm / f"seed_{self.seed}"

    @property
    def result(self) -> Path:
        """There once the run is done."""
        return self.folder / "result.json"

    @property
    def settings(self) -> list[str]:
        """Its command-line options."""
        return [*settings(ARMS[self.arm], REGIMES[self.regime], self.seed, self.tokens), *self.more]

    def is_done(self) -> bool:
        """Whether its result is there.

        Raises:
            ValueError: where the result is that of other settings.
        """
        if not self.result.is_file():
            return False
        if json.loads(self.result.read_text())["settings"] != self.settings:
            raise ValueError(f"{self.result} is of other settings: remove its folder, or give another --root")
        return True


def run_job(job: Job) -> None:
    """Run it in this process, whose output goes to log.txt; nothing where it is done or another process has it.

    A run that died is begun anew.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however it ends
        except BlockingIOError:
            return
        if job.is_done():
            return
        for step in ("fit", "validate", "test"):
            shutil.rmtree(job.folder / step, ignore_errors=True)
        with (job.folder / "log.txt").open("w") as log:
            sys.stdout.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            write_json(job.result, measure(job))


def measure(job: Job) -> dict[str, Any]:
    """Fit, validate and test; returns the result and removes the checkpoints."""
    from lit_treerl.command import run

    os.chdir(PROJECT)  # configs are relative to it
    sys.argv = sys.argv[:1]  # Lightning warns of arguments that it is not to read
    seconds, code, last = {}, fingerprint(), job.folder / "fit/version_0/checkpoints/last.ckpt"
    for step in ("fit", "validate", "test"):
        start = time.perf_counter()
        place = ("--trainer.default_root_dir", str(job.folder / step))
        run([step, *job.settings, *place, *(("--ckpt_path", str(last)) if step != "fit" else ())])
        seconds[step] = time.perf_counter() - start
    shutil.rmtree(last.parent)
    what = {"arm": job.arm, "regime": job.regime, "seed": job.seed, "settings": job.settings, "code": code}
    return what | read_result(job.folder, seconds)


def fingerprint() -> str:
    """Short hash of the package's code and of the configs, to tell runs of different versions apart."""
    digest = hashlib.sha256()
    for path in sorted([*PROJECT.glob("lit_treerl/**/*.py"), *PROJECT.glob("configs/**/*.yaml")]):
        digest.update(path.relative_to(PROJECT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def read_result(folder: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """What a run's folders say."""
    rows = read_metrics(folder / "fit/version_0/metrics.csv")
    iterations = [row for row in rows if "rollout/sampled_tokens" in row]
    tokens = sum(row["rollout/sampled_tokens"] for row in iterations)
    end = evaluation(folder, "validate")["all"]["success_rate"]
    points = [*(point for point in curve(rows) if point[0] < tokens), (tokens, end)]
    warmup = [row for row in iterations if "warmup/explained_variance" in row]
    explained = [row["train/explained_variance"] for row in iterations if "train/explained_variance" in row]
    return {
        "points": points,
        "test": evaluation(folder, "test"),
        "tokens": tokens,
        "iterations": len(iterations),
        "leaves": sum(row["rollout/leaves"] for row in iterations),
        "seconds": seconds | {name: sum(row.get(f"time/{name}", 0) for row in iterations) for name in TIMES},
        "warmup_tokens": sum(row["rollout/sampled_tokens"] for row in warmup),
        "warmup_iterations": len(warmup),
        "warmup_explained_variance": warmup[-1]["warmup/explained_variance"] if warmup else None,
        "explained_variance": fmean(explained[-5:]) if explained else None,
        "trees_by_difficulty": trees_by_difficulty(iterations),
    }


def evaluation(folder: Path, step: str) -> dict[str, dict[str, float]]:
    """Means per data source of ``validate`` or ``test``."""
    return json.loads((folder / step / "version_0" / f"{step}_results.json").read_text())


def trees_by_difficulty(iterations: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean trees of a task by the fifth of its predicted success, over the iterations that had such tasks."""
    names = sorted({name for row in iterations for name in row if name.startswith(BY_DIFFICULTY)})
    return {name.removeprefix(BY_DIFFICULTY): fmean(row[name] for row in iterations if name in row) for name in names}


def write_json(path: Path, content: object) -> None:
    """Write the file at once: others see all of it or nothing."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)
