"""Log-probs and entropies of tokens from hidden states, without ever holding all logits."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_LOGITS = 2**24  # 64 MB in float32


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_size: int | None = None,
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
        chunk_size: tokens per chunk; None for as many as have 16 million logits.
        bias: [V] bias of the output layer.

    Raises:
        ValueError: where the temperature or the chunk size is not positive, or N differs.
    """
    chunk_size = max(1, CHUNK_LOGITS // len(weight)) if chunk_size is None else chunk_size
    if not temperature > 0 or chunk_size < 1:
        raise ValueError(f"temperature and chunk_size must be positive, got {temperature} and {chunk_size}")
    if len(hidden) != len(targets):
        raise ValueError(f"{len(hidden)} hidden states but {len(targets)} targets")
    if len(hidden) <= chunk_size:
        logprobs = _logits(hidden, weight, bias, temperature).log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):  # it would not reach the backward pass
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return cast(Any, _Chunked.apply(hidden, weight, targets, temperature, chunk_size, bias))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature


class _Chunked(torch.autograd.Function):
    """Keeps nothing of the size of the vocabulary per token; with p the probabilities and E the entropy,

    d log p[t] / d z[j] = (j = t) - p[j], and d E / d z[j] = -p[j] (log p[j] + E), for logits z over the temperature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N]; the arguments are those of :func:`token_logprobs`."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        chosen, entropy = (hidden.new_empty(len(hidden), dtype=dtype) for _ in range(2))
        for part in _parts(len(hidden), chunk_size):
            logp = _logits(hidden[part], weight, bias, temperature).log_softmax(-1)
            chosen[part] = logp.gather(-1, targets[part, None]).squeeze(-1)
            entropy[part] = -logp.mul_(logp.exp()).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, bias, entropy)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        ctx.set_materialize_grads(False)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Gradients by hidden states [N, H], weight [V, H] and bias [V], from those by log-probs and entropies [N]."""
        hidden, weight, targets, bias, entropy = ctx.saved_tensors
        by_logprob, by_entropy = grads
        wanted = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if wanted[0] else None
        grad_weight = torch.zeros_like(weight, dtype=entropy.dtype) if wanted[1] else None
        grad_bias = None if bias is None or not wanted[5] else torch.zeros_like(bias, dtype=entropy.dtype)
        for part in _parts(len(hidden), ctx.chunk_size):
            logp = _logits(hidden[part], weight, bias, ctx.temperature).log_softmax(-1)
            grad = _logit_gradient(
                logp,
                targets[part],
                entropy[part],
                None if by_logprob is None else by_logprob[part],
                None if by_entropy is None else by_entropy[part],
            )
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad, hidden[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None,
            None,
            None,
            grad_bias if bias is None or grad_bias is None else grad_bias.to(bias.dtype),
        )


def _logit_gradient(
    logp: Tensor, targets: Tensor, entropy: Tensor, by_logprob: Tensor | None, by_entropy: Tensor | None
) -> Tensor:
    """Gradient by a chunk's logits; ``logp`` is used up."""
    if by_entropy is None:
        assert by_logprob is not None
        grad = logp.exp_().mul_(-by_logprob[:, None])
    else:
        grad = (logp + entropy[:, None]).mul_(-by_entropy[:, None])
        if by_logprob is not None:
            grad.sub_(by_logprob[:, None])
        grad.mul_(logp.exp_())
    if by_logprob is not None:
        grad.scatter_add_(-1, targets[:, None], by_logprob[:, None])
    return grad


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left^T right, at the precision of ``total``."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right)
    else:
        total += left.T @ right


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]
