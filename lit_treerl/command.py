"""The Lightning CLI with this project's keys: search, budget, sampler, env and rollout beside model, data, trainer."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse.typing import PositiveInt
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from lit_treerl.callbacks.checkpoints import checkpoint_callbacks
from lit_treerl.callbacks.export import ExportPolicy
from lit_treerl.callbacks.results import ResultsWriter
from lit_treerl.callbacks.run_report import RunReport
from lit_treerl.callbacks.token_budget import TokenBudget
from lit_treerl.callbacks.tree_sampler import RolloutConfig, TreeSampler
from lit_treerl.callbacks.warmup import CriticWarmup
from lit_treerl.config_errors import ReadableParser, as_settings_error
from lit_treerl.data.datamodule import TreeRolloutDataModule
from lit_treerl.envs.base import Environment, EnvironmentFailure
from lit_treerl.policies import policy_path
from lit_treerl.policy_module import LitPolicy
from lit_treerl.registry import SHORT_NAMES
from lit_treerl.sampling.base import Sampler
from lit_treerl.settings import SettingsError
from lit_treerl.trees.budget import Budget
from lit_treerl.trees.search import TreeSearch


class TreeRLCLI(LightningCLI):
    """Builds the TreeSampler and the loggers from the short keys and adds them to the trainer."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the keys beside model, data and trainer."""
        parser.add_class_arguments(TreeSearch, "search")
        parser.add_subclass_arguments(Budget, "budget", required=False)
        parser.add_argument(
            "--sampler", type=Literal["auto"] | Sampler, default="auto", help="auto takes vLLM if there"
        )
        parser.add_subclass_arguments(Environment, "env", required=False)
        parser.add_class_arguments(RolloutConfig, "rollout")
        parser.add_class_arguments(CriticWarmup, "warmup")
        parser.add_function_arguments(checkpoint_callbacks, "checkpoint")
        parser.add_argument(
            "--threads",
            type=PositiveInt | None,  # type: ignore[reportOperatorIssue]
            default=None,
            help="of torch on the CPU; 1 is fastest for tiny models",
        )
        parser.add_argument(
            "--max_sampled_tokens",
            type=PositiveInt | None,  # type: ignore[reportOperatorIssue]
            default=None,
            help="fit stops after the iteration in which the run's sampled tokens reach this total",
        )
        parser.add_argument("--wandb", type=bool, default=False, help="log to Weights & Biases too")
        parser.add_argument("--export", type=str | None, default=None, help="folder for the trained policy after fit")
        defaults = {"model": "LitTreeRL", "data": "TreeRolloutDataModule", "budget": "UniformBudget"}
        assert set(defaults.values()) <= {known.__name__ for known in SHORT_NAMES}
        parser.set_defaults({key: {"class_path": name} for key, name in defaults.items()})

    def instantiate_classes(self) -> None:
        """Build everything; a value that a class refuses is a settings error."""
        with as_settings_error():
            super().instantiate_classes()
            policy_path(self.model.policy)
        path = self._get(self.config_init, "ckpt_path")
        if path and path not in ("best", "last", "hpc", "registry") and not Path(path).exists():
            raise SettingsError(f"ckpt_path: there is no checkpoint {path}")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Add TreeSampler, checkpoints, reports and, where none is configured, the loggers."""
        get = lambda key: self._get(self.config_init, key)  # noqa: E731
        if get("threads"):
            torch.set_num_threads(get("threads"))
        if get("env") is None:
            self.parser.error("env: no environment is configured; give --env SearchQA or a config that has one")
        config = get("trainer")
        check_trainer(config)
        sampler = TreeSampler(get("env"), get("search"), get("budget"), get("sampler"), get("rollout"))
        if config.get("logger") in (None, True):
            kwargs["logger"] = default_loggers(config.get("default_root_dir") or "runs", wandb=get("wandb"))
        own = [sampler, get("warmup"), TokenBudget(get("max_sampled_tokens")), RunReport(), ResultsWriter()]
        own += checkpoint_callbacks(**get("checkpoint"))
        if get("export"):
            own.append(ExportPolicy(get("export")))
        given = config.get("callbacks") or []
        bars = [] if any(isinstance(callback, ProgressBar) for callback in given) else [TQDMProgressBar(leave=False)]
        if config.get("enable_progress_bar") is False:
            bars = []
        kwargs["callbacks"] = [*given, *bars, *own]
        return super().instantiate_trainer(**kwargs)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """ResultsWriter prints the table of ``test`` and ``validate``, so that Lightning need not."""
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        return kwargs | {"verbose": False} if "verbose" in kwargs else kwargs

    def _parse_ckpt_path(self) -> None:
        """Settings come from the command line alone, never from a checkpoint."""


def check_trainer(config: Mapping[str, Any]) -> None:
    """Refuse what Lightning's trainer would take but this project's loop cannot do.

    Raises:
        SettingsError: naming the key and what to use instead.
    """
    instead = {
        "gradient_clip_val": "model.optimizer.max_grad_norm",
        "gradient_clip_algorithm": "model.optimizer.max_grad_norm",
    }
    for key, other in instead.items():
        if config.get(key) is not None:
            raise SettingsError(f"trainer.{key}: gradients are clipped by {other}")
    if config.get("accumulate_grad_batches", 1) != 1:
        raise SettingsError(
            "trainer.accumulate_grad_batches: gradients are summed over a mini-batch's packs; set "
            "model.update.mini_batches and model.update.max_tokens_per_pack"
        )
    if str(config.get("precision")) in ("16", "16-mixed", "16-true"):
        raise SettingsError("trainer.precision: half precision needs loss scaling, which is not built; use bf16-mixed")
    if config.get("reload_dataloaders_every_n_epochs") != 1:
        raise SettingsError("trainer.reload_dataloaders_every_n_epochs must be 1: every epoch grows new trees")


def default_loggers(root: str, *, wandb: bool) -> list[Logger]:
    """CSV and TensorBoard (and W&B) in one new run folder ``root/version_N``."""
    csv = CSVLogger(root, name="", flush_logs_every_n_steps=1)
    version = f"version_{csv.version}"
    loggers: list[Logger] = [csv, TensorBoardLogger(root, name="", version=version)]
    if wandb:
        if find_spec("wandb") is None:
            raise SettingsError("wandb: the package is not installed; pip install 'lit-treerl[wandb]'")
        from lightning.pytorch.loggers import WandbLogger

        Path(root, version).mkdir(parents=True, exist_ok=True)
        loggers.append(WandbLogger(project="lit-treerl", save_dir=str(Path(root, version))))
    return loggers


def run(args: Sequence[str]) -> None:
    """Parse and run; see :func:`lit_treerl.cli.main`."""
    quiet_libraries()
    try:
        TreeRLCLI(
            LitPolicy,
            TreeRolloutDataModule,
            args=None if list(args) == sys.argv[1:] else list(args),
            parser_class=ReadableParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "accelerator": "auto",
                "devices": 1,
                "num_sanity_val_steps": -1,  # a whole validation before the first iteration
                "reload_dataloaders_every_n_epochs": 1,  # one epoch is one iteration
                "use_distributed_sampler": False,
                "enable_model_summary": False,
                "default_root_dir": "runs",
            },
        )
    except SettingsError as error:
        sys.stderr.write(f"lit-treerl: error: {error}\n")
        sys.exit(2)
    except EnvironmentFailure as failure:
        sys.stderr.write(f"lit-treerl: stopped: {failure}\n")
        sys.exit(1)


def quiet_libraries() -> None:
    """Silence notes of libraries that mean nothing to the user of this command."""
    for text in (
        "does not have many workers",
        "LeafSpec",
        "smaller than the logging interval",
        "Experiment logs directory",
        "in eval mode at the start of training",  # the frozen reference
        "dirpath has changed",
    ):
        warnings.filterwarnings("ignore", message=f".*{text}.*")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("stamina").setLevel(logging.ERROR)  # what fails for good is reported by the rollouts
