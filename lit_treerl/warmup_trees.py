"""The trees of a critic warm-up: what is learned from, and what is held out to measure by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Tree
from lit_treerl.trees.value_keys import task_key


class WarmupTrees:
    """Trees gathered while the actor rests; all of them stay on-policy, so each iteration learns from all again.

    A task is held out or not for good, by its content, so that no task is on both sides.

    Args:
        held_out: share of tasks that only measure the critic.
        passes: passes over the trees in each iteration.
        replay: most iterations whose trees are kept.
    """

    def __init__(self, held_out: float, passes: int, replay: int) -> None:
        self.held_out, self.passes, self.replay = held_out, passes, replay
        self._kept: list[list[RolloutGroup]] = []

    def add(self, groups: Sequence[RolloutGroup]) -> None:
        """Add one iteration's trees; the oldest leave where there are too many."""
        self._kept = [*self._kept, list(groups)][-self.replay :]

    @property
    def iterations(self) -> int:
        """Iterations whose trees are kept."""
        return len(self._kept)

    @property
    def trained(self) -> list[RolloutGroup]:
        """Trees of the tasks that the critic learns from."""
        return [group for groups in self._kept for group in groups if not self._is_held_out(group.task)]

    @property
    def held(self) -> list[RolloutGroup]:
        """Trees of the tasks that it does not learn from."""
        return [group for groups in self._kept for group in groups if self._is_held_out(group.task)]

    def state_dict(self) -> dict[str, Any]:
        """Plain containers."""
        kept = [[[asdict(g.task), [tree.to_json() for tree in g.trees]] for g in groups] for groups in self._kept]
        return {"kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._kept = [
            [RolloutGroup(_task(task), [Tree.from_json(tree) for tree in trees]) for task, trees in groups]
            for groups in state["kept"]
        ]

    def _is_held_out(self, task: Task) -> bool:
        return derive_seed("held out", task_key(task)) % 10_000 < 10_000 * self.held_out


def _task(fields: Mapping[str, Any]) -> Task:
    prompt = fields["prompt"]
    rest = {"answers": tuple(fields["answers"]), "prompt": None if prompt is None else tuple(prompt)}
    return Task(**{**fields, **rest})
