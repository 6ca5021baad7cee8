"""RunReport: one readable line per iteration, a table at the end, and where everything is."""

from __future__ import annotations

from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.metrics import ALL
from lit_treerl.policy_module import LitPolicy, iteration_of
from lit_treerl.rollout.episodes import GRADES

SHOWN = (*GRADES, "success_rate")


def iteration_line(iteration: int, rollouts: dict[str, float], updates: dict[str, float]) -> str:
    """One iteration in one line.

    >>> iteration_line(3, {"train/reward": 0.25, "rollout/leaves": 192}, {"time/train": 2.0})
    'iteration   3  reward 0.250  leaves 192  train 2.0s'
    """
    fields = [
        (rollouts, "train/reward", "reward {:.3f}"),
        (updates, "train/loss_actor", "loss {:+.4f}"),
        (updates, "train/entropy", "entropy {:.3f}"),
        (updates, "train/sampler_gap", "gap {:.1e}"),
        (rollouts, "rollout/leaves", "leaves {:.0f}"),
        (rollouts, "rollout/leaves_per_chain", "leaves/chain {:.2f}"),
        (rollouts, "rollout/sampled_tokens", "tokens {:,.0f}"),
        (updates, "rollout/zero_signal_groups", "silent tasks {:.0f}"),
        (rollouts, "rollout/failed", "failed {:.0f}"),
        (rollouts, "time/rollout", "rollout {:.1f}s"),
        (updates, "time/train", "train {:.1f}s"),
    ]
    parts = [text.format(values[name]) for values, name, text in fields if name in values]
    return "  ".join([f"iteration {iteration:3d}", *parts])


def evaluation_line(means: dict[str, float]) -> str:
    """The means of an evaluation in one line."""
    shown = [f"{name} {means[name]:.3f}" for name in SHOWN if name in means]
    return "  ".join([*shown, f"turns {means.get('turns', 0):.2f}", f"episodes {means['episodes']:,}"])


class RunReport(L.Callback):
    """Prints the run's progress for people, above the progress bars."""

    def __init__(self) -> None:
        self._evaluations: list[tuple[int, dict[str, float]]] = []

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The validation before the first iteration."""
        self._evaluated(trainer, pl_module, iteration_of(trainer))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A validation after an iteration."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._evaluated(trainer, pl_module, trainer.current_epoch + 1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The iteration's line."""
        assert isinstance(pl_module, LitPolicy)
        sampler = next(c for c in trainer.callbacks if isinstance(c, TreeSampler))  # type: ignore[attr-defined]
        self._say(trainer, iteration_line(trainer.current_epoch + 1, sampler.stats, pl_module.iteration_values()))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The table of evaluations, the run folder and the checkpoints."""
        if not trainer.is_global_zero:
            return
        console = Console()
        if self._evaluations:
            shown = [name for name in SHOWN if any(name in means for _, means in self._evaluations)]
            table = Table("after iteration", *shown, "turns", "tool calls", "tokens", title="held-out evaluation")
            for iteration, means in self._evaluations:
                numbers = [means.get(name, float("nan")) for name in shown]
                rest = [means.get(name, float("nan")) for name in ("turns", "tool_calls", "tokens")]
                table.add_row(str(iteration), *(f"{x:.3f}" for x in numbers), *(f"{x:.2f}" for x in rest))
            console.print(table)
        places = {"run folder": trainer.log_dir} | {
            ("best checkpoint" if callback.monitor else "last checkpoint"): callback.best_model_path
            for callback in trainer.checkpoint_callbacks
            if isinstance(callback, ModelCheckpoint)
        }
        for what, path in places.items():
            if path:
                print(f"{what}: {Path(path)}")

    def _evaluated(self, trainer: L.Trainer, pl_module: L.LightningModule, iteration: int) -> None:
        assert isinstance(pl_module, LitPolicy)
        if means := pl_module.last_evaluation.get(ALL):
            self._evaluations.append((iteration, means))
            self._say(trainer, f"validation after iteration {iteration}  {evaluation_line(means)}")

    @staticmethod
    def _say(trainer: L.Trainer, line: str) -> None:
        if trainer.is_global_zero:
            tqdm.write(line)
