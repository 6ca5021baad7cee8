"""One training step: seconds, peak memory, and what came out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.memory import PeakMemory
from benchmarks.train_step.cases import Case, apart, draw_tree, random_model, training
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.modeling import actor as actor_module
from lit_treerl.modeling import critic as critic_module
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs
from lit_treerl.modeling.value_packs import ValuePack, value_packs
from lit_treerl.trees.tree import Tree

Way = Literal["tree", "trajectories"]


def rows_hidden(backbone: Any, pack: Pack) -> Tensor:
    """Hidden states of equally long trajectories as trainers without trees compute them: causal rows."""
    rows = int((pack.segment_parent < 0).sum())
    return backbone(input_ids=pack.ids.view(rows, -1), use_cache=False).last_hidden_state.flatten(0, 1)


@contextmanager
def computed_as(way: Way) -> Iterator[None]:
    """While entered, actor and critic compute packs this way."""
    before = actor_module.forward_hidden
    if way == "trajectories":
        actor_module.forward_hidden = critic_module.forward_hidden = rows_hidden
    try:
        yield
    finally:
        actor_module.forward_hidden = critic_module.forward_hidden = before


class Step:
    """Models and data of a case, and one training step of them."""

    def __init__(self, case: Case, way: Way) -> None:
        self.trees = [draw_tree(case)] if way == "tree" else apart(draw_tree(case))
        groups, credits, weights = training(self.trees)
        (self.pack,) = (p.to(case.device) for p in build_packs(groups, credits, weights, max_tokens=10**9))
        (self.reads,) = (p.to(case.device) for p in value_packs(groups, max_tokens=10**9))
        self.leaves = leaves_through(self.trees, self.reads).to(case.device)
        self.actor = random_model(case, 0)
        self.critic = Critic(random_model(case, 1)) if case.critic else None
        if self.critic is not None:
            nn.init.normal_(self.critic.value_head.weight, std=0.1)  # a new one is zero, as its gradients would be
            self.critic.to(case.device)
        self.losses: dict[str, Tensor] = {}
        self.values: Tensor | None = None

    def __call__(self) -> float:
        """Forward and backward of actor and critic; returns the actor's loss when all is done."""
        self.actor.zero_grad(set_to_none=True)
        loss = policy_loss(self.pack, *self.actor.logprobs(self.pack), LossConfig())[0]
        loss.backward()
        self.losses["actor loss"] = loss.detach()
        if self.critic is not None:
            self.critic.zero_grad(set_to_none=True)
            values = self.critic.values(self.reads.pack, self.reads.token)
            error = ((values - 1).square() * self.leaves).sum() / self.leaves.sum()
            error.backward()
            self.values, self.losses["critic loss"] = values.detach(), error.detach()
        return float(loss.detach())

    def outcome(self) -> dict[str, Tensor]:
        """Losses, the critic's value of every state of every trajectory, and gradients by the names of parameters."""
        found = dict(self.losses)
        if self.values is not None:
            found["critic values"] = self.values[by_trajectory(self.trees, self.reads).to(self.values.device)]
        for who, model in (("actor", self.actor), ("critic", self.critic)):
            if model is not None:
                named = model.named_parameters()
                found |= {f"{who} gradient: {name}": p.grad for name, p in named if p.grad is not None}
        return {name: tensor.cpu() for name, tensor in found.items()}


def run_case(case: Case, way: Way, keep: Path | None = None) -> dict[str, Any]:
    """Seconds and peak bytes of a step after a warm one, and its tokens; saves the outcome in the file ``keep``."""
    torch.set_num_threads(case.threads)
    with computed_as(way):
        step = Step(case, way)
        step()
        step.actor.zero_grad(set_to_none=True)
        memory = PeakMemory(case.device)
        memory.start()
        began = time.perf_counter()
        step()
        seconds, peak = time.perf_counter() - began, memory.peak()
    if keep is not None:
        torch.save(step.outcome(), keep)
    return {"seconds": seconds, "memory": peak, "tokens": len(step.pack)}


def by_trajectory(trees: Sequence[Tree], reads: ValuePack) -> Tensor:
    """Index of the value read at every state of every trajectory, in their order, which both ways share."""
    at = {(place.group, place.node): index for index, places in enumerate(reads.places) for place in places}
    wanted = [
        (number, node)
        for number, tree in enumerate(trees)
        for leaf in tree.training_leaves()
        for node in tree.path(leaf)
    ]
    return torch.tensor([at[key] for key in wanted if key in at])


def leaves_through(trees: Sequence[Tree], reads: ValuePack) -> Tensor:
    """How many trajectories go through each state that is read."""
    return by_trajectory(trees, reads).bincount(minlength=len(reads)).float()
