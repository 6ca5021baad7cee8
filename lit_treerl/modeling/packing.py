"""Packing: forests of token runs laid out as packs of bounded size, for one optimizer step at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_treerl.modeling.bins import balanced_bins
from lit_treerl.modeling.forest import Place, Run, plant, split
from lit_treerl.modeling.node_sums import per_token
from lit_treerl.modeling.pack import Pack
from lit_treerl.trees.tree import RolloutGroup

if TYPE_CHECKING:
    from lit_treerl.algorithms.base import Credit

Episode = tuple[Sequence[int], Sequence[tuple[Sequence[int], Sequence[int]]]]
"""(prompt ids, [(action ids, observation ids) of each turn])."""


def build_packs(
    groups: Sequence[RolloutGroup],
    credits: Sequence[Sequence[Credit]],
    weights: Sequence[Sequence[Tensor]],
    *,
    max_tokens: int,
    skip_zero: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Pack]:
    """Packs of ONE optimizer step; the last has ``step_end``, and a step without any weight has no pack.

    Every token of the step's weighted leaves is there once; only where a task's trees together exceed ``max_tokens``
    and are cut, the paths to where they go on are repeated. Packs cost about the same.

    Args:
        groups: the step's groups.
        credits: their credit, nested as groups and trees.
        weights: their weights, nested likewise: each [L], of leaves, or [nodes, L], of nodes as seen from leaves.
        max_tokens: tokens of a pack; a branch that alone has more gets a pack of its own, with a warning.
        skip_zero: leave out leaves whose advantages are all 0, which is exact without KL and entropy terms.
        dtype: of the log-probs and weights.

    Raises:
        ValueError: where ``max_tokens`` is below 1, a context holds no token, or credit and weights do not fit.
    """
    roots = []
    for group, group_credits, group_weights in zip(groups, credits, weights, strict=True):
        for root in plant(group, group_credits, group_weights, skip_zero=skip_zero):
            roots += split(root, max_tokens)
    return step_packs(fill(roots, max_tokens), dtype)


def supervised_packs(
    episodes: Sequence[Episode],
    max_tokens: int,
    observation_weight: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> list[Pack]:
    """Packs of one optimizer step of demonstrations.

    An action token weighs 1, an observation token ``observation_weight`` and a prompt token 0, all divided by their
    sum over the step. ``weight`` carries that, and ``positive`` equals it, so the loss is -sum(weight * log-prob).

    Raises:
        ValueError: where ``max_tokens`` is below 1, the weight is negative, or a prompt is empty.
    """
    if observation_weight < 0:
        raise ValueError(f"observation_weight must not be negative, got {observation_weight}")
    roots = [_demonstration(number, episode) for number, episode in enumerate(episodes)]
    runs = [run for root in roots for run in _chain(root)[1:]]
    total = sum(r.action_len + observation_weight * (len(r.ids) - r.action_len) for r in runs)
    if not total:
        return []
    for run in runs:
        run.weight = run.positive = 1 / total
        run.context_weight = observation_weight / total
    return step_packs(fill(roots, max_tokens), dtype)


def _demonstration(number: int, episode: Episode) -> Run:
    prompt, turns = episode
    if not prompt:
        raise ValueError(f"episode {number} has an empty prompt")
    root = tip = Run(list(prompt))
    for action, observation in turns:
        tip.children.append(run := Run([*action, *observation], len(action), [0.0] * len(action)))
        tip = run
    return root


def _chain(root: Run) -> list[Run]:
    chain = [root]
    while chain[-1].children:
        chain.append(chain[-1].children[0])
    return chain


def fill(roots: Sequence[Run], max_tokens: int) -> list[Layout]:
    """Layouts of at most ``max_tokens`` tokens, as few as will do, of like cost.

    Raises:
        ValueError: where ``max_tokens`` is below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    sizes = [root.size() for root in roots]
    if max(sizes, default=0) > max_tokens:
        warnings.warn(f"a branch has more than max_tokens = {max_tokens} tokens: it gets its own pack", stacklevel=3)
    layouts: list[Layout] = []
    for members in balanced_bins(sizes, [root.cost() for root in roots], max_tokens):
        layouts.append(Layout())
        for member in sorted(members, key=lambda m: (-sizes[m], m)):  # the dense reference pads rows least so
            layouts[-1].add(roots[member])
    return layouts


def step_packs(layouts: Sequence[Layout], dtype: torch.dtype) -> list[Pack]:
    """Packs of one optimizer step, which the last one ends."""
    packs = [replace(layout.pack(dtype), step_end=False) for layout in layouts]
    return [*packs[:-1], replace(packs[-1], step_end=True)] if packs else []


class Layout:
    """The columns of a pack while it is filled; ``reads`` are the values wanted, as (token, what it is for)."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parent: list[int] = []
        self.position: list[int] = []
        self.segment: list[int] = []
        self.segment_parent: list[int] = []
        self.action: list[bool] = []
        self.logprobs: list[float] = []
        self.sums: list[tuple[float, float, float]] = []
        self.reads: list[tuple[int, Place]] = []

    def add(self, root: Run) -> None:
        """Append a forest depth first."""
        stack = [(root, -1, -1, 0)]
        while stack:
            run, segment, token, position = stack.pop()
            if run.ids:  # a run without tokens passes its parent's place on
                self._append(run, segment, token, position)
                segment, token, position = len(self.segment_parent) - 1, len(self.ids) - 1, position + len(run.ids)
            self.reads += [
                (token if index < 0 else token + 1 + index - len(run.ids), place) for index, place in run.reads
            ]
            stack.extend((child, segment, token, position) for child in reversed(run.children))

    def _append(self, run: Run, segment: int, token: int, position: int) -> None:
        first, size, rest = len(self.ids), len(run.ids), len(run.ids) - run.action_len
        self.ids += run.ids
        self.parent += [token, *range(first, first + size - 1)]
        self.position += range(position, position + size)
        self.segment += [len(self.segment_parent)] * size
        self.segment_parent.append(segment)
        self.action += [True] * run.action_len + [False] * rest
        self.logprobs += [*run.logprobs, *[0.0] * rest]
        positive, negative = (per_token(some, run.action_len) for some in (run.positive, run.negative))
        self.sums += zip(positive, negative, [run.weight] * run.action_len, strict=True)
        self.sums += [(run.context_weight, 0.0, run.context_weight)] * rest

    def pack(self, dtype: torch.dtype) -> Pack:
        """The tensors; see :class:`~lit_treerl.modeling.pack.Pack`."""
        positive, negative, weight = torch.tensor(self.sums, dtype=dtype).unbind(1)
        return Pack(
            ids=torch.tensor(self.ids),
            parent=torch.tensor(self.parent),
            position=torch.tensor(self.position),
            segment=torch.tensor(self.segment),
            segment_parent=torch.tensor(self.segment_parent),
            action=torch.tensor(self.action),
            sampler_logprobs=torch.tensor(self.logprobs, dtype=dtype),
            positive=positive.contiguous(),
            negative=negative.contiguous(),
            weight=weight.contiguous(),
        )
