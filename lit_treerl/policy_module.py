"""LitPolicy: what every module that trains a policy shares: actor, optimizer steps, evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import lightning as L
import torch

from lit_treerl.metrics import ALL, EpisodeMetrics
from lit_treerl.optimizers import OptimizerConfig, build_optimizer, check_rate, step_now
from lit_treerl.policies import policy_path
from lit_treerl.rollout.batches import TaskBatch
from lit_treerl.rollout.episodes import EPISODE_NUMBERS, GRADES, episode_numbers, episodes

if TYPE_CHECKING:
    from lit_treerl.modeling.actor import Actor


@dataclass(frozen=True)
class ActorConfig:
    """How the actor is loaded.

    Args:
        dtype: of the weights.
        gradient_checkpointing: compute activations again in the backward pass, to save memory.
        lora: arguments of ``peft.LoraConfig``; None trains all weights.
        logprob_chunk: tokens per chunk of the vocabulary projection; null for chunks of 16 million logits.
        attention: how packs are computed, by actor, reference and critic alike: ``tree``, or the slow reference
            ``dense``.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    lora: dict[str, Any] | None = None
    logprob_chunk: int | None = None
    attention: Literal["tree", "dense"] = "tree"


def iteration_of(trainer: L.Trainer) -> int:
    """Number of the iteration that comes next or is under way, from 0.

    Lightning's ``current_epoch`` is one behind while it goes on from a checkpoint that was written at an epoch's end.
    """
    return trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]


def first(found: Any) -> Any:
    """Lightning gives one optimizer or scheduler as itself, several as a list."""
    return found[0] if isinstance(found, list) else found


class LitPolicy(L.LightningModule):
    """An actor with manual optimisation, evaluated by the episodes that the sampler callback attaches.

    Args:
        policy: Hugging Face model folder or hub name; ``embedded`` is the small policy in the package.
        actor_lr: learning rate.
        actor: how the actor is loaded.
        optimizer: AdamW and its schedule.

    Attributes:
        within_iteration: its trees have begun to change what a checkpoint holds, and that is not over yet.
    """

    def __init__(
        self,
        policy: str = "embedded",
        actor_lr: float = 1e-6,
        actor: ActorConfig = ActorConfig(),
        optimizer: OptimizerConfig = OptimizerConfig(),
    ) -> None:
        super().__init__()
        check_rate("model.actor_lr", actor_lr)
        self.automatic_optimization = False
        self.policy, self.actor_lr = policy, actor_lr
        self.actor_config, self.optimizer_config = actor, optimizer
        self.temperature = 1.0  # of the sampling; the sampler callback sets it
        self.actor: Actor | None = None
        self.within_iteration = False
        self.last_evaluation: dict[str, dict[str, float]] = {}
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))  # optimizer steps: version of the weights

    # ---- model and optimizer ----

    def load_actor(self) -> Actor:
        """Load the policy's starting weights."""
        from lit_treerl.modeling.actor import Actor

        config = self.actor_config
        return Actor.from_pretrained(
            policy_path(self.policy),
            dtype=getattr(torch, config.dtype),
            gradient_checkpointing=config.gradient_checkpointing,
            lora=config.lora,
            logprob_chunk=config.logprob_chunk,
            attention=config.attention,
        )

    def configure_model(self) -> None:
        """Load the actor once (Lightning calls this for every stage)."""
        if self.actor is None:
            self.actor = self.load_actor()

    def configure_optimizers(self) -> Any:
        """AdamW over the trainable weights, with the schedule per optimizer step."""
        assert self.actor is not None
        optimizer, schedule = build_optimizer(self.actor.trained(), self.actor_lr, self.optimizer_config)
        return [optimizer], [schedule]

    def step_actor(self) -> float | None:
        """Clip, step and clear the gradients; returns their norm, None where it was not finite and the step skipped."""
        assert self.actor is not None
        optimizer, schedule = first(self.optimizers()), first(self.lr_schedulers())
        norm = step_now(self.actor.trained(), optimizer, schedule, self.optimizer_config.max_grad_norm)
        if norm is not None:
            self.updates += 1
        return norm

    def iteration_values(self) -> dict[str, float]:
        """Numbers of the iteration that just ended, under the names they are logged by."""
        return {}

    def on_train_epoch_end(self) -> None:
        """Log the iteration."""
        self.log_dict(self.iteration_values())

    # ---- evaluation ----

    def watch_sources(self, sources: Sequence[str]) -> None:
        """Announce the data sources that evaluation will meet (the same on all ranks)."""
        self.episode_metrics = EpisodeMetrics(sources, EPISODE_NUMBERS).to(self.device)

    def validation_step(self, batch: TaskBatch, batch_idx: int) -> None:
        """Count the batch's episodes."""
        self._count(batch)

    def test_step(self, batch: TaskBatch, batch_idx: int) -> None:
        """Count the batch's episodes."""
        self._count(batch)

    def predict_step(self, batch: TaskBatch, batch_idx: int) -> list[dict[str, Any]]:
        """Rows of the batch's episodes."""
        return [row for group in batch.done() for row in episodes(group)]

    def on_validation_epoch_end(self) -> None:
        """Log ``val/...``; the validation before the first iteration goes on record too."""
        values = self._evaluated("val")
        if self.trainer.sanity_checking:  # Lightning logs nothing here by itself
            for logger in self.loggers:
                epoch = iteration_of(self.trainer) - 1  # -1 in a new run, the last one done in a resumed run
                logger.log_metrics(values | {"epoch": epoch}, step=self.trainer.global_step)
        else:
            self.log_dict(values)

    def on_test_epoch_end(self) -> None:
        """Log ``test/...``."""
        self.log_dict(self._evaluated("test"))

    def _count(self, batch: TaskBatch) -> None:
        rows = [row for group in batch.done() for row in episodes(group)]
        self.episode_metrics.update([(row["data_source"], episode_numbers(row)) for row in rows])

    def _evaluated(self, stage: str) -> dict[str, float]:
        self.last_evaluation = self.episode_metrics.compute()
        self.episode_metrics.reset()
        out = {f"{stage}/{name}": value for name, value in self.last_evaluation[ALL].items()}
        for source, means in self.last_evaluation.items():
            if source != ALL and len(self.last_evaluation) > 2:
                out |= {f"{stage}/{name}/{source}": means[name] for name in (*GRADES, "success_rate") if name in means}
        return out
