"""The critic: a decoder with a scalar head that says what return a state will bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_treerl.modeling.actor import Actor, lora_config
from lit_treerl.modeling.attention import AttentionKind, forward_hidden
from lit_treerl.modeling.pack import Pack

ADAPTER = "critic"


class Critic(nn.Module):
    """A backbone of its own, or the actor's frozen base with a second LoRA adapter, and a scalar head.

    The head begins at zero: a fresh critic says ``bias`` of every state, not a random number of several rewards.

    Args:
        body: an actor whose language model head is not used: the critic's own, or the policy itself when ``adapter``
            is given.
        adapter: name of the critic's LoRA adapter in the policy's model.
    """

    def __init__(self, body: Actor, adapter: str | None = None) -> None:
        super().__init__()
        self.adapter = adapter
        if adapter is None:
            self.body = body
        else:  # the policy's module owns the weights; here they must be no second copy in the state dict
            object.__setattr__(self, "body", body)
        self.value_head = nn.Linear(_hidden_size(body), 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        gradient_checkpointing: bool = False,
        lora: dict[str, Any] | None = None,
        attention: AttentionKind = "tree",
    ) -> Critic:
        """A critic with a backbone of its own, loaded as :meth:`Actor.from_pretrained` loads the policy.

        Raises:
            ValueError: where ``path`` holds no causal language model, or LoRA's settings are not supported.
        """
        options: dict[str, Any] = {"gradient_checkpointing": gradient_checkpointing, "attention": attention}
        body = Actor.from_pretrained(path, dtype=dtype, lora=lora, **options)
        head = body.head  # trained by nobody; embeddings tied to it stay trainable
        if head.weight is not body.backbone.get_input_embeddings().weight:  # type: ignore[operator]
            head.requires_grad_(False)
        return cls(body).train()

    @classmethod
    def on_actor(cls, actor: Actor, lora: dict[str, Any]) -> Critic:
        """A critic that is a second adapter on the frozen base of a LoRA actor.

        Raises:
            ValueError: where the actor has no adapter, or LoRA's settings are not supported.
        """
        if not actor.has_adapter:
            raise ValueError("a critic on the actor's base needs an actor with LoRA: set model.actor.lora")
        model: Any = actor.model
        with torch.random.fork_rng(devices=[]):
            model.add_adapter(ADAPTER, lora_config(lora))
        actor.check_head()
        critic = cls(actor, ADAPTER)
        for parameter in critic.trained():
            parameter.requires_grad_(True)
        return critic.train()

    def trained(self) -> list[nn.Parameter]:
        """What the critic's optimizer trains."""
        if self.adapter is None:
            return [p for p in self.parameters() if p.requires_grad]
        mine = [p for name, p in self.body.model.named_parameters() if f".{self.adapter}." in name]
        return [*mine, *self.value_head.parameters()]

    def values(self, pack: Pack, token: Tensor) -> Tensor:
        """The critic's outputs [M], at least float32, at ``token`` [M] of a pack's tokens.

        A state is read at the last token before the next action. Outputs are returns, or their logits where the loss
        is a cross-entropy. With an adapter, stay in :meth:`active` until after the backward pass where activations
        are computed again in it.
        """
        with self.active():
            hidden = forward_hidden(self.body.backbone, pack)[token]
        head = self.value_head
        hidden = hidden.to(torch.promote_types(hidden.dtype, head.weight.dtype))
        return head(hidden).squeeze(-1).float()

    def active(self) -> AbstractContextManager[None]:
        """While entered, a shared model computes with the critic's adapter."""
        return nullcontext() if self.adapter is None else active_adapter(self.body, self.adapter)


@contextmanager
def active_adapter(actor: Actor, name: str) -> Iterator[None]:
    """While entered, ``actor`` computes with another of its adapters; what is trainable stays so."""
    model: Any = actor.model
    before, trainable = model.active_adapter, [p for p in model.parameters() if p.requires_grad]
    model.set_adapter(name)
    for parameter in trainable:  # peft freezes the adapters that are not active
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        model.set_adapter(before)
        for parameter in trainable:
            parameter.requires_grad_(True)


def _hidden_size(body: Actor) -> int:
    return int(body.causal_lm.config.hidden_size)
