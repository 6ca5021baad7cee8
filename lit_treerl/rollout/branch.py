"""A branch: one episode under way inside a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lit_treerl.envs.base import Environment, EnvironmentFailure, StepResult
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import ROOT, Status, Tree


@dataclass
class Plant:
    """A tree while it grows, with the bookkeeping that the finished tree does not need."""

    task: Task
    tree: Tree
    alive: int = 0  # branches under way
    branches: int = 0  # branches begun so far
    rounds: int = 0  # rounds of expansion begun so far
    origin: list[tuple[int, int]] = field(default_factory=lambda: [(-1, 0)])  # (branch, turn) of every node

    def canonical(self) -> None:
        """Renumber nodes by (branch, turn), so that the tree does not depend on which branch was faster."""
        order = sorted(range(len(self.tree)), key=lambda node: self.origin[node])
        self.tree.reorder(order)
        self.origin = [self.origin[node] for node in order]


@dataclass
class Branch:
    """One episode under way: it has come to ``node`` and acts next.

    Attributes:
        fork: snapshot that its environment must still be restored to, for the first step of a forced fork.
    """

    plant: Plant
    env: Environment
    number: int
    node: int = ROOT
    turn: int = 0
    fork: Any = None
    forked: bool = False

    def act(self, text: str, keep_snapshot: bool) -> tuple[StepResult, Any]:
        """Execute an action; may wait for outside. Returns the answer and the new state."""
        self._restore()
        result = self.env.step(text)
        return result, (self.env.snapshot() if keep_snapshot and not result.done else None)

    def truncate(self) -> StepResult:
        """What the episode is worth where it is cut here; may wait for outside."""
        self._restore()
        return self.env.truncate()

    def truncated(self, result: StepResult) -> None:
        """The node reached so far becomes a truncated leaf, for its next action would not fit."""
        tree, node = self.plant.tree, self.node
        tree.status[node] = Status.TRUNCATED
        tree.reward[node] += result.reward
        calls = sum(info.get("tool_calls", 0) for info in (tree.info[node], result.info))  # the step's own stay counted
        tree.info[node] |= result.info | {"tool_calls": calls}

    def _restore(self) -> None:
        if self.forked:
            self.env.restore(self.fork)
            self.forked, self.fork = False, None


@contextmanager
def naming(task: Task, where: str) -> Iterator[None]:
    """Add the task and what its environment was doing to errors that are no external trouble."""
    try:
        yield
    except EnvironmentFailure:
        raise
    except Exception as error:
        error.add_note(f"while the environment {where} of task {task.id!r}")
        raise
