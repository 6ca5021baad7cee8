"""Attention of a few new tokens over cached keys, without repeating the keys of grouped heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "lit_treerl_cached"


def cached_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention in which the query heads that share a key head become more queries of it.

    Legend: n rows, A query heads, H key heads, Q new tokens, T positions, D head size.

    Args:
        module: the attention layer; not used.
        query: [n, A, Q, D].
        key: [n, H, T, D].
        value: [n, H, T, D].
        attention_mask: [n, 1, Q, T], True where a token may look.
        scaling: factor on the scores.
        kwargs: what else transformers passes; not used.

    Returns:
        [n, Q, A, D] and no weights, as transformers expects.
    """
    n, heads, width, size = query.shape
    shared = heads // key.shape[1]
    folded = query.reshape(n, key.shape[1], shared * width, size)
    mask = attention_mask if shared == 1 or width == 1 else attention_mask.repeat(1, 1, shared, 1)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(n, heads, width, size).transpose(1, 2).contiguous(), None


def register() -> str:
    """Make the function known to transformers; returns the name to give as ``attn_implementation``."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, cached_attention)
    return NAME
