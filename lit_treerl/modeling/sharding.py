"""FSDP2: actor and critic in shards, one for each layer and one for the rest, with their own methods as forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from lit_treerl.modeling.actor import Actor
from lit_treerl.modeling.critic import Critic

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(model: Actor | Critic, mesh: DeviceMesh, **options: Any) -> None:
    """Shard a model in place; ``logprobs`` of an actor and ``values`` of a critic gather its weights as a forward does.

    Args:
        model: with weights of its own; a critic on the actor's base is sharded with the actor.
        mesh: of the ranks.
        options: of ``torch.distributed.fsdp.fully_shard``, such as ``mp_policy``.

    Raises:
        ValueError: for a critic on an actor's base.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if isinstance(model, Critic) and model.adapter is not None:
        raise ValueError("this critic is an adapter on the actor's base: shard the actor")
    body = model.body if isinstance(model, Critic) else model
    layers: Any = body.backbone.layers
    assert isinstance(layers, nn.ModuleList)
    for layer in layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    register_fsdp_forward_method(model, "logprobs" if isinstance(model, Actor) else "values")
