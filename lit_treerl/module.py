"""LitTreeRL: policy optimisation from trees of rollouts."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lit_treerl.actor_critic import LitActorCritic
from lit_treerl.algorithms.advantages import zero_signal
from lit_treerl.algorithms.base import AdvantageEstimator
from lit_treerl.algorithms.losses import LossConfig, policy_loss
from lit_treerl.algorithms.tree_grpo import TreeGRPO
from lit_treerl.algorithms.tree_ppo import TreePPO, check_discounts
from lit_treerl.critic_training import CriticConfig
from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.value_packs import ValuePack
from lit_treerl.optimizers import OptimizerConfig
from lit_treerl.policy_module import ActorConfig
from lit_treerl.settings import SettingsError
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.tree import RolloutGroup
from lit_treerl.trees.value_tree import ValueTree
from lit_treerl.updates import UpdateConfig, plan_packs

if TYPE_CHECKING:
    from lit_treerl.modeling.actor import Actor


class LitTreeRL(LitActorCritic):
    """Learns from trees of rollouts; one epoch is one iteration of rollouts and updates.

    Args:
        policy: Hugging Face model folder or hub name; ``embedded`` is the small policy in the package.
        algorithm: how the leaves' returns become advantages; Tree-GRPO by default.
        loss: clipping, KL, entropy and importance weights.
        update: mini-batches, averaging and pack size.
        actor_lr: learning rate of the actor.
        actor: how the actor is loaded.
        optimizer: AdamW and its schedule, of the actor.
        critic: how the critic is built and trained. It is built where the algorithm, the budget, the search or a
            warm-up asks for it.
        value_tree: keeps the returns of earlier iterations by task and action prefix; none when null.
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
        critic: CriticConfig = CriticConfig(),
        value_tree: ValueTree | None = None,
    ) -> None:
        super().__init__(policy, actor_lr, actor, optimizer, critic, value_tree)
        self.algorithm, self.loss, self.update = algorithm or TreeGRPO(), loss, update
        if value_tree is None:
            if self.algorithm.uses_value_tree and not self.algorithm.value_tree_optional:
                raise ValueError(
                    f"model.algorithm: this {type(self.algorithm).__name__} reads a value tree, and there "
                    "is none: set model.value_tree"
                )
            self.algorithm.uses_value_tree = self.algorithm.uses_others = False
        elif isinstance(self.algorithm, TreePPO) and self.algorithm.uses_value_tree:
            check_discounts(self.algorithm, value_tree)
        self.critic_wanted = self.algorithm.uses_critic  # callbacks may want it too
        self.reference: Actor | None = None

    def configure_model(self) -> None:
        """Load actor and critic, and a frozen reference where the KL term needs one."""
        super().configure_model()
        fits = self._trainer is None or self.trainer.state.fn == "fit"
        if fits and self.loss.kl_coef > 0 and self.reference is None and self.actor_config.lora is None:
            self.reference = self.load_actor().requires_grad_(False).eval()

    # ---- from trees to packs ----

    def make_packs(self, groups: Sequence[RolloutGroup], iteration: int) -> list[Pack | ValuePack]:
        """Credit the trees and lay them out as this iteration's packs, old and reference log-probs included."""
        start = time.perf_counter()
        if self.warmup is not None:
            self.stats.begin()
            resting: list[Pack | ValuePack] = [*self.plan_warmup(groups, iteration)]
            self.stats.add_time(time.perf_counter() - start)
            return resting or [Pack.idle()]
        algorithm = self.algorithm
        beliefs = self.beliefs(groups, token_level=algorithm.token_level, others=algorithm.uses_others)
        credits = algorithm(groups, beliefs)
        self.stats.begin(zero_signal_groups=zero_signal(credits))
        rng = random.Random(derive_seed("mini-batches", iteration))
        packs: list[Pack | ValuePack] = []
        packs += self._with_frozen_logprobs(plan_packs(groups, credits, self.update, self.loss, rng))
        packs += self.plan_values(groups, credits, beliefs, iteration)
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
        assert actor is not None
        with self.forward_context():
            return actor.logprobs(pack, self.temperature)[0]

    # ---- training ----

    def training_step(self, pack: Pack | ValuePack, batch_idx: int) -> None:
        """Accumulate one pack's gradient; step the optimizer where the pack ends a step."""
        if not len(pack):  # nothing to learn in the whole iteration
            return
        start = time.perf_counter()
        if isinstance(pack, ValuePack):
            self.learn_values(pack)
        else:
            self._learn_policy(pack)
        self.stats.add_time(time.perf_counter() - start)

    def _learn_policy(self, pack: Pack) -> None:
        assert self.actor is not None
        logprobs, entropy = self.actor.logprobs(pack, self.temperature)
        loss, metrics = policy_loss(pack, logprobs, entropy, self.loss)
        self.manual_backward(loss)
        self.stats.actor.add(loss, metrics)
        if pack.step_end:
            self.stats.actor.add_step(self.step_actor())

    # ---- checkpoints ----

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the estimator; leave the frozen reference out: it is loaded from ``policy`` again."""
        super().on_save_checkpoint(checkpoint)
        state = checkpoint["state_dict"]
        for name in [name for name in state if name.startswith("reference.")]:
            del state[name]
        checkpoint["algorithm"] = dict(self.algorithm.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the estimator over, and put the reference's own weights in for the strict load."""
        super().on_load_checkpoint(checkpoint)
        if self.reference is not None:
            checkpoint["state_dict"] |= {f"reference.{k}": v for k, v in self.reference.state_dict().items()}
        _check_fits(self.state_dict(), checkpoint["state_dict"])
        self.algorithm.load_state_dict(checkpoint.get("algorithm", {}))


def _check_fits(ours: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Raise SettingsError where the weights of a checkpoint are not those that this module holds."""
    missing, needless = sorted(ours.keys() - stored.keys()), sorted(stored.keys() - ours.keys())
    if missing or needless:
        examples = ", ".join([f"it lacks {missing[0]}"] * bool(missing) + [f"it has {needless[0]}"] * bool(needless))
        raise SettingsError(
            f"ckpt_path: its weights are those of another model ({examples}; {len(missing)} missing, {len(needless)} "
            "too many); use model.policy, model.actor.lora and model.critic of that run"
        )
