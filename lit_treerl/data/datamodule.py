"""TreeRolloutDataModule: tasks in, this iteration's packs out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.data.sources import TaskSource
from lit_treerl.modeling.pack import Pack
from lit_treerl.policy_module import iteration_of
from lit_treerl.rollout.batches import TaskBatch
from lit_treerl.settings import SettingsError
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task


def find_tree_sampler(trainer: L.Trainer) -> TreeSampler:
    """The trainer's TreeSampler.

    Raises:
        RuntimeError: where there is none.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, TreeSampler):
            return callback
    raise RuntimeError("the trainer has no TreeSampler callback, which grows the trees")


def load(source: Any, key: str) -> list[Any]:
    """``source.load()``, its errors naming the ``key`` that configured it.

    Raises:
        SettingsError: where there is nothing to load, or too much of it is broken.
    """
    try:
        return source.load()
    except (ValueError, FileNotFoundError) as error:
        raise SettingsError(f"{key}: {error}") from error


class TreeRolloutDataModule(L.LightningDataModule):
    """Streams tree rollouts: every epoch takes the next tasks, has their trees grown and yields their packs.

    The order of tasks depends on the seed and the iteration alone, so a resumed run meets the same tasks.

    Args:
        train: source of training tasks.
        validation: source of validation tasks; null skips validation.
        test: source of test tasks, for ``test`` and ``predict``.
        tasks_per_iteration: tasks rolled out between two weight updates, over all ranks.
        eval_batch_size: tasks rolled out at once in evaluation.
    """

    trainer: L.Trainer  # Lightning sets it before it calls anything here

    def __init__(
        self,
        train: TaskSource | None = None,
        validation: TaskSource | None = None,
        test: TaskSource | None = None,
        tasks_per_iteration: int = 32,
        eval_batch_size: int = 256,
    ) -> None:
        super().__init__()
        if tasks_per_iteration < 1 or eval_batch_size < 1:
            raise ValueError("data.tasks_per_iteration and data.eval_batch_size must be at least 1")
        self.sources = {"train": train, "validation": validation, "test": test}
        self.tasks_per_iteration, self.eval_batch_size = tasks_per_iteration, eval_batch_size
        self.tasks: dict[str, list[Task]] = {}
        self._shuffled: tuple[int, Sequence[int]] = (-1, ())
        self._packs: tuple[int, list[Pack]] = (-1, [])  # of which iteration, and its packs

    def setup(self, stage: str) -> None:
        """Load the splits that ``stage`` needs and announce their data sources to the module's metrics."""
        splits = self.needed_splits(stage)
        for split in splits:
            source = self.sources[split]
            if source is None and not (stage == "fit" and split == "validation"):
                raise SettingsError(f"data.{split} names no task source, and `{stage}` needs one")
            if source is not None and split not in self.tasks:
                self.tasks[split] = load(source, f"data.{split}")
        names = sorted({task.data_source for split in splits for task in self.tasks.get(split, [])})
        module: Any = self.trainer.lightning_module
        module.watch_sources(names)

    def needed_splits(self, stage: str) -> tuple[str, ...]:
        """Splits of tasks that a Lightning stage needs."""
        return {"fit": ("train", "validation"), "validate": ("validation",)}.get(stage, ("test",))

    def iteration_tasks(self, iteration: int) -> list[Task]:
        """Tasks of one iteration on this rank: a fresh shuffle of all tasks for every pass over them."""
        tasks, rank, world = self.tasks["train"], self.trainer.global_rank, self.trainer.world_size
        first = iteration * self.tasks_per_iteration
        places = [divmod(first + i, len(tasks)) for i in range(self.tasks_per_iteration)]
        return [tasks[self.order(passed, len(tasks))[place]] for passed, place in places[rank::world]]

    def order(self, passed: int, size: int) -> Sequence[int]:
        """Shuffled indices of pass number ``passed`` over ``size`` items."""
        if self._shuffled[0] != passed:
            order = list(range(size))
            random.Random(derive_seed(self.seed, "order", passed)).shuffle(order)
            self._shuffled = (passed, order)
        return self._shuffled[1]

    @property
    def seed(self) -> int:
        """The run's seed."""
        return find_tree_sampler(self.trainer).seed

    def train_dataloader(self) -> DataLoader[Any]:
        """Grow the iteration's trees and lay them out as packs; Lightning asks again before every epoch.

        It asks twice before the first epoch of a resumed run, and once more when there is nothing left to do.
        """
        iteration = iteration_of(self.trainer)
        if iteration == self.trainer.max_epochs:
            return DataLoader([Pack.idle()], batch_size=None)  # type: ignore[arg-type]
        if self._packs[0] != iteration:
            self._packs = (-1, [])  # gives the memory back before more is needed
            self._packs = (iteration, self._grow(iteration))
        return DataLoader(self._packs[1], batch_size=None)  # type: ignore[arg-type]

    def _grow(self, iteration: int) -> list[Pack]:
        module: Any = self.trainer.lightning_module
        groups = find_tree_sampler(self.trainer).collect(self.trainer, module, self.iteration_tasks(iteration))
        return module.make_packs(groups, derive_seed(self.seed, iteration))

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Batches of validation tasks."""
        return self._evaluation("validation") if "validation" in self.tasks else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Batches of test tasks."""
        return self._evaluation("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """Batches of test tasks."""
        return self._evaluation("test")

    def _evaluation(self, split: str) -> DataLoader[Any]:
        mine = self.tasks[split][self.trainer.global_rank :: self.trainer.world_size]
        size = self.eval_batch_size
        batches = [TaskBatch(mine[i : i + size]) for i in range(0, len(mine), size)]
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
