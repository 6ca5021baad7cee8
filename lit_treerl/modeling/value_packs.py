"""Packs for the critic: the unique tokens of trees, and the tokens at which values are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_treerl.modeling.forest import Place, Run, plant_states, split
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import fill, step_packs
from lit_treerl.trees.tree import RolloutGroup


@dataclass(frozen=True)
class ValuePack:
    """A pack and the values wanted of it.

    Legend: M distinct tokens at which a value is read. Nodes of several trees share a token where their contexts are
    equal, as the roots of a task's trees do.

    Attributes:
        pack: the tokens; none of them carries a loss of the policy.
        token: [M] index of each such token in the pack, in order.
        places: for each token, what its value is about.
        target: [M] what the critic should say, None where nothing is learned.
        weight: [M] weights, normalised so that losses of an optimizer step's packs just add.
        old: [M] the critic's outputs at the start of the iteration, for value clipping.
    """

    pack: Pack
    token: Tensor
    places: list[list[Place]]
    target: Tensor | None = None
    weight: Tensor | None = None
    old: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token)

    @property
    def step_end(self) -> bool:
        """Whether the optimizer steps after this pack."""
        return self.pack.step_end

    def to(self, device: torch.device | str) -> ValuePack:
        """The same with its tensors on ``device`` (Lightning moves batches by this method)."""
        moved = {name: getattr(self, name) for name in ("token", "target", "weight", "old")}
        tensors = {name: None if value is None else value.to(device) for name, value in moved.items()}
        return replace(self, pack=self.pack.to(device), **tensors)

    def with_targets(self, look_up: Callable[[Place], tuple[float, float]]) -> ValuePack:
        """The same with (target, weight) of each place; where places share a token, it learns their weighted mean.

        Its weight is then the mean of theirs, so that a state counts once however many trees begin there. Targets are
        nan, with weight 0, where nothing is to be learned.
        """
        targets, weights = [], []
        for places in self.places:
            known = [(target, weight) for target, weight in map(look_up, places) if weight > 0]
            total = sum(weight for _, weight in known)
            targets.append(sum(target * weight for target, weight in known) / total if known else float("nan"))
            weights.append(total / len(known) if known else 0.0)
        kind = {"dtype": torch.float32, "device": self.token.device}
        return replace(self, target=torch.tensor(targets, **kind), weight=torch.tensor(weights, **kind))


def value_packs(groups: Sequence[RolloutGroup], *, max_tokens: int, token_level: bool = False) -> list[ValuePack]:
    """Packs of one optimizer step that read the value of every state on a training leaf's path in which it goes on.

    Args:
        groups: the trees.
        max_tokens: unique tokens of a pack; see :func:`~lit_treerl.modeling.packing.build_packs`.
        token_level: also read before every action token but the first.

    Raises:
        ValueError: where ``max_tokens`` is below 1 or a context holds no token.
    """
    roots = []
    for number, group in enumerate(groups):
        for root in plant_states(group, number, token_level=token_level):
            roots += split(root, max_tokens)
    return _packs(roots, max_tokens)


def prompt_packs(prompts: Sequence[Sequence[int]], *, max_tokens: int) -> list[ValuePack]:
    """Packs that read a value at the end of each prompt; prompt i is about the root of group i."""
    roots = [Run(list(ids), reads=[(-1, Place(i, 0, 0))]) for i, ids in enumerate(prompts)]
    return _packs(roots, max_tokens)


def _packs(roots: Sequence[Run], max_tokens: int) -> list[ValuePack]:
    layouts = [layout for layout in fill(roots, max_tokens) if layout.reads]
    out = []
    for layout, pack in zip(layouts, step_packs(layouts, torch.float32), strict=True):
        by_token: dict[int, list[Place]] = {}
        for token, place in sorted(layout.reads, key=lambda read: read[0]):
            by_token.setdefault(token, []).append(place)
        out.append(ValuePack(pack, torch.tensor(list(by_token)), list(by_token.values())))
    return out
