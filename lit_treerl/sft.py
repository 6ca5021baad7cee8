"""LitSFT: supervised warm start on episodes, evaluated by rollouts like every other policy."""

from __future__ import annotations

import time

from lit_treerl.algorithms.losses import supervised_loss
from lit_treerl.modeling.pack import Pack
from lit_treerl.optimizers import OptimizerConfig
from lit_treerl.policy_module import ActorConfig, LitPolicy
from lit_treerl.update_stats import UpdateStats


class LitSFT(LitPolicy):
    """Imitates demonstrations: weighted negative log-likelihood of their actions (and observations, if weighted).

    Goes with ``EpisodeDataModule``.

    Args:
        policy: Hugging Face model folder or hub name; ``embedded-untrained`` starts from random weights.
        actor_lr: learning rate.
        actor: how the actor is loaded.
        optimizer: AdamW and its schedule.
    """

    def __init__(
        self,
        policy: str = "embedded",
        actor_lr: float = 1e-5,
        actor: ActorConfig = ActorConfig(),
        optimizer: OptimizerConfig = OptimizerConfig(),
    ) -> None:
        super().__init__(policy, actor_lr, actor, optimizer)
        self.stats = UpdateStats()

    def on_train_epoch_start(self) -> None:
        """Start counting."""
        self.stats.begin()

    def training_step(self, pack: Pack, batch_idx: int) -> None:
        """Accumulate one pack's gradient; step the optimizer where the pack ends a step."""
        start = time.perf_counter()
        assert self.actor is not None
        logprobs, _ = self.actor.logprobs(pack)
        loss = supervised_loss(pack, logprobs)
        self.manual_backward(loss)
        self.stats.actor.add(loss, {})
        if pack.step_end:
            self.stats.actor.add_step(self.step_actor())
        self.stats.add_time(time.perf_counter() - start)

    def iteration_values(self) -> dict[str, float]:
        """Loss, gradient norm and seconds of the epoch."""
        values = self.stats.values()
        return {name: values[name] for name in ("train/loss_actor", "train/grad_norm_actor", "time/train")}
