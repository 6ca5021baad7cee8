"""What a person reads while a run goes on, and at its end."""

import doctest

import pytest

from lit_treerl.callbacks import run_report
from lit_treerl.callbacks.run_report import evaluation_line, iteration_line
from runs import run


def test_the_line_of_an_iteration():
    assert doctest.testmod(run_report).failed == 0
    rollouts = {
        "train/reward": 0.5,
        "rollout/leaves": 24.0,
        "rollout/leaves_per_chain": 1.333,
        "rollout/sampled_tokens": 12345.0,
        "rollout/failed": 1.0,
        "time/rollout": 1.25,
    }
    updates = {"train/loss_actor": -0.01, "train/sampler_gap": 1.2e-6, "rollout/zero_signal_groups": 3.0}
    assert iteration_line(12, rollouts, updates) == (
        "iteration  12  reward 0.500  loss -0.0100  gap 1.2e-06  leaves 24  leaves/chain 1.33  tokens 12,345  "
        "silent tasks 3  failed 1  rollout 1.2s"
    )


def test_the_line_of_an_evaluation():
    means = {"em": 0.25, "f1": 0.5, "success_rate": 0.25, "turns": 3.125, "episodes": 1200}
    assert evaluation_line(means) == "em 0.250  f1 0.500  success_rate 0.250  turns 3.12  episodes 1,200"


@pytest.mark.filterwarnings("ignore")
def test_a_run_says_a_line_per_iteration_a_table_and_where_everything_is(tmp_path, capsys):
    export = tmp_path / "policy"
    done = run(
        pytest.MonkeyPatch.context, "fit", tmp_path / "run", "--trainer.max_epochs", "2", "--export", str(export)
    )
    said = capsys.readouterr().out
    lines = said.splitlines()
    starts = ["validation after iteration 0  em", "iteration   1  reward", "iteration   2  reward"]
    starts += [f"validation after iteration {i}  em" for i in (1, 2)]
    for start in starts:
        assert sum(line.startswith(start) for line in lines) == 1, start
    assert "held-out evaluation" in said
    joined = said.replace("\n", "")
    for what, path in {
        "run folder": done.folder,
        "best checkpoint": next((done.folder / "checkpoints").glob("best-*.ckpt")),
        "last checkpoint": done.last,
        "policy": export,
    }.items():
        assert f"{what}: {path}" in joined
        assert path.exists()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported = AutoModelForCausalLM.from_pretrained(export, dtype="float32").state_dict()
    trained = done.checkpoint()["state_dict"]
    assert all((value - trained[f"actor.model.{name}"]).abs().max() < 0.01 for name, value in exported.items())
    assert AutoTokenizer.from_pretrained(export).chat_template
