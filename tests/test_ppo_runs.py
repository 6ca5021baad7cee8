"""The configs of PPO and TreePPO run, log what they say, and their checkpoints can be tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs import Run, run

pytestmark = pytest.mark.filterwarnings("ignore")
CRITIC = ("train/loss_critic", "train/explained_variance", "train/value_mean", "train/grad_norm_critic")
TREE = ("apvt/nodes", "apvt/visits_mean", "budget/min", "budget/max", "budget/entropy")
SHARED = [
    *("--model.actor.lora", "{r: 2, lora_alpha: 8}", "--model.critic.backbone", "shared"),
    *("--model.actor.gradient_checkpointing", "true", "--model.loss.kl_coef", "0.01"),
]


def command(name: str, root: Path, *args: str, config: str) -> Run:
    return run(pytest.MonkeyPatch.context, name, root, *args, config=config)


@pytest.fixture(scope="module")
def ppo(tmp_path_factory) -> Run:
    return command("fit", tmp_path_factory.mktemp("ppo"), "--trainer.max_epochs", "1", config="ppo")


@pytest.fixture(scope="module")
def tree_ppo(tmp_path_factory) -> Run:
    """One iteration of warm-up and one after it."""
    root = tmp_path_factory.mktemp("tree_ppo")
    return command("fit", root, "--trainer.max_epochs", "2", "--warmup.iterations", "1", config="tree_ppo")


def iterations(run: Run) -> list[dict[str, float]]:
    rows = [row for row in run.rows() if "train/reward" in row]
    return [{name: float(value) for name, value in row.items()} for row in rows]


def test_ppo_logs_its_critic(ppo):
    [row] = iterations(ppo)
    assert [name for name in CRITIC if name not in row] == []
    assert not [name for name in row if name.startswith(("apvt/", "warmup/"))]
    assert row["rollout/leaves"] == 4 * 4
    assert row["budget/min"] == row["budget/max"] == 4
    assert row["train/loss_critic"] > 0
    assert row["train/grad_norm_critic"] > 0
    assert row["train/loss_actor"] != 0
    assert row["train/explained_variance"] == pytest.approx(0.0, abs=1e-6)  # a fresh critic says the same of all
    assert row["train/skipped_steps"] == 0


def test_tree_ppo_logs_warm_up_value_tree_and_budget(tree_ppo):
    warming, learning = iterations(tree_ppo)
    for row in (warming, learning):
        assert [name for name in (*CRITIC, *TREE) if name not in row] == []
        assert len([name for name in row if name.startswith("budget/by_difficulty/")]) == 5
        assert row["rollout/leaves"] == 4 * 2 * 3  # the total of the budget, of 3 leaves each
    assert warming["warmup/iterations"] == 1
    assert warming["warmup/explained_variance"] == pytest.approx(warming["train/explained_variance"], nan_ok=True)
    assert "warmup/iterations" not in learning
    assert (warming["train/loss_actor"], warming["train/grad_norm_actor"]) == (0, 0)
    assert learning["train/grad_norm_actor"] > 0
    assert 1 < warming["apvt/nodes"] < learning["apvt/nodes"]


@pytest.mark.parametrize("config", ["ppo", "tree_ppo"])
def test_a_checkpoint_can_be_tested(request, tmp_path, config):
    trained: Run = request.getfixturevalue(config)
    done = command("test", tmp_path, "--ckpt_path", str(trained.last), config=config)
    results = json.loads((done.folder / "test_results.json").read_text())
    assert results["all"]["episodes"] == 6
    assert 0 <= results["all"]["em"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(SHARED, id="shared"),
        pytest.param(["--model.algorithm.level", "token"], id="token"),
        pytest.param(["--model.critic.loss.kind", "bce", "--model.critic.loss.clip", "0.2"], id="clipped-bce"),
        pytest.param(["--search.expansions", "1", "--search.trees", "2", "--search.draw", "critic_gap"], id="gap"),
    ],
)
def test_options_run_and_their_checkpoints_can_be_tested(tmp_path, args):
    short = ["--trainer.limit_val_batches", "0", "--warmup.iterations", "1"]
    trained = command("fit", tmp_path, *short, "--trainer.max_epochs", "2", *args, config="tree_ppo")
    warming, learning = iterations(trained)
    assert warming["train/loss_actor"] == 0
    assert learning["train/grad_norm_actor"] > 0
    assert learning["train/grad_norm_critic"] > 0
    state = trained.checkpoint()["state_dict"]
    shared = args is SHARED
    assert any(name.startswith("critic.body.") for name in state) is not shared
    assert any(".critic.weight" in name for name in state) is shared
    done = command("test", tmp_path / "test", *args, "--warmup.iterations", "1", "--ckpt_path", str(trained.last),
                   config="tree_ppo")  # fmt: skip
    assert (done.folder / "test_results.json").is_file()


def test_the_sampler_never_gets_a_critics_weights(tmp_path, monkeypatch):
    from lit_treerl.sampling.transformers import TransformersSampler

    names: list[list[str]] = []
    plain = TransformersSampler.load_weights

    def watched(self: Any, weights: Any, version: int) -> None:
        weights = list(weights)
        names.append([name for name, _ in weights])
        plain(self, weights, version)

    monkeypatch.setattr(TransformersSampler, "load_weights", watched)
    short = ["--trainer.limit_val_batches", "0", "--trainer.max_epochs", "1"]
    command("fit", tmp_path, *short, *SHARED, config="ppo")
    assert names
    assert not [name for some in names for name in some if "critic" in name or "lora" in name]
