"""Log-probs and entropies of tokens from hidden states, without ever holding all logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_size: int = 2048,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, both [N], differentiable, at least in float32.

    The vocabulary projection runs over ``chunk_size`` tokens at a time, forward and backward: a chunk's logits are
    computed again for its gradient. A single chunk is computed once.

    Args:
        hidden: [N, H] hidden states that predict the targets.
        weight: [V, H] output embedding.
        targets: [N] token ids.
        temperature: divides the logits.
        chunk_size: tokens per chunk.
        bias: [V] bias of the output layer.

    Raises:
        ValueError: where the temperature or the chunk size is not positive, or N differs.
    """
    if not temperature > 0 or chunk_size < 1:
        raise ValueError(f"temperature and chunk_size must be positive, got {temperature} and {chunk_size}")
    if len(hidden) != len(targets):
        raise ValueError(f"{len(hidden)} hidden states but {len(targets)} targets")
    if len(hidden) <= chunk_size:
        return _chunk(hidden, weight, targets, temperature, bias)
    chunks = [
        checkpoint(_chunk, h, weight, t, temperature, bias, use_reentrant=False, preserve_rng_state=False)
        for h, t in zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True)
    ]
    logprobs, entropies = zip(*chunks, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
