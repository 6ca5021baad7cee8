"""``lit-treerl check-env``: see whether an environment keeps its contract, on the tasks that it is to be trained on."""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from lit_treerl.command import TreeRLCLI, quiet_libraries
from lit_treerl.config_errors import ReadableParser, as_settings_error
from lit_treerl.data.datamodule import TreeRolloutDataModule, load
from lit_treerl.data.row_source import TaskSource
from lit_treerl.envs.base import Environment
from lit_treerl.envs.check_report import Report
from lit_treerl.envs.checker import check_environment
from lit_treerl.policy_module import LitPolicy
from lit_treerl.settings import SettingsError

DESCRIPTION = """\
Plays episodes and sees whether the environment keeps what trees of rollouts rest on: the same actions give the same
answers, a snapshot leads to the same state as a replay, instances share nothing that changes, rewards and facts are
well formed, episodes end. Prints how long everything takes. Exits with 1 where there are problems.
All other options are those of `lit-treerl fit`; env and data are used."""


def main(args: Sequence[str]) -> None:
    """Check and print; exits with 1 where the environment has problems, with 2 on wrong settings."""
    own, others = _parser().parse_known_args(args)
    quiet_libraries()
    try:
        env, source = _configured(others, own.split)
        report = _checked(env, load(source, f"data.{own.split}"), own)
    except SettingsError as error:
        sys.stderr.write(f"lit-treerl: error: {error}\n")
        sys.exit(2)
    show(report, type(env).__name__)
    if report.problems:
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lit-treerl check-env", description=DESCRIPTION, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "lit-treerl check-env --env ENV --data.validation TASKS [--config FILE] [options]"
    parser.add_argument("--episodes", type=int, default=10, help="how many; tasks are taken in turn (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the actions (default 0)")
    parser.add_argument(
        "--split", choices=("train", "validation", "test"), default="validation", help="whose tasks (validation)"
    )
    parser.add_argument(
        "--reward_range", type=float, nargs=2, metavar=("LEAST", "GREATEST"), default=(-float("inf"), float("inf"))
    )
    parser.add_argument("--ignore", nargs="*", default=[], metavar="KEY", help="keys of info that may differ")
    return parser


def _checked(env: Environment, tasks: Sequence[Any], own: argparse.Namespace) -> Report:
    if own.episodes < 1:
        raise SettingsError(f"--episodes must be at least 1, got {own.episodes}")
    options = {"reward_range": tuple(own.reward_range), "ignore": own.ignore}
    try:
        return check_environment(env, tasks, episodes=own.episodes, seed=own.seed, **options)
    finally:
        env.close()


class _Parsed(TreeRLCLI):
    """Parses the options of ``fit`` and stops there."""

    def instantiate_classes(self) -> None:
        """Nothing: no model is needed."""

    def _set_seed(self) -> None:
        """Nothing: the actions have a seed of their own."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is trained."""


def _configured(args: Sequence[str], split: str) -> tuple[Environment, TaskSource]:
    """Environment and tasks of a command line of ``fit``; nothing else of it is built."""
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    cli = _Parsed(
        LitPolicy,
        TreeRolloutDataModule,
        args=["fit", *args],
        parser_class=ReadableParser,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        trainer_defaults={"reload_dataloaders_every_n_epochs": 1},
    )
    parsed = cli.config["fit"]
    source = parsed.data.init_args.get(split)
    if parsed.get("env") is None:
        raise SettingsError("env: no environment is configured; give --env SearchQA or a config that has one")
    if source is None:
        raise SettingsError(f"data.{split}: no tasks are configured; give --data.{split} EmbeddedTasks or a config")
    parser = ReadableParser()
    parser.add_subclass_arguments(Environment, "env")
    parser.add_subclass_arguments(TaskSource, "tasks")
    with as_settings_error():
        built = parser.instantiate_classes(parser.parse_object({"env": parsed.env, "tasks": source}))
    return built["env"], built["tasks"]


def show(report: Report, name: str) -> None:
    """Print seconds, notes and problems."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    title = f"{name}: {report.episodes} episodes, {report.turns} turns, {report.won} won"
    table = Table("call", "times", "median ms", "longest ms", title=title, title_justify="left")
    for call, seconds in report.seconds.items():
        figures = (statistics.median(seconds) * 1e3, max(seconds) * 1e3)
        table.add_row(call, str(len(seconds)), *(f"{figure:.3f}" for figure in figures))
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for problem in report.problems:
        console.print(f"problem: {problem}", markup=False, soft_wrap=True)
    console.print(f"{len(report.problems)} problems" if report.problems else "no problems found")
