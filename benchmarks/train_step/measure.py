"""One training step in a process of its own: seconds, peak memory, and what came out."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.memory import PeakMemory
from benchmarks.train_step.cases import Case, apart, draw_tree, random_model, training
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.modeling import actor as actor_module
from lit_treerl.modeling import critic as critic_module
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.packing import build_packs
from lit_treerl.modeling.value_packs import value_packs

Way = Literal["tree", "trajectories"]


def rows_hidden(backbone: Any, pack: Pack) -> Tensor:
    """Hidden states of equally long trajectories as trainers without trees compute them: causal rows."""
    rows = int((pack.segment_parent < 0).sum())
    return backbone(input_ids=pack.ids.view(rows, -1), use_cache=False).last_hidden_state.flatten(0, 1)


def run_case(case: Case, way: Way) -> dict[str, Any]:
    """Seconds and peak bytes of a step after a warm one, its tokens, its loss, and a layer's gradient."""
    torch.set_num_threads(case.threads)
    if way == "trajectories":
        actor_module.forward_hidden = critic_module.forward_hidden = rows_hidden
    trees = [draw_tree(case)] if way == "tree" else apart(draw_tree(case))
    groups, credits, weights = training(trees)
    (pack,) = (p.to(case.device) for p in build_packs(groups, credits, weights, max_tokens=10**9))
    actor = random_model(case, 0)
    critic = Critic(random_model(case, 1)).to(case.device) if case.critic else None
    (reads,) = (p.to(case.device) for p in value_packs(groups, max_tokens=10**9))

    def step() -> float:
        actor.zero_grad(set_to_none=True)
        loss = policy_loss(pack, *actor.logprobs(pack), LossConfig())[0]
        loss.backward()
        if critic is not None:
            critic.zero_grad(set_to_none=True)
            (critic.values(reads.pack, reads.token) - 1).square().mean().backward()
        return float(loss.detach())

    step()
    actor.zero_grad(set_to_none=True)
    memory = PeakMemory(case.device)
    memory.start()
    began = time.perf_counter()
    loss = step()
    seconds = time.perf_counter() - began
    gradient: Any = actor.backbone.layers[0].self_attn.q_proj.weight.grad  # type: ignore[union-attr, index]
    return {
        "seconds": seconds,
        "memory": memory.peak(),
        "tokens": len(pack),
        "loss": loss,
        "gradient": gradient.float().cpu().numpy(),
    }
