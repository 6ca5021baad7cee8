"""LitTreeRL: policy optimisation from trees of rollouts."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lit_treerl.algorithms.advantages import zero_signal
from lit_treerl.algorithms.base import AdvantageEstimator
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.modeling.pack import Pack
from lit_treerl.policy_module import ActorConfig, LitPolicy, OptimizerConfig
from lit_treerl.settings import SettingsError
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.tree import RolloutGroup
from lit_treerl.update_stats import UpdateStats
from lit_treerl.updates import UpdateConfig, plan_packs

if TYPE_CHECKING:
    from lit_treerl.modeling.actor import Actor


class LitTreeRL(LitPolicy):
    """Learns from trees of rollouts; one epoch is one iteration of rollouts and updates.

    Args:
        policy: Hugging Face model folder or hub name; ``embedded`` is the small policy in the package.
        algorithm: how the leaves' returns become advantages; Tree-GRPO by default.
        loss: clipping, KL, entropy and importance weights.
        update: mini-batches, averaging and pack size.
        actor_lr: learning rate of the actor.
        actor: how the actor is loaded.
        optimizer: AdamW and its schedule.
    """

    def __init__(
        self,
        policy: str = "embedded",
        algorithm: AdvantageEstimator | None = None,
        loss: LossConfig = LossConfig(),
        update: UpdateConfig = UpdateConfig(),
        actor_lr: float = 1e-6,
        actor: ActorConfig = ActorConfig(),
        optimizer: OptimizerConfig = OptimizerConfig(),
    ) -> None:
        super().__init__(policy, actor_lr, actor, optimizer)
        self.algorithm, self.loss, self.update = algorithm or TreeGRPO(), loss, update
        self.reference: Actor | None = None
        self.stats = UpdateStats()

    def configure_model(self) -> None:
        """Load the actor, and a frozen reference where the KL term needs one."""
        super().configure_model()
        assert self.actor is not None
        if found := dropout(self.actor):
            raise SettingsError(
                f"the policy has dropout ({found}): its log-probs would differ from one forward to the next; set it "
                "to 0 (model.actor.lora.lora_dropout, or the model's own config)"
            )
        fits = self._trainer is None or self.trainer.state.fn == "fit"
        if fits and self.loss.kl_coef > 0 and self.reference is None and self.actor_config.lora is None:
            self.reference = self.load_actor().requires_grad_(False).eval()

    # ---- from trees to packs ----

    def make_packs(self, groups: Sequence[RolloutGroup], iteration: int) -> list[Pack]:
        """Credit the trees and lay them out as this iteration's packs, old and reference log-probs included."""
        start = time.perf_counter()
        credits = self.algorithm(groups)
        rng = random.Random(derive_seed("mini-batches", iteration))
        self.stats.begin(zero_signal_groups=zero_signal(credits))
        packs = self._with_frozen_logprobs(plan_packs(groups, credits, self.update, self.loss, rng))
        self.stats.add_time(time.perf_counter() - start)
        return packs or [Pack.idle()]

    @torch.no_grad()
    def _with_frozen_logprobs(self, packs: list[Pack]) -> list[Pack]:
        """Old log-probs for every step but the first, whose policy still is the old one; reference if needed."""
        out, first_step = [], True
        for pack in packs:
            on_device = pack.to(self.device)
            if not first_step:
                pack = replace(pack, old_logprobs=self._logprobs(self.actor, on_device).cpu())
            if self.loss.kl_coef > 0:
                pack = replace(pack, ref_logprobs=self._reference_logprobs(on_device).cpu())
            first_step = first_step and not pack.step_end
            out.append(pack)
        return out

    def _reference_logprobs(self, pack: Pack) -> torch.Tensor:
        if self.reference is not None:
            return self._logprobs(self.reference, pack)
        assert self.actor is not None
        with self.actor.disable_adapter():
            return self._logprobs(self.actor, pack)

    def _logprobs(self, actor: Actor | None, pack: Pack) -> torch.Tensor:
        """Computed in the trainer's precision, as in ``training_step``: else the ratios would not begin at 1."""
        assert actor is not None
        attached = self._trainer is not None
        with self.trainer.precision_plugin.forward_context() if attached else nullcontext():
            return actor.logprobs(pack, self.temperature)[0]

    # ---- training ----

    def training_step(self, pack: Pack, batch_idx: int) -> None:
        """Accumulate one pack's gradient; step the optimizer where the pack ends a step."""
        if not len(pack):  # nothing to learn in the whole iteration
            return
        start = time.perf_counter()
        assert self.actor is not None
        logprobs, entropy = self.actor.logprobs(pack, self.temperature)
        loss, metrics = policy_loss(pack, logprobs, entropy, self.loss)
        self.manual_backward(loss)
        self.stats.add(loss, metrics)
        if pack.step_end:
            self.stats.add_step(self.optimizer_step_now())
        self.stats.add_time(time.perf_counter() - start)

    def iteration_values(self) -> dict[str, float]:
        """What the iteration's updates did."""
        return self.stats.values()

    # ---- checkpoints ----

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leave the frozen reference out: it is loaded from ``policy`` again."""
        state = checkpoint["state_dict"]
        for name in [name for name in state if name.startswith("reference.")]:
            del state[name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the reference's own weights in for the strict load."""
        if self.reference is not None:
            checkpoint["state_dict"] |= {f"reference.{k}": v for k, v in self.reference.state_dict().items()}


def dropout(module: torch.nn.Module) -> str:
    """Name of a submodule that drops activations in training; "" where none does."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Dropout) and part.p > 0:
            return name
        if float(getattr(part, "attention_dropout", 0.0) or 0.0) > 0:
            return f"{name}.attention_dropout"
    return ""
