"""Attention of rows that each bring a few new tokens, over their cached keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from lit_treerl.sampling.ragged import RaggedTokens

NAME = "lit_treerl_ragged"


def ragged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    ragged: RaggedTokens,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Write the new keys and values into the rows' cache, and let every row look at its own.

    Legend: N new tokens of all rows one after the other, A query heads, H key heads, D head size.

    Args:
        module: the attention layer; its ``layer_idx`` says where its keys lie.
        query: [1, A, N, D].
        key: [1, H, N, D].
        value: [1, H, N, D].
        attention_mask: not used, ``ragged`` says who looks where.
        scaling: factor on the scores.
        ragged: to which row each token belongs; handed to the model's forward.
        kwargs: what else transformers passes; not used.

    Returns:
        [1, N, A, D] and no weights, as transformers expects.
    """
    keys, values = ragged.cache.write(int(module.layer_idx), ragged.row, ragged.position, key[0], value[0])  # type: ignore[arg-type]
    tokens = query[0].transpose(0, 1)
    parts = []
    for group in ragged.groups:
        view = (slice(group.first, group.first + group.rows), slice(None), slice(group.end))
        mine = tokens[group.start : group.stop]
        new = mine[:, None] if group.places is None else mine[group.places]
        out = _attend(new, keys[view], values[view], group.mask, scaling)
        parts.append(out[:, 0] if group.real is None else out[group.real])
    return torch.cat(parts)[None], None


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Scaled dot-product attention in which query heads that share a key head become more queries of it.

    Legend: n rows, Q tokens of each, padded, T positions. Query [n, Q, A, D], key and value [n, H, T, D], mask
    [n, 1, Q, T]; returns [n, Q, A, D].
    """
    n, width, heads, size = query.shape
    shared = heads // key.shape[1]
    folded = query.transpose(1, 2).reshape(n, key.shape[1], shared * width, size)
    mask = mask if shared == 1 or width == 1 else mask.repeat(1, 1, shared, 1)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(n, heads, width, size).transpose(1, 2)


def register() -> str:
    """Make the function known to transformers; returns the name to give as ``attn_implementation``."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, ragged_attention)
    return NAME
