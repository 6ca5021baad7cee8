"""The study's arms and driver, and a short run of it."""

from __future__ import annotations

import csv
import fcntl
import json
import os

import pytest
import yaml

from benchmarks.study import runs as study_runs
from benchmarks.study.__main__ import main, parse, plan
from benchmarks.study.arms import ABLATIONS, ARMS, MAIN, REGIMES, settings
from benchmarks.study.runs import Job, run_job
from lit_treerl.callbacks.token_budget import TokenBudget
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.callbacks.warmup import CriticWarmup
from lit_treerl.trees.budget import UniformBudget
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from runs import built

pytestmark = pytest.mark.filterwarnings("ignore")

# ---- arms ----


def test_arms_of_a_regime_have_equal_tokens_and_updates():
    assert {name: [regime.tasks_of(kind) for kind in regime.searches] for name, regime in REGIMES.items()} == {
        "default": [32, 29, 29],  # 128 chains, 4.4 a task of the trees
        "low": [64, 58, 40],  # 128 chains, 2.2 and 3.2
        "long": [26, 24, 24],  # 104 chains, 13/3
        "repeat": [32, 29, 29],
        "dead_ends": [26, 24, 24],
        "alfworld": [32, 31, 31],
        "webshop": [32, 30, 30],
    }
    for regime in REGIMES.values():
        chains = [s.expected_chains(regime.turns) * regime.tasks_of(kind) for kind, s in regime.searches.items()]
        assert max(chains) / min(chains) < 1.03
    for arm in ARMS.values():  # nothing that changes the number of updates
        assert not [word for word in arm.overrides if "mini_batches" in word or "inner_epochs" in word]


def test_every_kind_of_budget_has_room():
    """A mean of one tree, with one tree for each task at least, cannot be moved."""
    for regime in REGIMES.values():
        for arm in (ARMS["tree_grpo_budget"], ARMS["tree_ppo"]):
            assert regime.searches[arm.kind].trees > 1


PARTS = {  # budget, whether there is a warm-up, the value tree's decay, whether the algorithm asks the critic
    "grpo": (UniformBudget, False, None, False),
    "tree_grpo_budget": (CriticGuidedBudget, False, "decay", False),
    "tree_ppo": (CriticGuidedBudget, False, "decay", True),
    "no_apvt": (CriticGuidedBudget, False, None, True),
    "uniform_budget": (UniformBudget, False, "decay", True),
    "no_decay": (CriticGuidedBudget, False, "none", True),
    "warmup": (CriticGuidedBudget, True, "decay", True),
    "tree_ppo_chains": (CriticGuidedBudget, True, "decay", True),
    "grpo_critic": (UniformBudget, False, None, True),
    "tree_grpo_apvt": (UniformBudget, False, "decay", False),
}
SHIPPED = yaml.safe_load((study_runs.PROJECT / "configs/tree_ppo.yaml").read_text())["model"]["init_args"]


@pytest.mark.parametrize(("arm", "regime"), [(arm, [*REGIMES][i % len(REGIMES)]) for i, arm in enumerate(ARMS)])
def test_arm_builds(arm, regime, monkeypatch):
    monkeypatch.chdir(study_runs.PROJECT)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    cli = built(monkeypatch, "fit", *settings(ARMS[arm], REGIMES[regime], 3, 1234))
    sampler, warmup, budget = (
        next(callback for callback in cli.trainer.callbacks if isinstance(callback, kind))
        for kind in (TreeSampler, CriticWarmup, TokenBudget)
    )
    assert budget.max_sampled_tokens == 1234
    assert cli.config.fit.seed_everything == 3
    search = REGIMES[regime].searches[ARMS[arm].kind]
    assert sampler.search == search
    assert cli.datamodule.tasks_per_iteration == REGIMES[regime].tasks_of(ARMS[arm].kind)
    if regime in ("alfworld", "webshop"):
        assert type(sampler.env).__name__ == {"alfworld": "ALFWorld", "webshop": "WebShop"}[regime]
        assert cli.model.policy == f"embedded-{regime}"
    else:
        test, train = cli.datamodule.sources["test"], cli.datamodule.sources["train"]
        assert test.n == 500
        assert test.hops == ((4, 5, 6) if regime in ("long", "dead_ends") else (2, 3, 4, 5, 6))
        assert train.n == {"repeat": 64, "dead_ends": 52}.get(regime, 3000)
    model, tree = cli.model, cli.model.value_tree
    decay = None if tree is None else "decay" if tree.half_life else "none"
    if arm in PARTS:
        assert PARTS[arm] == (type(sampler.budget), warmup.iterations > 0, decay, model.algorithm.uses_critic)
    # All arms learn with the settings that are shipped for TreePPO, but for chain GRPO's learning rate.
    assert model.actor_lr == (3e-4 if arm.startswith("grpo") else SHIPPED["actor_lr"])
    if model.algorithm.uses_critic or isinstance(sampler.budget, CriticGuidedBudget):
        assert model.critic_config.lr == SHIPPED["critic"]["lr"]
        assert list(model.critic_config.optimizer.betas) == SHIPPED["critic"]["optimizer"]["betas"]
    if decay == "decay":
        assert tree.half_life == SHIPPED["value_tree"]["init_args"]["half_life"]


