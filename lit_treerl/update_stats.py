"""What an iteration's optimizer steps did, gathered exactly over packs, of actor and critic apart."""

from __future__ import annotations

from statistics import fmean

from torch import Tensor

from lit_treerl.algorithms.estimates import mean_metrics

NAMES = ("entropy", "clip_fraction", "sampler_gap", "sampler_gap_max", "approx_kl", "kl")


class StepStats:
    """Losses, gradient norms and token sums of one model's optimizer steps in one iteration."""

    def __init__(self) -> None:
        self.skipped = 0
        self._sums: list[dict[str, Tensor]] = []
        self._norms: list[float] = []
        self._losses: list[float] = [0.0]  # of each optimizer step; its packs' losses add

    def add(self, loss: Tensor, sums: dict[str, Tensor]) -> None:
        """Add one pack's loss and its token sums."""
        self._losses[-1] += float(loss.detach())
        if sums:
            self._sums.append(sums)

    def add_step(self, grad_norm: float | None) -> None:
        """Count an optimizer step; None is one that was skipped for a gradient that is not finite."""
        self._losses.append(0.0)
        if grad_norm is None:
            self.skipped += 1
        else:
            self._norms.append(grad_norm)

    @property
    def loss(self) -> float:
        """Mean over the steps, 0 of none."""
        return fmean(self._losses[:-1] or [0.0])

    @property
    def grad_norm(self) -> float:
        """Mean over the steps that were taken, 0 of none."""
        return fmean(self._norms or [0.0])

    def means(self) -> dict[str, float]:
        """Means of the token sums."""
        return mean_metrics(self._sums)


class UpdateStats:
    """What one iteration's updates did; begun anew by :meth:`begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, zero_signal_groups: int = 0) -> None:
        """Start an iteration."""
        self.zero_signal_groups = zero_signal_groups
        self.seconds = 0.0
        self.actor, self.critic = StepStats(), StepStats()

    def add_time(self, seconds: float) -> None:
        """Add time spent on updates."""
        self.seconds += seconds

    def values(self) -> dict[str, float]:
        """The iteration's numbers under the names they are logged by; ``train/kl`` is 0 without a reference."""
        means = self.actor.means()
        return {f"train/{name}": means.get(name, 0.0) for name in NAMES} | {
            "train/loss_actor": self.actor.loss,
            "train/grad_norm_actor": self.actor.grad_norm,
            "train/skipped_steps": self.actor.skipped + self.critic.skipped,
            "rollout/zero_signal_groups": self.zero_signal_groups,
            "time/train": self.seconds,
        }

    def critic_values(self) -> dict[str, float]:
        """The same for the critic."""
        means = self.critic.means()
        return {
            "train/loss_critic": self.critic.loss,
            "train/grad_norm_critic": self.critic.grad_norm,
            "train/value_mean": means.get("value", 0.0),
        }
