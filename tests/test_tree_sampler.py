"""The TreeSampler callback itself: whom it asks for first prompts, and what it leaves behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.module import LitTreeRL
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.task import Task
from scripted import ScriptedSampler, ToyEnv, wandering, word_tokens

PATIENCE = 60  # seconds until something that waits in vain gives up
TASKS = [Task(str(i), "toy", f"start {i}", ("x",)) for i in range(4)]


class Asked(Exception):
    """Ends an iteration where the critic would be asked."""


class Watching(LitTreeRL):
    """Keeps the prompts that its critic is asked about."""

    def outlook(self, tasks, prompts):
        self.prompts = list(prompts)
        raise Asked


def prompts_before_an_iteration(env: ToyEnv, monkeypatch) -> list[str | None]:
    """The texts of the first prompts, as the critic would get them."""
    callback = TreeSampler(env, TreeSearch(trees=2), CriticGuidedBudget(), ScriptedSampler(wandering()))
    trainer: Any = SimpleNamespace(world_size=1, global_rank=0, strategy=SimpleNamespace(root_device="cpu"))
    module = Watching()
    monkeypatch.setattr("lit_treerl.callbacks.tree_sampler.load_tokenizer", lambda _: word_tokens().tokenizer)
    callback.setup(trainer, module, "fit")
    monkeypatch.setattr(callback, "sync", lambda module: 0.0)
    with pytest.raises(Asked):
        callback.collect(trainer, module, TASKS)
    return [None if ids is None else callback.tokens.decode(ids) for ids in module.prompts]


def test_first_prompts_are_asked_side_by_side_where_the_environment_waits(monkeypatch):
    """No reset returns before all have begun."""
    barrier = threading.Barrier(len(TASKS), timeout=PATIENCE)

    class Slow(ToyEnv):
        def _reset(self, task):
            barrier.wait()
            if task.id == "2":
                raise EnvironmentFailure("the tool is down")
            return super()._reset(task)

    assert prompts_before_an_iteration(Slow(blocking=True), monkeypatch) == ["start 0", "start 1", None, "start 3"]


def test_first_prompts_are_asked_at_once_where_the_environment_runs_in_the_caller(monkeypatch):
    threads = []

    class Quick(ToyEnv):
        def _reset(self, task):
            threads.append(threading.current_thread())
            return super()._reset(task)

    assert prompts_before_an_iteration(Quick(), monkeypatch) == [f"start {i}" for i in range(4)]
    assert threads == [threading.main_thread()] * len(TASKS)


def test_an_error_of_the_run_closes_the_environment():
    closed = []

    class Closing(ToyEnv):
        def close(self):
            closed.append(True)

    trainer: Any = None
    TreeSampler(Closing(), sampler=ScriptedSampler(wandering())).on_exception(trainer, trainer, KeyboardInterrupt())
    assert closed == [True]
