"""What is refused because it would train wrongly, and what is said when the outside world fails."""

import math

import pytest
import torch

from lit_treerl.callbacks.tree_sampler import report_failures
from lit_treerl.cli import main
from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.rollout.stats import rollout_stats
from lit_treerl.sampling.base import SamplerCounters
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Status, Tree
from runs import arguments, run

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args parameter")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--trainer.gradient_clip_val", "1.0", "model.optimizer.max_grad_norm"),
        ("--trainer.accumulate_grad_batches", "2", "model.update.mini_batches"),
        ("--trainer.precision", "16-mixed", "bf16-mixed"),
        ("--trainer.reload_dataloaders_every_n_epochs", "0", "must be 1"),
        ("--model.optimizer.max_grad_norm", "0", "above 0"),
        ("--model.optimizer.schedule.warmup_steps", "-1", "negative"),
    ],
)
def test_settings_that_cannot_work_are_refused(option, value, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments("fit", tmp_path, option, value))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert option.lstrip("-").rpartition(".")[2] in error
    assert said in error


def test_dropout_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments("fit", tmp_path, "--model.actor.lora", "{r: 2, lora_dropout: 0.1}"))
    assert stopped.value.code == 2
    assert "lora_dropout" in capsys.readouterr().err


def test_last_iteration_is_saved_whatever_the_interval(tmp_path):
    done = run(pytest.MonkeyPatch.context, "fit", tmp_path, "--trainer.max_epochs", "2",
               "--checkpoint.every_n_iterations", "5", "--model.loss.entropy_coef", "0.001")  # fmt: skip
    assert done.last.is_file()
    assert int(done.checkpoint()["state_dict"]["updates"]) == 4


def failed_group() -> RolloutGroup:
    tree = Tree("t")
    tree.add_root([1, 2])
    node = tree.add_action(0, [3], [-0.1], 0)
    tree.observe(node, status=Status.FAILED, info={"error": "server down"})
    return RolloutGroup(Task("t", "s", "q"), [tree])


def test_an_iteration_without_any_episode_has_no_reward_and_stops_the_run():
    group = failed_group()
    stats = rollout_stats([group], SamplerCounters())
    assert math.isnan(stats["train/reward"])
    assert (stats["rollout/leaves"], stats["rollout/failed"]) == (0, 1)
    with pytest.raises(EnvironmentFailure, match=r"all 1 episodes of an iteration failed.*server down"):
        report_failures([group], failed=1, finished=0)


def test_some_failures_are_warned_of():
    with pytest.warns(UserWarning, match=r"1 episodes failed and are left out of training.*server down"):
        report_failures([failed_group()], failed=1, finished=3)
    report_failures([], failed=0, finished=0)


def test_a_dead_server_stops_fit_with_its_cause(tmp_path, capsys):
    dead = ["--env.retriever", "HTTPRetriever", "--env.retriever.url", "http://127.0.0.1:9/retrieve",
            "--env.retriever.attempts", "1"]  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        main(arguments("fit", tmp_path, "--trainer.max_epochs", "1", "--data.train.hops", "[3]", *dead))
    assert stopped.value.code == 1
    assert "episodes of an iteration failed" in (error := capsys.readouterr().err)
    assert "127.0.0.1:9" in error


def test_a_run_that_stops_for_failures_alone_saves_the_iterations_before(tmp_path, monkeypatch):
    calls = []

    def fails_in_the_second_iteration(groups, failed, finished):
        calls.append(finished)
        report_failures([failed_group()], 1, 0 if len(calls) == 2 else finished)

    monkeypatch.setattr("lit_treerl.callbacks.tree_sampler.report_failures", fails_in_the_second_iteration)
    quick = ("--trainer.limit_val_batches", "0", "--data.tasks_per_iteration", "2", "--data.train.hops", "[1]")
    with pytest.raises(SystemExit) as end, pytest.warns(UserWarning, match="1 episodes failed"):
        main(arguments("fit", tmp_path, *quick, "--trainer.max_epochs", "9", "--checkpoint.every_n_iterations", "9"))
    assert end.value.code == 1
    (saved,) = tmp_path.glob("version_*/checkpoints/last.ckpt")
    assert torch.load(saved, weights_only=True)["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] == 1
