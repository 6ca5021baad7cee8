"""Same seed, same run, bit for bit: twice, resumed, and interrupted with Ctrl-C. One unbroken run is the measure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runs import Run, arguments, newest, run, same

pytestmark = pytest.mark.filterwarnings("ignore")
LOGGED = [
    *("train/reward", "train/loss_actor", "train/kl", "train/entropy", "train/clip_fraction", "train/sampler_gap"),
    *("train/grad_norm_actor", "rollout/leaves", "rollout/sampled_tokens", "rollout/prompt_tokens"),
    *("rollout/cached_tokens", "rollout/tool_calls", "rollout/leaves_per_chain", "rollout/unique_token_ratio"),
    *("rollout/zero_signal_groups", "rollout/failed", "rollout/truncated", "time/rollout", "time/train", "time/sync"),
]
EVALUATED = ["val/em", "val/f1", "val/success_rate"]


def fit(root: Path, *args: str, config: str = "tree_grpo") -> Run:
    return run(pytest.MonkeyPatch.context, "fit", root, *args, config=config)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Run:
    """Four iterations."""
    return fit(tmp_path_factory.mktemp("unbroken"), "--trainer.max_epochs", "4")


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Run:
    """The first two of them, run apart."""
    return fit(tmp_path_factory.mktemp("half"), "--trainer.max_epochs", "2")


def assert_same_end(run: Run, unbroken: Run) -> None:
    one, other = run.checkpoint(), unbroken.checkpoint()
    assert (one["epoch"], one["global_step"]) == (other["epoch"], other["global_step"])
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert same(one[part], other[part]), part


def test_every_iteration_logs_every_number(unbroken):
    iterations = [row for row in unbroken.rows() if "train/reward" in row]
    assert [row["epoch"] for row in iterations] == ["0", "1", "2", "3"]
    for row in iterations:
        assert [name for name in LOGGED if name not in row] == []
        assert [name for name in LOGGED if not abs(float(row[name])) < float("inf")] == []
    first = iterations[0]
    assert float(first["rollout/leaves"]) == 4 * 2 * 3
    assert 1.0 < float(first["rollout/leaves_per_chain"]) < 3.0
    assert 0 < float(first["rollout/unique_token_ratio"]) < 1
    assert 0 < float(first["rollout/cached_tokens"]) < float(first["rollout/prompt_tokens"])
    assert float(first["train/sampler_gap"]) < 1e-4
    assert float(first["train/kl"]) == 0.0


def test_validation_is_on_record_before_the_first_iteration_and_after_each(unbroken):
    evaluated = [row for row in unbroken.rows() if "val/em" in row]
    assert [row["epoch"] for row in evaluated] == ["-1", "0", "1", "2", "3"]
    assert evaluated[0]["step"] == "0"
    assert all(0 <= float(row[name]) <= 1 for row in evaluated for name in EVALUATED)
    assert {row["val/episodes"] for row in evaluated} <= {"4", "4.0"}


def test_the_weights_move_and_optimizer_steps_are_counted(unbroken):
    state = unbroken.checkpoint()["state_dict"]
    from lit_treerl.module import LitTreeRL

    start = LitTreeRL()
    start.configure_model()
    moved = [name for name, value in start.state_dict().items() if not torch.equal(value, state[name])]
    assert len(moved) > len(state) / 2
    assert int(state["updates"]) == unbroken.checkpoint()["global_step"] > 2


def test_the_same_seed_gives_the_same_trees_numbers_and_weights(unbroken, half):
    assert half.trees == unbroken.trees[:2]
    rows = half.repeatable_rows()
    assert rows == unbroken.repeatable_rows()[: len(rows)]
    assert len(rows) == 1 + 2 * 2


def test_another_seed_gives_other_trees_and_numbers(unbroken, tmp_path):
    other = fit(tmp_path, "--trainer.max_epochs", "1", "--seed_everything", "1", "--trainer.limit_val_batches", "0")
    assert not set(other.trees[0]) & set(unbroken.trees[0])
    row = other.repeatable_rows()[0]
    assert row != next(r for r in unbroken.repeatable_rows() if "train/reward" in r)


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(unbroken, half, tmp_path):
    resumed = fit(tmp_path, "--trainer.max_epochs", "4", "--ckpt_path", str(half.last))
    assert resumed.trees == unbroken.trees[2:]
    assert_same_end(resumed, unbroken)
    before, rows = unbroken.repeatable_rows(), resumed.repeatable_rows()
    assert rows[1:] == before[5:]
    evaluated = next(row for row in before if row["epoch"] == "1" and "val/em" in row)
    assert rows[0]["epoch"] == "1"  # evaluated anew, on record under the iteration that was done last
    assert [float(rows[0][name]) for name in EVALUATED] == [float(evaluated[name]) for name in EVALUATED]


def interrupted(root: Path, script: list[str], when: str) -> tuple[str, Run]:
    """Start a run in its own process and send Ctrl-C once a line begins with ``when``; returns all it said."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *script, *arguments("fit", root, "--trainer.max_epochs", "4")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith(when):
            process.send_signal(signal.SIGINT)
            break
    said += process.stdout.readlines()
    assert process.wait() != 0
    return "".join(said), Run(newest(root), [])


