"""Baselines: what a task's returns are expected to be before its own are looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, get_args

import torch
from torch import Tensor

from lit_treerl.algorithms.base import Beliefs
from lit_treerl.algorithms.beliefs import Believed, finite
from lit_treerl.settings import check_choice
from lit_treerl.trees.tree import ROOT, Tree

Baseline = Literal["group", "apvt", "critic", "running_mean"]

NEEDS = {"group": (), "apvt": ("prior",), "critic": ("value",), "running_mean": ()}
"""Fields of :class:`Beliefs` that a baseline is read from."""


def shrunken_mean(returns: Tensor, prior: float | None, weight: float) -> float:
    """(sum of returns [n] + weight * prior) / (n + weight); the plain mean without a prior, and 0 of nothing."""
    if prior is None:
        return float(returns.mean()) if len(returns) else 0.0
    total = len(returns) + weight
    return (float(returns.sum()) + weight * prior) / total if total else 0.0


class Priors:
    """Expected returns of an iteration's tasks.

    - ``group``: none, the group's own mean is all there is.
    - ``apvt``: the value tree's mean of the task over earlier iterations (``Beliefs.prior``); where that is nan, since
      it has met no task at all, the running mean.
    - ``critic``: the critic's value of the task's first state.
    - ``running_mean``: exponential mean over earlier iterations of the mean over tasks of their mean return; in the
      first iteration that iteration's own.

    Args:
        kind: see above.
        momentum: share of the running mean that one iteration leaves in place.
    """

    def __init__(self, kind: Baseline, momentum: float) -> None:
        check_choice("baseline", kind, get_args(Baseline))
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        self.kind: Baseline = kind
        self.momentum = momentum
        self.running: float | None = None

    def __call__(self, believed: Believed, returns: Sequence[Sequence[Tensor]]) -> list[float | None]:
        """The prior of each task, None for ``group``; every call is one iteration of the running mean.

        Args:
            believed: trees and beliefs of each task.
            returns: of each task's trees, [L] each.

        Raises:
            ValueError: naming the task, where the critic's value or the value tree's prior is not a number.
        """
        running = self._advance(returns)
        if self.kind == "group":
            return [None] * len(believed)
        if self.kind == "running_mean":
            return [running] * len(believed)
        return [self._believed(task, running) for task in believed]

    def state_dict(self) -> dict[str, float]:
        """The running mean, once there is one."""
        return {} if self.running is None else {"running_mean": self.running}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.running = state.get("running_mean")

    def _advance(self, returns: Sequence[Sequence[Tensor]]) -> float:
        """The running mean before this iteration; moves it on."""
        means = [float(torch.cat(list(task)).mean()) for task in returns if sum(map(len, task))]
        if not means:
            return self.running or 0.0
        now = fmean(means)
        before = now if self.running is None else self.running
        self.running = self.momentum * before + (1 - self.momentum) * now
        return before

    def _believed(self, task: Sequence[tuple[Tree, Beliefs]], running: float) -> float:
        """Mean over the task's trees, whose first state is the same."""
        read = _critic_prior if self.kind == "critic" else _value_tree_prior
        found = [read(tree, beliefs) for tree, beliefs in task if tree.training_leaves()]
        known = [prior for prior in found if not math.isnan(prior)]
        return fmean(known) if known else running


def _critic_prior(tree: Tree, beliefs: Beliefs) -> float:
    return float(finite(beliefs.value, tree, torch.arange(len(tree)) == ROOT, "the critic's value")[ROOT])


def _value_tree_prior(tree: Tree, beliefs: Beliefs) -> float:
    assert beliefs.prior is not None
    if math.isinf(beliefs.prior):
        raise ValueError(f"task {tree.task_id!r}, tree {tree.index}: the value tree's prior is {beliefs.prior}")
    return beliefs.prior
