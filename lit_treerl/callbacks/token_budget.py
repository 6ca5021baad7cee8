"""TokenBudget: a run ends by what it sampled, so that methods can be compared at equal tokens."""

from __future__ import annotations

from typing import Any

import lightning as L

from lit_treerl.actor_critic import LitActorCritic
from lit_treerl.callbacks.tree_sampler import TreeSampler
from lit_treerl.settings import SettingsError


class TokenBudget(L.Callback):
    """Stops the run after the iteration in which its sampled tokens reach a total.

    Counts ``rollout/sampled_tokens`` of all iterations, those of a critic's warm-up too. A run that goes on from a
    checkpoint goes on counting.

    Args:
        max_sampled_tokens: that total; None only counts.

    Raises:
        ValueError: where the total is below 1.
    """

    def __init__(self, max_sampled_tokens: int | None = None) -> None:
        if max_sampled_tokens is not None and max_sampled_tokens < 1:
            raise ValueError(f"max_sampled_tokens must be at least 1, got {max_sampled_tokens}")
        self.max_sampled_tokens = max_sampled_tokens
        self.sampled = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse a total where nothing is sampled in training."""
        if stage == "fit" and self.max_sampled_tokens is not None and not isinstance(pl_module, LitActorCritic):
            raise SettingsError(
                f"max_sampled_tokens: a {type(pl_module).__name__} samples nothing in training; use trainer.max_epochs"
            )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Train no further, where the checkpoint's run had reached the total."""
        self._stop_if_reached(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count the iteration's tokens."""
        sampler = next(c for c in trainer.callbacks if isinstance(c, TreeSampler))  # type: ignore[attr-defined]
        self.sampled += int(sampler.stats.get("rollout/sampled_tokens", 0))  # supervised training has none
        self._stop_if_reached(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The tokens so far."""
        return {"sampled": self.sampled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.sampled = state_dict["sampled"]

    def _stop_if_reached(self, trainer: L.Trainer) -> None:
        if self.max_sampled_tokens is not None and self.sampled >= self.max_sampled_tokens:
            trainer.should_stop = True
