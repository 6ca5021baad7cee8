"""CriticWarmup: the first iterations teach the critic alone."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L

from lit_treerl.actor_critic import LitActorCritic
from lit_treerl.warmup_trees import WarmupTrees


class CriticWarmup(L.Callback):
    """Keeps the actor frozen until the critic explains held-out tasks, or the cap is reached.

    Part of our reconstruction of TreePPO, of which only the abstract is public: the value tree supervises critic
    warm-up. Warm-up iterations are ordinary ones: they count in ``trainer.max_epochs``, their rollouts are logged and
    paid for, and an interrupted warm-up is resumed where it stopped. Once over it never comes back.

    Args:
        iterations: most iterations of warm-up; 0 for none.
        threshold: explained variance 1 - Var(y - V) / Var(y) on held-out tasks that ends it.
        passes: passes over the gathered trees in each iteration.
        held_out: share of the tasks, chosen by content, that the critic does not learn from during warm-up.
        replay: most iterations whose trees are gathered.

    Raises:
        ValueError: where a setting is out of range.
    """

    def __init__(
        self,
        iterations: int = 0,
        threshold: float = 0.3,
        passes: int = 2,
        held_out: float = 0.25,
        replay: int = 8,
    ) -> None:
        for name, good, right in (
            ("iterations", iterations >= 0, "at least 0"),
            ("passes", passes >= 1, "at least 1"),
            ("replay", replay >= 1, "at least 1"),
            ("held_out", 0 < held_out < 1, "between 0 and 1"),
            ("threshold", threshold <= 1, "at most 1"),
        ):
            if not good:
                raise ValueError(f"warmup.{name} must be {right}, got {locals()[name]}")
        self.iterations, self.threshold, self.passes = iterations, threshold, passes
        self.held_out, self.replay = held_out, replay
        self.done = 0  # iterations of warm-up so far
        self.over = iterations == 0
        self._trees = WarmupTrees(held_out, passes, replay)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Ask for a critic, for every stage: a checkpoint of such a run holds one."""
        if isinstance(pl_module, LitActorCritic) and self.iterations:
            pl_module.critic_wanted = True
        if stage == "fit" and self.iterations and 0 <= (trainer.max_epochs or 0) <= self.iterations:
            warnings.warn(
                f"warmup.iterations {self.iterations} may use up trainer.max_epochs {trainer.max_epochs}: the "
                "actor would not learn at all",
                stacklevel=2,
            )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let the actor rest, where the warm-up is not over."""
        self._apply(pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure the critic, log it, and end the warm-up where it is time."""
        if self.over or not isinstance(pl_module, LitActorCritic):
            return
        self.done += 1
        measured = pl_module.measure_warmup()
        pl_module.log_dict({"warmup/explained_variance": measured, "warmup/iterations": float(self.done)})
        self.over = measured >= self.threshold or self.done >= self.iterations  # nan reaches no threshold
        if self.over:
            self._trees = WarmupTrees(self.held_out, self.passes, self.replay)  # gives the memory back
        self._apply(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What an interrupted warm-up goes on from."""
        return {"done": self.done, "over": self.over, "trees": self._trees.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.done = state_dict["done"]
        self.over = state_dict["over"] or self.done >= self.iterations  # the cap may have been lowered
        if not self.over:
            self._trees.load_state_dict(state_dict["trees"])

    def _apply(self, module: L.LightningModule) -> None:
        if isinstance(module, LitActorCritic):
            module.warmup = None if self.over else self._trees
