"""Per-token estimates from log-probs, and what is logged of them. Legend: A action tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor, clamp: float = 20.0) -> Tensor:
    """exp(logprobs - old_logprobs) [A], the log-ratio clamped to [-clamp, clamp]."""
    return (logprobs - old_logprobs).clamp(-clamp, clamp).exp()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, clamp: float = 20.0) -> Tensor:
    """Estimate [A] of KL(policy || reference) from the policy's own samples: exp(d) - d - 1, d = ref - logprobs."""
    log_ratio = (ref_logprobs - logprobs).clamp(-clamp, clamp)
    return log_ratio.exp() - log_ratio - 1


def clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    log_ratio_clamp: float = 20.0,
) -> Tensor:
    """[A] bool: the ratio left the trust region in a direction in which the token is being pushed."""
    ratio = probability_ratio(logprobs, old_logprobs, log_ratio_clamp)
    return ((ratio > 1 + clip_high) & (positive > 0)) | ((ratio < 1 - clip_low) & (negative < 0))


@torch.no_grad()
def token_sums(
    new: Tensor, old: Tensor, sampler: Tensor, ref: Tensor | None, entropy: Tensor, clamp: float = 20.0
) -> dict[str, Tensor]:
    """Sums over action tokens [A]: ``tokens`` (their number), ``entropy``, ``approx_kl`` (old to new), ``kl`` (to
    the reference, where there is one), ``sampler_gap`` (|old - sampler|); and ``sampler_gap_max``."""
    gap = (old - sampler).abs()
    sums = {
        "tokens": new.new_tensor(float(len(new))),
        "entropy": entropy.sum(),
        "approx_kl": kl_k3(old, new, clamp).sum(),
        "sampler_gap": gap.sum(),
        "sampler_gap_max": gap.max() if len(gap) else gap.new_zeros(()),
    }
    return sums if ref is None else sums | {"kl": kl_k3(new, ref, clamp).sum()}


def mean_metrics(metrics: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Exact means over the tokens of several packs from their sums; ``*_max`` is the largest, ``tokens`` the total."""
    if not metrics:
        return {}
    stacked = {key: torch.stack([sums[key].double() for sums in metrics]) for key in metrics[0]}
    tokens = float(stacked["tokens"].sum())
    out = {"tokens": tokens}
    for key, values in stacked.items():
        if key != "tokens":
            out[key] = float(values.max()) if key.endswith("_max") else float(values.sum()) / max(tokens, 1.0)
    return out
