"""What two processes find of a sharded actor and critic; in a light module, for processes import it anew."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.critic import Critic
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.sharding import shard


def outcome(model: Actor | Critic, pack: Pack) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What the model says of a pack, and the gradients of a weighted sum of it, whole."""
    at = torch.arange(len(pack))
    said = torch.stack(model.logprobs(pack, 0.7)) if isinstance(model, Actor) else model.values(pack, at)
    (said * torch.arange(1, said.numel() + 1).reshape(said.shape) / said.numel()).sum().backward()
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            whole = parameter.grad
            found[name] = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
    return said.detach(), found


def loaded(kind: str, policy: str, options: dict) -> Actor | Critic:
    """An actor, or a critic whose head is no longer zero; the same in every process."""
    torch.manual_seed(0)
    if kind == "actor":
        return Actor.from_pretrained(policy, **options)
    critic = Critic.from_pretrained(policy, **options)
    with torch.no_grad():
        critic.value_head.weight.copy_(torch.linspace(-1, 1, critic.value_head.weight.numel())[None])
    return critic


def work(rank: int, port: int, kind: str, policy: str, options: dict, packs: list[Pack], folder: str) -> None:
    """One of two ranks: its own pack, gradients averaged over both by FSDP2."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=len(packs))
    try:
        from torch.distributed.device_mesh import init_device_mesh

        model = loaded(kind, policy, options)
        shard(model, init_device_mesh("cpu", (len(packs),)))
        said, gradients = outcome(model, packs[rank])
        torch.save({"said": said, "gradients": gradients}, Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
