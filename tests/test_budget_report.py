"""What is told of a budget, in numbers and as a histogram, and who can have one that asks a critic."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lit_treerl.callbacks.budget_report import budget_numbers, difficulty_bins, log_histogram
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.module import LitTreeRL
from lit_treerl.settings import SettingsError
from lit_treerl.sft import LitSFT
from lit_treerl.trees.budget import Budget, Outlook, TaskBelief, UniformBudget
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.task import Task
from lit_treerl.trees.value_tree import ValueTree
from scripted import ToyEnv

NAMES = [f"budget/by_difficulty/{low}" for low in ("0.0", "0.2", "0.4", "0.6", "0.8")]


class Told(Budget):
    """Says that it predicted these."""

    uses_outlook = True

    def __init__(self, predicted: list[float] | None) -> None:
        self.predicted = predicted

    def allocate(self, *args: Any) -> list[int]:
        raise NotImplementedError


def test_numbers_of_an_allocation():
    numbers = budget_numbers(Told([0.0, 0.1, 0.5, 1.0, math.nan]), [1, 2, 8, 4, 9])
    assert (numbers["budget/min"], numbers["budget/max"]) == (1.0, 9.0)
    assert 0 < numbers["budget/entropy"] < 1
    means = [numbers[name] for name in NAMES]
    assert means == pytest.approx([1.5, math.nan, 8.0, math.nan, 4.0], nan_ok=True)  # tasks with nan are left out
    assert set(numbers) == {"budget/min", "budget/max", "budget/entropy", *NAMES}


def test_an_even_allocation_has_entropy_1_and_a_budget_that_predicts_nothing_no_difficulty():
    numbers = budget_numbers(UniformBudget(), [3, 3, 3])
    assert numbers == {"budget/min": 3.0, "budget/max": 3.0, "budget/entropy": pytest.approx(1.0)}
    assert budget_numbers(UniformBudget(), []) == {}
    assert difficulty_bins(UniformBudget(), [3, 3]) == []


def test_while_a_budget_predicts_nothing_its_bins_are_empty_but_keep_their_names():
    numbers = budget_numbers(Told(None), [2, 2])
    assert all(math.isnan(numbers[name]) for name in NAMES)
    assert [found.tasks for found in difficulty_bins(Told(None), [2, 2])] == [0] * 5


def test_numbers_of_the_critic_guided_budget_itself():
    budget, tasks = CriticGuidedBudget(), [Task(str(i), "s", "q") for i in range(3)]
    outlook = Outlook([TaskBelief(value=value) for value in (0.05, 0.5, 0.95)], explained_variance=0.5)
    counts = budget.allocate(tasks, 4, outlook)
    assert sum(counts) == 12
    numbers = budget_numbers(budget, counts)
    assert numbers["budget/by_difficulty/0.4"] == counts[1] == numbers["budget/max"]
    assert [numbers[NAMES[0]], numbers[NAMES[4]]] == [counts[0], counts[2]]
    budget.allocate(tasks, 4, Outlook(outlook.tasks, -0.1))
    assert all(math.isnan(budget_numbers(budget, [4, 4, 4])[name]) for name in NAMES)


# ---- the histogram ----


def read_back(folder: str) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"histograms": 0})  # keeps all
    events.Reload()
    return events


def test_the_histogram_is_written_to_tensorboard(tmp_path):
    board = TensorBoardLogger(tmp_path, name="", version="run")
    trainer: Any = SimpleNamespace(loggers=[CSVLogger(tmp_path), board], global_step=7)
    log_histogram(trainer, difficulty_bins(Told([0.1, 0.15, 0.5, 0.95]), [1, 3, 6, 2]))
    trainer.global_step = 9
    log_histogram(trainer, difficulty_bins(Told([0.3]), [4]))
    board.experiment.flush()
    first, second = read_back(board.log_dir).Histograms("budget/by_difficulty")
    assert (first.step, second.step) == (7, 9)
    found = first.histogram_value
    assert (found.min, found.max, found.num) == (0.0, 1.0, pytest.approx(2 + 6 + 2))
    assert found.sum == pytest.approx(2 * 0.1 + 6 * 0.5 + 2 * 0.9)
    assert found.sum_squares == pytest.approx(2 * 0.01 + 6 * 0.25 + 2 * 0.81)
    heights = {
        round(limit, 6): height for limit, height in zip(found.bucket_limit, found.bucket, strict=True) if height
    }
    assert heights == {0.2: 2.0, 0.6: 6.0, 1.0: 2.0}
    assert list(second.histogram_value.bucket_limit)[:2] == pytest.approx([0.2, 0.4])


def test_nothing_is_written_where_nothing_was_predicted(tmp_path):
    board = TensorBoardLogger(tmp_path, name="", version="run")
    trainer: Any = SimpleNamespace(loggers=[board], global_step=0)
    log_histogram(trainer, [])
    log_histogram(trainer, difficulty_bins(Told(None), [2, 2]))
    board.experiment.flush()
    assert read_back(board.log_dir).Tags()["histograms"] == []


def test_the_histogram_is_written_to_wandb():
    wandb = pytest.importorskip("wandb")
    logged: list[tuple[dict[str, Any], dict[str, Any]]] = []

    class WandbLogger:
        experiment = SimpleNamespace(log=lambda values, **options: logged.append((values, options)))

    trainer: Any = SimpleNamespace(loggers=[WandbLogger()], global_step=0)
    log_histogram(trainer, difficulty_bins(Told([0.1, 0.5]), [1, 6]))
    [(values, options)] = logged
    assert options == {"commit": False}
    found = values["budget/by_difficulty"]
    assert isinstance(found, wandb.Histogram)
    assert list(found.histogram) == [1, 0, 6, 0, 0]
    assert list(found.bins) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


# ---- who can have what ----


def set_up(module: Any, search: TreeSearch | None = None, budget: Budget | None = None) -> None:
    sampler = TreeSampler(ToyEnv(), search, budget, "auto")
    trainer: Any = SimpleNamespace(world_size=2)  # where all is well it goes on, and stops at this
    sampler.setup(trainer, module, "fit")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": CriticGuidedBudget()}, "budget: asks a critic, and a LitSFT has none; use LitTreeRL"),
        ({"search": TreeSearch(draw="critic")}, r"search\.draw: asks a critic, and a LitSFT has none"),
        ({"search": TreeSearch(draw="critic_gap")}, r"search\.draw: asks a critic, and a LitSFT has none"),
    ],
)
def test_a_module_without_a_critic_cannot_be_asked(settings, message):
    with pytest.raises(SettingsError, match=message):
        set_up(LitSFT(), **settings)


def test_a_budget_with_nothing_to_hand_out_is_told():
    with (
        pytest.warns(UserWarning, match=r"search\.trees is 1: every task gets one tree"),
        pytest.raises(SettingsError, match="several processes"),
    ):
        set_up(LitTreeRL(), TreeSearch(trees=1), CriticGuidedBudget())


def test_a_gap_needs_a_value_tree():
    with pytest.raises(
        SettingsError, match=r"search\.draw 'critic_gap' compares with a value tree: set model\.value_t"
    ):
        set_up(LitTreeRL(), TreeSearch(draw="critic_gap"))
    with pytest.raises(SettingsError, match="several processes"):
        set_up(LitTreeRL(value_tree=ValueTree()), TreeSearch(draw="critic_gap"))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, False),
        ({"search": TreeSearch(draw="entropy"), "budget": UniformBudget()}, False),
        ({"budget": CriticGuidedBudget()}, True),
        ({"search": TreeSearch(draw="critic")}, True),
    ],
)
def test_a_critic_is_built_just_where_budget_or_search_ask(settings, wanted):
    module = LitTreeRL()
    with pytest.raises(SettingsError, match="several processes"):
        set_up(module, **settings)
    assert module.critic_wanted is wanted


def test_a_floor_above_the_mean_is_refused_before_anything_is_rolled_out():
    with pytest.raises(SettingsError, match=r"budget\.least is 3, more than the 2 of search\.trees"):
        set_up(LitTreeRL(), TreeSearch(trees=2), CriticGuidedBudget(least=3))
    with pytest.raises(SettingsError, match="several processes"):
        set_up(LitTreeRL(), TreeSearch(trees=2), CriticGuidedBudget(least=2))
