"""Building the critic, and what actor and critic must not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lit_treerl.critic_training import CriticConfig
from lit_treerl.policies import policy_path
from lit_treerl.policy_module import ActorConfig
from lit_treerl.settings import SettingsError

if TYPE_CHECKING:
    from lit_treerl.modeling.actor import Actor
    from lit_treerl.modeling.critic import Critic


def build_critic(config: CriticConfig, actor: Actor, policy: str, actor_config: ActorConfig) -> Critic:
    """The critic that ``config`` asks for, to stand beside ``actor`` of ``policy``.

    Raises:
        SettingsError: where it cannot be built.
    """
    from lit_treerl.modeling.critic import Critic

    try:
        if config.backbone == "shared":
            critic = Critic.on_actor(actor, config.lora or actor_config.lora or {})
        else:
            critic = Critic.from_pretrained(
                policy_path(config.policy or policy, "model.critic.policy"),
                dtype=getattr(torch, config.dtype),
                gradient_checkpointing=config.gradient_checkpointing,
                lora=config.lora,
                attention=actor_config.attention,
            )
    except FileNotFoundError as error:
        raise SettingsError(str(error)) from error
    except ValueError as error:
        raise SettingsError(f"model.critic: {error}") from error
    check_dropout(critic.body)
    return critic


def check_dropout(actor: Actor) -> None:
    """Raise SettingsError where ``actor`` drops activations in training."""
    if found := dropout(actor):
        raise SettingsError(
            f"the policy has dropout ({found}): its outputs would differ from one forward to the next; set it "
            "to 0 (lora_dropout, or the model's own config)"
        )


def dropout(module: torch.nn.Module) -> str:
    """Name of a submodule that drops activations in training; "" where none does."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Dropout) and part.p > 0:
            return name
        if float(getattr(part, "attention_dropout", 0.0) or 0.0) > 0:
            return f"{name}.attention_dropout"
    return ""
