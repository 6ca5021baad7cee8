"""The benchmarks of docs/performance.md run, and what they compare comes to the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    assert max(row["gaps"].values()) < 1e-4


@pytest.mark.slow
def test_late_environments_and_leaves_for_tokens(tmp_path):
    late, *leaves = run(tmp_path, "rollout_latency", "--tasks", "2", "--repeats", "1", "--latency", "0.01")
    assert set(late) == {
        "lock-step over ours, chains",
        "lock-step over ours, trees",
        "trees over chains, per sampled token",
    }
    assert [row["leaves"] for row in leaves] == [6, 5, 6, 10, 7]
    assert all(row["per sampled token"] > 1 for row in leaves)


@pytest.mark.slow
def test_shares_of_an_iteration_add_up(tmp_path):
    row = run(tmp_path, "overhead", "--iterations", "1", "--config", "configs/ppo.yaml")
    assert sum(row["shares"].values()) == pytest.approx(1, abs=0.02)
    assert {"sampler", "model", "environment", "tokenizing", "packing"} <= set(row["shares"])
    assert 0 < row["outside"] < 1
