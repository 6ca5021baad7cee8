"""Which tasks an iteration gets: by seed and iteration alone, every pass a permutation, ranks sharing them out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.data.datamodule import TreeRolloutDataModule, find_tree_sampler
from lit_treerl.data.sources import JSONLTasks, TaskSource
from lit_treerl.module import LitTreeRL
from lit_treerl.settings import SettingsError
from lit_treerl.trees.task import Task
from scripted import ScriptedSampler, ToyEnv, wandering


class Listed(TaskSource):
    def __init__(self, n: int, source: str = "toy") -> None:
        super().__init__()
        self.n, self.source = n, source

    def load(self) -> list[Task]:
        return [Task(f"{self.source}{i}", self.source, "start") for i in range(self.n)]


def data_module(
    train: TaskSource | None = None, *, seed: int = 0, rank: int = 0, world: int = 1, stage: str = "fit", **settings
) -> TreeRolloutDataModule:
    sampler = TreeSampler(ToyEnv(), sampler=ScriptedSampler(wandering()))
    sampler.seed = seed
    data = TreeRolloutDataModule(train, **settings)
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        callbacks=[sampler], lightning_module=LitTreeRL(), global_rank=rank, world_size=world
    )
    data.setup(stage)
    return data


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_the_order_depends_on_seed_and_iteration_alone():
    """Asked in any order and by a fresh object (a resumed run), an iteration has the same tasks."""
    straight = data_module(Listed(10), tasks_per_iteration=4)
    iterations = [ids(straight.iteration_tasks(i)) for i in range(6)]
    resumed = data_module(Listed(10), tasks_per_iteration=4)
    assert [ids(resumed.iteration_tasks(i)) for i in (5, 2, 4)] == [iterations[i] for i in (5, 2, 4)]
    other = data_module(Listed(10), tasks_per_iteration=4, seed=1)
    assert [ids(other.iteration_tasks(i)) for i in range(6)] != iterations


@pytest.mark.parametrize("size", [1, 3, 7, 10])
def test_every_pass_is_a_new_permutation_of_all_tasks(size):
    data = data_module(Listed(7), tasks_per_iteration=size)
    stream = [task for i in range(21) for task in ids(data.iteration_tasks(i))][:21]
    passes = [stream[:7], stream[7:14], stream[14:]]
    everything = sorted(ids(Listed(7).load()))
    assert [sorted(one) for one in passes] == [everything] * 3
    assert len({tuple(one) for one in passes}) == 3


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_part_the_iterations_tasks_among_them(world):
    whole = data_module(Listed(10), tasks_per_iteration=6)
    ranks = [data_module(Listed(10), tasks_per_iteration=6, rank=r, world=world) for r in range(world)]
    for iteration in range(5):
        shares = [ids(rank.iteration_tasks(iteration)) for rank in ranks]
        assert [len(share) for share in shares] == [6 // world] * world
        assert sorted(task for share in shares for task in share) == sorted(ids(whole.iteration_tasks(iteration)))


def test_ranks_part_the_evaluation_tasks_in_batches():
    ranks = [
        data_module(validation=Listed(7), stage="validate", eval_batch_size=2, rank=rank, world=2) for rank in (0, 1)
    ]
    batches = [[ids(batch.tasks) for batch in data.val_dataloader()] for data in ranks]
    assert batches == [[["toy0", "toy2"], ["toy4", "toy6"]], [["toy1", "toy3"], ["toy5"]]]


def test_each_stage_loads_what_it_needs_and_announces_the_data_sources():
    splits = {"validation": Listed(2, "val"), "test": Listed(2, "test")}
    for stage, loaded, sources in [
        ("fit", ["train", "validation"], ["toy", "val"]),
        ("validate", ["validation"], ["val"]),
        ("test", ["test"], ["test"]),
        ("predict", ["test"], ["test"]),
    ]:
        data = data_module(Listed(2), stage=stage, **splits)
        assert sorted(data.tasks) == sorted(loaded)
        assert data.trainer.lightning_module.episode_metrics.sources == sources
    assert data_module(Listed(2)).val_dataloader() == []


def test_a_missing_source_and_a_missing_file_name_the_key(tmp_path):
    with pytest.raises(SettingsError, match=r"data\.train names no task source, and `fit` needs one"):
        data_module()
    with pytest.raises(SettingsError, match=r"data\.test names no task source, and `predict` needs one"):
        data_module(Listed(2), stage="predict")
    with pytest.raises(SettingsError, match=r"data\.validation names no task source, and `validate` needs one"):
        data_module(Listed(2), stage="validate")
    missing = str(tmp_path / "none.jsonl")
    with pytest.raises(SettingsError, match=f"data.train: no task file at {missing}"):
        data_module(JSONLTasks(missing))
    with pytest.raises(ValueError, match="must be at least 1"):
        TreeRolloutDataModule(tasks_per_iteration=0)


def test_a_trainer_without_a_tree_sampler_is_refused():
    with pytest.raises(RuntimeError, match="no TreeSampler callback"):
        find_tree_sampler(SimpleNamespace(callbacks=[]))  # type: ignore[arg-type]