# ---- the driver ----


def test_all_arms_of_a_seed_come_before_the_next_seed(tmp_path):
    given = parse(["--arms", "ppo", "grpo", "--regime", "low", "long", "--seeds", "2", "--", "--model.actor_lr", "1"])
    jobs = plan(given, tmp_path)
    assert [(job.seed, job.regime, job.arm) for job in jobs][:5] == [
        *((0, "low", "ppo"), (0, "low", "grpo"), (0, "long", "ppo"), (0, "long", "grpo")),
        (1, "low", "ppo"),
    ]
    assert jobs[0].settings[-2:] == ["--model.actor_lr", "1"]
    assert parse([]).arms == [*MAIN, *ABLATIONS]


@pytest.fixture
def quiet(monkeypatch):
    """Runs in this process whose measurements are made up; returns the jobs that were run."""
    done: list[Job] = []

    def measure(job: Job) -> dict:
        done.append(job)
        return {"settings": job.settings}

    monkeypatch.setattr(study_runs, "measure", measure)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    return done


def test_a_run_that_died_is_begun_anew_and_a_finished_one_is_kept(quiet, tmp_path):
    job = Job("grpo", "default", 0, 1000, tmp_path)
    left = job.folder / "fit/version_0/metrics.csv"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    run_job(job)
    assert job.is_done()
    assert not left.exists()
    run_job(job)
    assert len(quiet) == 1
    with pytest.raises(ValueError, match="other settings"):
        Job("grpo", "default", 0, 2000, tmp_path).is_done()
    assert main(["--root", str(tmp_path), "--arms", "grpo", "--seeds", "1", "--tokens", "2000"]) == 2


def test_a_run_of_another_process_is_left_alone(quiet, tmp_path):
    job = Job("grpo", "default", 0, 1000, tmp_path)
    job.folder.mkdir(parents=True)
    with (job.folder / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        run_job(job)
        assert not quiet
    run_job(job)
    assert quiet == [job]


# ---- a short run ----

SHORT = [
    "--data.tasks_per_iteration",
    "4",
    "--data.train.n",
    "40",
    "--data.train.hops",
    "[1]",
    "--trainer.check_val_every_n_epoch",
    "2",
]
SHORT += ["--data.validation.n", "6", "--data.test.n", "6", "--data.validation.hops", "[1]", "--data.test.hops", "[1]"]


@pytest.mark.slow
def test_short_study(tmp_path, capsys):
    """Two arms with one seed each: results, report, and a second call that runs nothing."""
    options = ["--root", str(tmp_path), "--arms", "grpo", "tree_ppo", "--seeds", "1", "--tokens", "1500"]
    assert main([*options, "--parallel", "2", "--", *SHORT, "--warmup.iterations", "1"]) == 0
    assert "seed_0: done" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())["default"]["arms"]
    text = (tmp_path / "report.md").read_text()
    folders = {arm: tmp_path / "default" / arm / "seed_0" for arm in ("grpo", "tree_ppo")}
    for arm, folder in folders.items():
        with (folder / "fit/version_0/metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        tokens = [float(row["rollout/sampled_tokens"]) for row in rows if row["rollout/sampled_tokens"]]
        assert sum(tokens[:-1]) < 1500 <= sum(tokens) == report[arm]["tokens"]
        assert report[arm]["iterations"] == len(tokens)
        found = json.loads((folder / "result.json").read_text())
        firsts = [float(row["val/success_rate"]) for row in rows if row["val/success_rate"]]
        assert [em for _, em in found["points"]][: len(firsts)] == pytest.approx(firsts)
        last = json.loads((folder / "validate/version_0/validate_results.json").read_text())["all"]["success_rate"]
        assert found["points"][-1] == [sum(tokens), pytest.approx(last)]
        em = json.loads((folder / "test/version_0/test_results.json").read_text())["all"]
        assert em["episodes"] == 6
        assert report[arm]["test_success"] == {"mean": pytest.approx(em["success_rate"]), "half": None, "n": 1}
        assert f"| `{arm}` | 1 | {em['success_rate']:.3f} |" in text
        assert found["warmup_tokens"] == tokens[0]
        assert not list(folder.rglob("*.ckpt"))
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "report" not in path.name}
    assert main([*options, "--", *SHORT, "--warmup.iterations", "1"]) == 0
    assert {path: path.read_bytes() for path in written} == written
    assert "2 runs, 2 of them done already" in capsys.readouterr().out

    wrong = ["--root", str(tmp_path / "wrong"), "--arms", "ppo", "--seeds", "1", "--", "--model.no_such_key", "1"]
    assert main(wrong) == 1
    said = capsys.readouterr().out
    assert "FAILED, see log.txt" in said
    assert "no finished run below" in said
    assert "no_such_key" in (tmp_path / "wrong/default/ppo/seed_0/log.txt").read_text()
