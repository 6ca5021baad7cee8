"""The benchmarks of docs/performance.md run, and what they compare comes to the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.overhead import Clock

PROJECT = Path(__file__).parents[1]


def run(tmp_path: Path, module: str, *args: str) -> Any:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", f"benchmarks.{module}", *args, "--out", str(out)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.mark.slow
def test_trees_and_trajectories_learn_the_same_from_fewer_tokens(tmp_path):
    rows = run(tmp_path, "train_step", "--steps", "6", "--repeats", "1", "--critic", "with")
    assert [row["unique"] for row in rows] == [0.25, 0.5, 0.75]
    for row in rows:
        assert row["loss gap"] < 1e-5
        assert row["gradient gap"] < 1e-5
        assert row["time ratio"] > 0


@pytest.mark.slow
def test_chunked_logprobs_equal_full_ones_with_less_memory(tmp_path):
    row = run(tmp_path, "logprob_memory", "--tokens", "512", "--hidden", "16", "--repeats", "1")
    assert row["memory"] < 0.5
    assert max(row["gaps"].values()) < 1e-5


@pytest.mark.slow
def test_late_environments_and_leaves_for_tokens(tmp_path):
    late, more, *leaves = run(
        tmp_path, "rollout_latency", *("--tasks", "2", "--more-tasks", "3"), *("--repeats", "1", "--latency", "0.01")
    )
    assert more["tasks"] == 3
    assert float(more["trees over chains, per sampled token"].split()[0]) > 0
    assert set(late) == {
        "tasks",
        "lock-step over ours, chains",
        "lock-step over ours, trees",
        "trees over chains, per sampled token",
    }
    assert [row["leaves"] for row in leaves] == [6, 5, 6, 10, 7]
    assert all(row["per sampled token"] > 1 for row in leaves)


def test_a_part_is_timed_without_the_parts_called_within_it(monkeypatch):
    now = 0.0

    class Work:
        @classmethod
        def inner(cls, seconds):
            nonlocal now
            now += seconds

        def outer(self):
            self.inner(2.0)
            Work.inner(1.0)
            self.inner(4.0)
            raise KeyError

    monkeypatch.setattr("benchmarks.overhead.time.perf_counter", lambda: now)
    clock = Clock()
    clock.watch(Work, "inner", "inside")
    plain = Work.outer

    def outer(self):
        nonlocal now
        now += 10.0
        plain(self)

    monkeypatch.setattr(Work, "outer", outer)
    clock.watch(Work, "outer", "outside")
    with pytest.raises(KeyError):
        Work().outer()
    assert clock.seconds == {"inside": 7.0, "outside": 10.0}
    clock.begin()
    assert clock.seconds == {}
    assert clock.started == 17.0


@pytest.mark.slow
def test_every_part_of_an_iteration_is_found_and_little_is_left(tmp_path):
    shares = run(tmp_path, "overhead", "--iterations", "1", "--config", "configs/ppo.yaml")["shares"]
    parts = {"sampler", "model", "environment", "tokenizing", "growing trees", "packing", "checkpoints"}
    assert parts | {"attention layout", "loop, logging, all else"} <= set(shares)
    assert min(shares.values()) >= 0
    assert shares["sampler"] + shares["model"] > 0.5
