"""Policy losses over unique tokens, as pure functions on tensors.

All leaves through a token share its log-prob and its old log-prob, hence its ratio. The sum over those leaves of the
clipped surrogate therefore needs two numbers of a token only: the sum of its leaves' positive weighted advantages and
the sum of the negative ones. Loss and gradient equal those of training every leaf's trajectory apart.

Legend: A action tokens. None of the functions but :func:`policy_loss` and :func:`supervised_loss` may see the
placeholders that other tokens carry.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from torch import Tensor

from lit_treerl.algorithms.estimates import clipped, kl_k3, probability_ratio, token_sums

if TYPE_CHECKING:
    from lit_treerl.modeling.pack import Pack


@dataclass(frozen=True)
class LossConfig:
    """Settings of the policy loss.

    Args:
        clip_low: the ratio is clipped below at 1 - clip_low, where the advantage is negative.
        clip_high: the ratio is clipped above at 1 + clip_high, where the advantage is positive.
        dual_clip: the ratio is capped at this where the advantage is negative, not at all when null.
        kl_coef: coefficient of the KL to the frozen reference, which is not loaded at 0.
        entropy_coef: coefficient of the entropy bonus.
        log_ratio_clamp: log-ratios are clamped to plus and minus this before they are exponentiated.
        importance_cap: cap of the weights exp(old - sampler log-prob) that correct for a sampler whose log-probs
            differ from the trainer's (truncated importance sampling), no such weights when null.

    Raises:
        ValueError: where a setting is out of range.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    log_ratio_clamp: float = 20.0
    importance_cap: float | None = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.clip_low <= 1 or not self.clip_high > 0:
            raise ValueError(f"clip_low must be in (0, 1] and clip_high above 0, got {self.clip_low}, {self.clip_high}")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be null or above 1, got {self.dual_clip}")
        if self.kl_coef < 0:
            raise ValueError(f"kl_coef must not be negative, got {self.kl_coef}")
        if not self.log_ratio_clamp > 0:
            raise ValueError(f"log_ratio_clamp must be above 0, got {self.log_ratio_clamp}")
        if self.importance_cap is not None and not self.importance_cap > 0:
            raise ValueError(f"importance_cap must be null or above 0, got {self.importance_cap}")

    @property
    def skips_zero(self) -> bool:
        """Whether tokens without advantage can be left out of the forward exactly."""
        return self.kl_coef == 0 and self.entropy_coef == 0


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
    importance: Tensor | None = None,
    log_ratio_clamp: float = 20.0,
) -> Tensor:
    """PPO's clipped objective [A], to be maximised: min(r, 1 + high) * P + min(max(r, 1 - low), dual) * N.

    Args:
        logprobs: [A] log-probs that are learned.
        old_logprobs: [A] log-probs at the start of the iteration.
        positive: [A] P >= 0, the sum over a token's leaves of weight * max(advantage, 0).
        negative: [A] N <= 0, the sum of weight * min(advantage, 0).
        clip_low: see :class:`LossConfig`, as the other settings.
        clip_high: see there.
        dual_clip: see there.
        importance: [A] factors of :func:`importance_weights`.
        log_ratio_clamp: see there.
    """
    ratio = probability_ratio(logprobs, old_logprobs, log_ratio_clamp)
    pushed_down = ratio.clamp(min=1 - clip_low, max=dual_clip)
    objective = ratio.clamp(max=1 + clip_high) * positive + pushed_down * negative
    return objective if importance is None else objective * importance


def importance_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float, clamp: float = 20.0) -> Tensor:
    """Truncated importance weights [A], min(exp(old - sampler), cap), detached."""
    return probability_ratio(old_logprobs, sampler_logprobs, clamp).clamp(max=cap).detach()


def policy_loss(pack: Pack, logprobs: Tensor, entropy: Tensor, config: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of one pack, and sums of what is worth watching.

    The packs of an optimizer step just add: the weights carry every division. KL and entropy take a token's total
    leaf weight.

    Args:
        pack: tokens with their credit; ``old_logprobs`` None means that the policy is still the one that sampled.
        logprobs: [N] log-probs of the pack's tokens.
        entropy: [N] entropies of the distributions they were drawn from.
        config: settings.

    Returns:
        The scalar loss, and detached sums over the pack's trained action tokens, see :func:`mean_metrics`.

    Raises:
        ValueError: where the KL is wanted and the pack has no reference log-probs.
    """
    if config.kl_coef and pack.ref_logprobs is None:
        raise ValueError(f"kl_coef is {config.kl_coef}, but the pack has no reference log-probs")
    pack, new, entropy = _action_tokens(pack, logprobs, entropy)
    old = new.detach() if pack.old_logprobs is None else pack.old_logprobs
    limits = {"clip_low": config.clip_low, "clip_high": config.clip_high, "log_ratio_clamp": config.log_ratio_clamp}
    importance = None
    if config.importance_cap is not None:
        importance = importance_weights(old, pack.sampler_logprobs, config.importance_cap, config.log_ratio_clamp)
    loss = -clipped_surrogate(
        new, old, pack.positive, pack.negative, dual_clip=config.dual_clip, importance=importance, **limits
    ).sum()
    if config.kl_coef and pack.ref_logprobs is not None:
        loss = loss + config.kl_coef * (pack.weight * kl_k3(new, pack.ref_logprobs, config.log_ratio_clamp)).sum()
    if config.entropy_coef:
        loss = loss - config.entropy_coef * (pack.weight * entropy).sum()
    sums = token_sums(new, old, pack.sampler_logprobs, pack.ref_logprobs, entropy, config.log_ratio_clamp)
    return loss, sums | {"clip_fraction": clipped(new.detach(), old, pack.positive, pack.negative, **limits).sum()}


def supervised_loss(pack: Pack, logprobs: Tensor) -> Tensor:
    """Weighted negative log-likelihood of a pack of demonstrations, a sum; ``weight`` carries every division."""
    chosen = (pack.weight != 0).nonzero().squeeze(-1)
    return -(pack.weight[chosen] * logprobs[chosen]).sum()


def _action_tokens(pack: Pack, logprobs: Tensor, entropy: Tensor) -> tuple[Pack, Tensor, Tensor]:
    """The three with their action tokens only: placeholders go before anything is exponentiated."""
    chosen = pack.action.nonzero().squeeze(-1)
    moved = {
        f.name: value[chosen]
        for f in fields(pack)
        if isinstance(value := getattr(pack, f.name), Tensor) and f.name != "segment_parent"
    }
    return replace(pack, **moved), logprobs[chosen], entropy[chosen]
