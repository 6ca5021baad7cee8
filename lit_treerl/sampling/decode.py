"""From logits to tokens: one uniform number a token, one pass for all rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sample_tokens(
    logits: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample one token a row by inverting the cumulative distribution of softmax(logits / temperature).

    The row's own uniform number decides alone, so neighbours in the batch do not matter.

    Args:
        logits: [B, V].
        temperatures: [B]; 0 takes the most likely token and the log-prob of the plain distribution.
        uniforms: [B] in [0, 1).

    Returns:
        Token ids [B] and their log-probs [B].
    """
    # Double precision keeps the sum of many small probabilities from shifting the draw.
    heat = torch.tensor(temperatures, dtype=torch.float64, device=logits.device)[:, None]
    logprobs = logits.double().div_(torch.where(heat > 0, heat, 1.0)).log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1)
    threshold = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=logits.shape[-1] - 1)
    tokens = torch.where(heat > 0, sampled, logprobs.argmax(-1, keepdim=True))
    return tokens[:, 0].tolist(), logprobs.gather(-1, tokens)[:, 0].tolist()
