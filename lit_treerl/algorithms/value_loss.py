"""The critic's loss, as pure functions on tensors, and how well it explains what it should predict.

Legend: M values of states or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss

from lit_treerl.settings import check_choice

ValueLossKind = Literal["mse", "bce", "huber"]

NO_SPREAD = 1e-12  # a variance below this share of the largest squared target is float residue


@dataclass(frozen=True)
class ValueLossConfig:
    """Settings of the critic's loss.

    Args:
        kind: ``mse``: half the squared error; ``huber``: the same up to an error of 1, linear beyond; ``bce``: binary
            cross-entropy, the critic's outputs being logits of returns in [0, 1].
        clip: outputs further than this from the old ones earn nothing by going on (as in PPO2: the larger of the
            losses with and without clipping), not at all when null. For ``bce`` it is a distance of logits.

    Raises:
        ValueError: where a setting is out of range.
    """

    kind: ValueLossKind = "mse"
    clip: float | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(ValueLossKind))
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be null or above 0, got {self.clip}")


def predicted_returns(outputs: Tensor, kind: ValueLossKind) -> Tensor:
    """The returns that a critic's outputs stand for: their sigmoid for ``bce``, else they themselves."""
    return outputs.sigmoid() if kind == "bce" else outputs


def value_loss(
    values: Tensor,
    targets: Tensor,
    weights: Tensor,
    old_values: Tensor | None = None,
    config: ValueLossConfig = ValueLossConfig(),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted loss of some of a step's values, and sums of what is worth watching.

    The parts of an optimizer step just add: the weights carry every division. Where the weight is 0 or the target nan
    there is nothing to learn, and nothing of it, placeholders included, reaches loss or gradient.

    Args:
        values: [M] the critic's outputs, logits for ``bce``.
        targets: [M] returns; for ``bce`` they are clipped to [0, 1].
        weights: [M] weights, normalised over the step.
        old_values: [M] outputs at the start of the iteration, of the same kind as ``values``; needed for the clip only.
        config: settings.

    Returns:
        The scalar loss, and detached sums over the values that learn (see
        :func:`~lit_treerl.algorithms.estimates.mean_metrics`): ``tokens`` (their number), ``value`` (predicted
        returns), ``target``, ``value_error`` (absolute), ``value_clip_fraction``.

    Raises:
        ValueError: where shapes differ, or old values are missing.
    """
    if config.clip is not None and old_values is None:
        raise ValueError(f"clip is {config.clip}, but there are no old values")
    for name, other in (("targets", targets), ("weights", weights), ("old_values", old_values)):
        if other is not None and other.shape != values.shape:
            raise ValueError(f"{name} of shape {tuple(other.shape)} for values of shape {tuple(values.shape)}")
    chosen = ((weights != 0) & ~targets.isnan()).nonzero().squeeze(-1)
    new, goal, weight = values[chosen], targets[chosen].to(values.dtype), weights[chosen].to(values.dtype)
    if config.kind == "bce":
        goal = goal.clamp(0.0, 1.0)
    errors, clipped = _errors(new, goal, config.kind), torch.zeros_like(new)
    if config.clip is not None and old_values is not None:
        near = old_values[chosen].to(values.dtype)
        held = _errors(near + (new - near).clamp(-config.clip, config.clip), goal, config.kind)
        clipped = (held > errors).to(new.dtype)
        errors = torch.maximum(errors, held)
    with torch.no_grad():
        guess = predicted_returns(new, config.kind)
        sums = {
            "tokens": new.new_tensor(float(len(new))),
            "value": guess.sum(),
            "target": goal.sum(),
            "value_error": (guess - goal).abs().sum(),
            "value_clip_fraction": clipped.sum(),
        }
    return (weight * errors).sum(), sums


def explained_variance(values: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
    """1 - Var(target - value) / Var(target) over values [M]: 1 is perfect, 0 no better than the targets' mean.

    nan targets and zero weights are left out. nan where the targets do not vary.

    Args:
        values: [M] predicted returns.
        targets: [M] returns.
        weights: [M] weights, all alike when None.
    """
    weight = torch.ones_like(targets, dtype=torch.float64) if weights is None else weights.double()
    kept = ~targets.isnan() & (weight != 0)
    goal, guess, weight = targets[kept].double(), values[kept].double(), weight[kept]
    if not len(goal):
        return float("nan")
    spread = _variance(goal, weight)
    if spread <= NO_SPREAD * float(goal.square().max()):
        return float("nan")
    return 1.0 - _variance(goal - guess, weight) / spread


def _errors(values: Tensor, targets: Tensor, kind: ValueLossKind) -> Tensor:
    if kind == "bce":
        return binary_cross_entropy_with_logits(values, targets, reduction="none")
    if kind == "huber":
        return huber_loss(values, targets, reduction="none")
    return 0.5 * (values - targets).square()


def _variance(values: Tensor, weights: Tensor) -> float:
    share = weights / weights.sum()
    return float((share * (values - (share * values).sum()).square()).sum())
