"""Fenced blocks of the Markdown files, and running or only building their `lit-treerl` commands in this process."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lit_treerl.cli import main

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
ASSIGNMENT = re.compile(r"\w+=.*")
SMALL = {
    "data.tasks_per_iteration": "2",
    "data.train.n": "8",
    "data.validation.n": "2",
    "data.test.n": "2",
    "trainer.max_epochs": "1",
    "trainer.enable_progress_bar": "false",
}
SMALL_SFT = {"data.episodes_per_epoch": "8", "data.batch_size": "4"}
SMALL_DEMONSTRATIONS = {"data.episodes.n": "8", "data.episodes.worlds": "[1000]"}


@dataclass(frozen=True)
class Command:
    """One shell command of a document: ``A=1 program argument ...``."""

    where: str
    environment: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where} {shlex.join(self.words)}"

    def option(self, name: str) -> str | None:
        """Value of ``--name VALUE``."""
        return dict(zip(self.words, self.words[1:], strict=False)).get(f"--{name}")


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of the fenced blocks of one language, without the indentation of a list item."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        if match[2] == language:
            lines = [line.removeprefix(match[1]) for line in match[3].splitlines()]
            found.append((text.count("\n", 0, match.start()) + 2, "\n".join(lines) + "\n"))
    return found


def commands(path: Path, program: str | None = None) -> list[Command]:
    """Commands of a document's bash blocks, those of one program only when it is named."""
    out = []
    for line, text in blocks(path, "bash"):
        joined = text.replace("\\\n", " ")
        for part in re.split(r"\n|&&", joined):
            words = shlex.split(part, comments=True)
            environment = []
            while words and ASSIGNMENT.fullmatch(words[0]):
                environment.append(tuple(words.pop(0).split("=", 1)))
            if words and program in (None, words[0]):
                out.append(Command(f"{path.name}:{line}", tuple(environment), tuple(words)))
    return out


def lit_treerl(path: Path) -> list[Command]:
    """The document's `lit-treerl` commands."""
    return commands(path, "lit-treerl")


def small(command: Command, **more: str) -> list[str]:
    """The command's arguments with overrides that make it small; ``more`` as ``trainer__max_epochs="2"``."""
    overrides = SMALL | {name.replace("__", "."): value for name, value in more.items()}
    if any("webshop" in word for word in command.words):  # whose goals are as many as its shop has
        overrides = {name.replace(".n", ".limit"): value for name, value in overrides.items()}
    if (command.option("config") or "").endswith("sft.yaml"):
        overrides = {k: v for k, v in overrides.items() if k not in ("data.train.n", "data.tasks_per_iteration")}
        overrides |= SMALL_SFT if command.option("data.episodes") else SMALL_SFT | SMALL_DEMONSTRATIONS
    return [*command.words[1:], *(word for name, value in overrides.items() for word in (f"--{name}", value))]


def run(args: Sequence[str]) -> None:
    """Run `lit-treerl` in this process, from its command line; a settings error exits with 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lit-treerl", *args])
        main()


def build(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the command and build everything that it names, but start nothing; users' own files may be missing."""
    import lit_treerl.command

    monkeypatch.setattr(lit_treerl.command.TreeRLCLI, "_run_subcommand", lambda *_: None)
    monkeypatch.setattr(lit_treerl.command, "policy_path", str)
    if checkpoint := command.option("ckpt_path"):
        Path(checkpoint).parent.mkdir(parents=True, exist_ok=True)
        Path(checkpoint).touch()
    gpu = any("configs/paper/" in word for word in command.words)  # which the tests' machine need not have
    run([*command.words[1:], *(("--trainer.accelerator", "cpu") if gpu else ())])


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in ``folder``, where the project's configs are at hand, and leave the process as it was."""
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LIT_TREERL_CACHE", str(folder / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # Lightning sets both; put back afterwards
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
