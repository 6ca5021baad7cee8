"""Checkpoints: the best by a metric and the newest, the latter also when the run is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint


class BestCheckpoint(ModelCheckpoint):
    """Keeps the best by ``monitor``; quiet while no validation has logged it yet. Takes ModelCheckpoint's arguments."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save where the monitored value is there and better than before."""
        if self.monitor in trainer.callback_metrics:
            super().on_train_epoch_end(trainer, pl_module)


class NewestCheckpoint(ModelCheckpoint):
    """Keeps ``last.ckpt`` at the end of iterations, and when Ctrl-C or an error comes between two iterations.

    Within an iteration nothing is written: value tree and running means know its trees already and its updates are
    half done, so the run goes on from the last whole iteration and repeats the broken one with the same seeds.

    Args:
        every_n_iterations: how often to save; the last iteration is always saved.
    """

    def __init__(self, every_n_iterations: int = 1) -> None:
        super().__init__(
            filename="last",
            every_n_epochs=every_n_iterations,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    @property
    def state_key(self) -> str:
        """Apart from the other checkpoint callback's state."""
        return "NewestCheckpoint"

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Weights begin to move."""
        pl_module.within_iteration = True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Save where it is time, and at the end of the run; the iteration is whole again."""
        every = self._every_n_epochs
        if trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs:
            self._every_n_epochs = 1
        super().on_train_epoch_end(trainer, pl_module)
        self._every_n_epochs = every
        pl_module.within_iteration = False

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Save between iterations; say where the run can go on from."""
        if trainer.state.fn != "fit" or not self.dirpath:
            return
        path = Path(self.dirpath) / "last.ckpt"
        if not pl_module.within_iteration and not trainer.sanity_checking:
            trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            go_on = f"The run can go on from its last whole iteration: --ckpt_path {path}"
            print(
                "\n" + (go_on if path.is_file() else "This run has no checkpoint yet: start it again as you did."),
                flush=True,
            )


def checkpoint_callbacks(
    monitor: str = "val/success_rate", mode: Literal["min", "max"] = "max", every_n_iterations: int = 1
) -> list[ModelCheckpoint]:
    """Checkpoints of a run: the best by ``monitor`` and the newest.

    Args:
        monitor: a logged value that tells which checkpoint is best; every environment gives the success rate.
        mode: whether the best is its smallest or its largest value.
        every_n_iterations: how often the newest is saved; that of the last iteration always is.
    """
    name = monitor.replace("/", "_")
    best = BestCheckpoint(
        monitor=monitor,
        mode=mode,
        filename=f"best-{{epoch}}-{name}={{{monitor}:.3f}}",
        auto_insert_metric_name=False,
        save_on_train_epoch_end=True,
        save_top_k=1,
    )
    return [best, NewestCheckpoint(every_n_iterations)]
