"""The benchmarks of docs/performance.md run, and what they compare comes to the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.overhead import Clock
from benchmarks.train_step.cases import Case
from benchmarks.train_step.check import gaps, too_far
from benchmarks.train_step.measure import Step, Way, computed_as

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
        assert set(row["gaps"]) == {"actor loss", "critic loss", "critic values", "actor gradient", "critic gradient"}
        assert max(row["gaps"].values()) < 1e-5
        assert row["time ratio"] > 0


def outcome(way: Way) -> dict[str, torch.Tensor]:
    with computed_as(way):
        step = Step(Case(leaves=3, turns=3, fork=2, step=2, critic=True), way)
        step()
        return step.outcome()


def test_every_parameter_and_every_value_is_compared():
    tree, rows = outcome("tree"), outcome("trajectories")
    assert max(gaps(tree, rows).values()) < 1e-5
    assert too_far(gaps(tree, rows), 1e-4) == []
    assert tree["critic values"].numel() == 3 * 2  # of three trajectories, before each of two actions
    assert tree["critic values"].unique().numel() == 1 + 1  # all share the prompt and the first turn
    gradients = [name for name in rows if "gradient: " in name]
    assert len([name for name in gradients if "layers.3.mlp" in name]) == 2 * 3
    assert all(rows[name].any() for name in gradients)
    for name in ("actor gradient: model.model.layers.3.mlp.up_proj.weight", "critic values"):
        for wrong in (1.01, float("nan")):
            (line,) = too_far(gaps({**tree, name: tree[name] * wrong}, rows), 1e-4)
            assert line.startswith(name.replace(": ", " of ") + ": trees differ")
    with pytest.raises(ValueError, match="only one of trees and trajectories has critic loss"):
        gaps({name: tree[name] for name in tree if name != "critic loss"}, rows)


def test_what_is_not_equal_ends_with_an_exit_code(monkeypatch, capsys):
    from benchmarks.train_step import __main__ as train_step

    line = {"gaps": {"actor gradient": 0.01}}
    monkeypatch.setattr(train_step, "compare", lambda case, repeats: (line, {"actor gradient: q_proj": 0.01}))
    one = ["--steps", "2", "--forks", "2", "--critic", "without"]
    assert train_step.main([*one, "--dtype", "bfloat16"]) == 0
    assert train_step.main(one) == 1
    assert "NOT EQUAL, 2 tokens a turn, fork after turn 2: actor gradient of q_proj" in capsys.readouterr().err


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
