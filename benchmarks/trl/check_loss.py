"""The loss of both sides on one frozen batch: trajectories rolled out once, then scored by weights that have moved.

The weights are moved by noise after the old log-probs were taken, so that ratios differ from 1 and the clip is at work.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.trl.job import CLIP, DUAL_CLIP, GROUP, POLICY, Job, Sampling, Scaling, World
from benchmarks.trl.ours import NORMALISATION
from benchmarks.trl.theirs import make_trainer
from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.modeling.actor import Actor
from lit_treerl.policies import policy_path
from lit_treerl.trees.tree import RolloutGroup
from lit_treerl.updates import UpdateConfig, plan_packs

NOISE = 0.3  # of the mean size of a weight


@dataclass
class Scored:
    """A loss, its gradient by the weights' names, and the share of sampled tokens that the clip holds."""

    loss: float
    gradient: dict[str, Tensor]
    clipped: float


@torch.no_grad()
def move(model: nn.Module, seed: int) -> None:
    """Add noise to the weights, the same for the same seed and names."""
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(model.named_parameters()):
        weight += torch.randn(weight.shape, generator=generator) * NOISE * weight.abs().mean()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Of every weight."""
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def ours(groups: Sequence[RolloutGroup], scaling: Scaling, seed: int) -> Scored:
    """Through our packs, actor and loss, as an iteration of one optimizer step."""
    actor = Actor.from_pretrained(policy_path(POLICY))
    config = LossConfig(clip_low=CLIP, clip_high=CLIP, dual_clip=DUAL_CLIP)
    credits = GRPO(normalisation=NORMALISATION[scaling])(groups)  # type: ignore[arg-type]
    packs = plan_packs(groups, credits, UpdateConfig(mini_batches=1), config, random.Random(seed))
    with torch.no_grad():
        packs = [replace(pack, old_logprobs=actor.logprobs(pack)[0]) for pack in packs]
    move(actor.causal_lm, seed)
    total = clipped = 0.0
    for pack in packs:
        loss, sums = policy_loss(pack, *actor.logprobs(pack), config)
        loss.backward()
        total, clipped = total + float(loss.detach()), clipped + float(sums["clip_fraction"])
    sampled = sum(tree.sampled_tokens() for group in groups for tree in group.trees)
    return Scored(total, gradients(actor.causal_lm), clipped / sampled)


def frozen(groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    """The chains as a ``rollout_func`` returns them."""
    out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "earned": [], "logprobs": None}
    for tree, leaf in ((tree, leaf) for group in groups for tree, leaf in group.leaves()):
        path = tree.path(leaf)
        out["prompt_ids"].append(list(tree.ids[path[0]]))
        out["completion_ids"].append([token for node in path[1:] for token in tree.ids[node]])
        out["env_mask"].append([int(i < tree.action_len[n]) for n in path[1:] for i in range(len(tree.ids[n]))])
        out["earned"].append(tree.leaf_return(leaf))
    return out


def theirs(groups: Sequence[RolloutGroup], world: World, scaling: Scaling, seed: int) -> Scored:
    """Through GRPOTrainer: its advantages, masks, old log-probs and ``compute_loss``."""
    tasks = [group.task for group in groups]
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            Job("trl", seed, scaling=scaling, tasks=len(tasks)),
            Path(folder),
            world,
            tasks,
            lambda prompts, trainer: frozen(groups),
            per_device_train_batch_size=GROUP * len(tasks),
            steps_per_generation=1,
            num_iterations=2,  # so that it takes old log-probs
            max_steps=1,
        )
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1  # which train() sets
        inputs = trainer._prepare_inputs([dict(row) for row in trainer.train_dataset for _ in range(GROUP)])
        move(trainer.model, seed)
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        clipped = trainer._metrics["train"]["clip_ratio/region_mean"][-1]
        return Scored(float(loss.detach()), gradients(trainer.model), clipped)


def check(scaling: Scaling, tasks: int = 32, seed: int = 0) -> dict[str, float]:
    """Both losses on ``tasks`` questions' chains, their difference, and the largest difference of their gradients."""
    torch.set_num_threads(1)
    world = World()
    groups = Sampling(world).chains(world.order(seed)[:tasks], GROUP, temperature=1.0, seed=seed)
    mine, yours = ours(groups, scaling, seed), theirs(groups, world, scaling, seed)
    assert mine.gradient.keys() == yours.gradient.keys()
    gap = max(float((mine.gradient[name] - yours.gradient[name]).abs().max()) for name in mine.gradient)
    return {
        "loss ours": mine.loss,
        "loss trl": yours.loss,
        "difference": abs(mine.loss - yours.loss),
        "largest gradient": max(float(value.abs().max()) for value in yours.gradient.values()),
        "gradient difference": gap,
        "clipped ours": mine.clipped,
        "clipped trl": yours.clipped,
    }