# The command with a stop in the middle of a phase, so that the signal surely comes there.
STOPS = """
import sys, time
from lit_treerl import cli
from lit_treerl.module import LitTreeRL
from lit_treerl.rollout.grower import TreeGrower

def stopping(cls, name, when):
    plain, calls = getattr(cls, name), [0]
    def wrapped(self, *args):
        calls[0] += 1
        out = plain(self, *args)
        if when(self, calls[0]):
            print("here", flush=True)
            time.sleep(600)
        return out
    setattr(cls, name, wrapped)

PHASE
cli.main(sys.argv[1:])
"""
IN_ROLLOUTS = 'stopping(TreeGrower, "_work", lambda self, n: self.params.temperature and self.version > 0)'
IN_FIRST_ROLLOUTS = 'stopping(TreeGrower, "_work", lambda self, n: self.params.temperature)'
IN_TRAINING = 'stopping(LitTreeRL, "training_step", lambda self, n: self.trainer.current_epoch == 1)'
IN_FIRST_TRAINING = 'stopping(LitTreeRL, "training_step", lambda self, n: n == 1)'


@pytest.mark.parametrize(
    ("phase", "done"),
    [
        pytest.param(IN_ROLLOUTS, 1, id="rollouts"),
        pytest.param(IN_TRAINING, 1, id="training"),
        pytest.param(IN_FIRST_ROLLOUTS, 0, id="first-rollouts", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_a_checkpoint_that_the_run_goes_on_from(unbroken, tmp_path, phase, done):
    said, broken = interrupted(tmp_path, ["-c", STOPS.replace("PHASE", phase)], "here")
    assert f"The run can go on from its last whole iteration: --ckpt_path {broken.last}" in said
    assert "Traceback" not in said
    resumed = fit(tmp_path / "resumed", "--trainer.max_epochs", "4", "--ckpt_path", str(broken.last))
    assert resumed.trees == unbroken.trees[done:]
    assert_same_end(resumed, unbroken)


@pytest.mark.slow
def test_ctrl_c_within_the_first_updates_says_that_there_is_nothing_to_go_on_from(tmp_path):
    said, broken = interrupted(tmp_path, ["-c", STOPS.replace("PHASE", IN_FIRST_TRAINING)], "here")
    assert "This run has no checkpoint yet: start it again as you did." in said
    assert not broken.last.exists()
    assert "Traceback" not in said


def test_a_finished_run_has_nothing_to_go_on_with(half, tmp_path):
    again = fit(
        tmp_path, "--trainer.max_epochs", "2", "--ckpt_path", str(half.last), "--trainer.limit_val_batches", "0"
    )
    assert again.trees == []


@pytest.mark.slow
def test_ctrl_c_to_the_installed_command(unbroken, tmp_path):
    """Whatever it was doing after the second iteration's line."""
    said, broken = interrupted(tmp_path, ["-c", "from lit_treerl.cli import main; main()"], "iteration   2")
    assert f"--ckpt_path {broken.last}" in said
    resumed = fit(tmp_path / "resumed", "--trainer.max_epochs", "4", "--ckpt_path", str(broken.last))
    assert_same_end(resumed, unbroken)


def test_chains_run_through_the_same_code(tmp_path):
    chains = fit(tmp_path, "--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0", config="grpo")
    [row] = [row for row in chains.rows() if "train/reward" in row]
    assert float(row["rollout/leaves"]) == 4 * 4
    assert float(row["rollout/leaves_per_chain"]) == pytest.approx(1.0)
    assert float(row["rollout/unique_token_ratio"]) == 1.0
    assert chains.checkpoint()["epoch"] == 0
