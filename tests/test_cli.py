"""The command line: short keys, overlays, and settings that come back as they were printed."""

from __future__ import annotations

import pytest

import lit_treerl
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.cli import main
from lit_treerl.data.datamodule import find_tree_sampler
from lit_treerl.sampling.transformers import TransformersSampler
from lit_treerl.sampling.vllm import VLLMSampler
from runs import CONFIGS, built

pytestmark = pytest.mark.filterwarnings("ignore")
BASE = ("fit", "--config", str(CONFIGS / "tree_grpo.yaml"), "--trainer.accelerator", "cpu")


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    """Work in an empty folder, and leave the process as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")


def sampler_of(monkeypatch, *args: str) -> TreeSampler:
    return find_tree_sampler(built(monkeypatch, *BASE, *args).trainer)


def test_help_and_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"lit-treerl {lit_treerl.__version__}\n"
    main(["--help"])
    usage = capsys.readouterr().out
    main([])
    assert capsys.readouterr().out == usage
    assert all(f"\n  {command} " in usage for command in ("fit", "validate", "test", "predict"))


def test_help_of_a_command_lists_the_short_keys(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--help"])
    assert not stopped.value.code
    listed = capsys.readouterr().out
    for key in ("--search.trees", "--budget", "--sampler", "--env", "--rollout.temperature", "--wandb", "--export"):
        assert key in listed


def test_the_four_spellings(monkeypatch):
    spelled = "--search.trees 4 --search.expansions 3 --model.actor_lr 1e-5 --trainer.max_epochs 3"
    cli = built(monkeypatch, *BASE, *spelled.split())
    search = find_tree_sampler(cli.trainer).search
    assert (search.trees, search.expansions, search.rounds) == (4, 3, 1)
    assert (cli.model.actor_lr, cli.trainer.max_epochs) == (1e-5, 3)


def test_later_configs_win_and_the_command_line_wins_over_them(monkeypatch, tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("search: {trees: 5, expansions: 6}\nmodel: {init_args: {actor_lr: 0.5, loss: {kl_coef: 0.1}}}\n")
    two.write_text("search: {trees: 7}\nmodel: {init_args: {loss: {entropy_coef: 0.2}}}\n")
    configs = ("--config", str(one), "--config", str(two))
    cli = built(monkeypatch, *BASE, *configs, "--search.rounds", "2")
    search = find_tree_sampler(cli.trainer).search
    assert (search.trees, search.expansions, search.rounds) == (7, 6, 2)
    assert (cli.model.actor_lr, cli.model.loss.kl_coef, cli.model.loss.entropy_coef) == (0.5, 0.1, 0.2)
    assert cli.model.policy == "embedded"  # what no overlay names stays
    assert sampler_of(monkeypatch, *configs, "--search.trees", "1").search.trees == 1
    assert sampler_of(monkeypatch, *configs[2:], *configs[:2]).search.trees == 5


def test_sampler_auto_takes_vllm_where_it_is(monkeypatch):
    monkeypatch.setattr("lit_treerl.sampling.auto.find_spec", lambda name: None)
    assert isinstance(sampler_of(monkeypatch, "--sampler", "auto").sampler, TransformersSampler)
    monkeypatch.setattr("lit_treerl.sampling.auto.find_spec", lambda name: object())
    assert isinstance(sampler_of(monkeypatch, "--sampler", "auto").sampler, VLLMSampler)


def test_samplers_and_other_classes_by_name_and_with_arguments(monkeypatch):
    cli = built(
        monkeypatch,
        *BASE,
        *("--sampler", "TransformersSampler", "--sampler.max_batch", "7"),
        *("--model.algorithm", "RLOO", "--model.algorithm.normalisation", "none"),
        *("--env.reward", "TableReward", "--data.train", "JSONLTasks", "--data.train.path", "x.jsonl"),
    )
    sampler = find_tree_sampler(cli.trainer)
    assert sampler.sampler.max_batch == 7
    assert (type(cli.model.algorithm).__name__, cli.model.algorithm.normalisation) == ("RLOO", "none")
    assert type(sampler.env.reward).__name__ == "TableReward"
    assert cli.datamodule.sources["train"].path == "x.jsonl"


def test_the_environments_settings_are_those_of_the_embedded_world(monkeypatch):
    sampler = sampler_of(monkeypatch, "--env.max_turns", "3")
    assert (sampler.env.max_turns, sampler.env.topk) == (3, 2)
    assert type(sampler.env.retriever).__name__ == "EmbeddedRetriever"
    assert sampler.rollout.limits.max_context == 512


def printed(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*args, "--print_config"])
    assert not stopped.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["tree_grpo", "grpo", "sft"])
def test_a_printed_config_gives_the_same_config_again(name, capsys, tmp_path):
    changes = ("--search.trees", "9", "--rollout.limits.max_context", "600", "--seed_everything", "5")
    first = printed(capsys, "fit", "--config", str(CONFIGS / f"{name}.yaml"), *changes)
    assert "trees: 9" in first
    (tmp_path / "again.yaml").write_text(first)
    assert printed(capsys, "fit", "--config", "again.yaml") == first


def test_loggers_write_into_one_run_folder(monkeypatch, tmp_path):
    cli = built(monkeypatch, *BASE, "--trainer.default_root_dir", str(tmp_path / "runs"))
    folders = {logger.log_dir for logger in cli.trainer.loggers}
    assert folders == {str(tmp_path / "runs" / "version_0")}
    assert [type(logger).__name__ for logger in cli.trainer.loggers] == ["CSVLogger", "TensorBoardLogger"]


def test_an_iteration_is_an_epoch_and_validation_comes_before_the_first(monkeypatch):
    trainer = built(monkeypatch, *BASE).trainer
    assert trainer.reload_dataloaders_every_n_epochs == 1
    assert trainer.num_sanity_val_steps == float("inf")
