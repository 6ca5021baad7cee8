"""Tree attention: every unique token of a pack is computed once and looks at its own context only.

A block's queries attend to the keys and values of its path, gathered, and to its own. Nothing but attention is padded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_treerl.modeling.pack import Pack
from lit_treerl.modeling.tree_blocks import BlockBatch, TreeBlocks
from lit_treerl.modeling.varlen_attention import fits_varlen, varlen

NAME = "lit_treerl_tree"


def tree_hidden(backbone: nn.Module, pack: Pack) -> Tensor:
    """Final hidden states [N, H] of a pack's tokens, computed as one row of N tokens.

    Args:
        backbone: a Hugging Face decoder without its head, loaded with ``attn_implementation`` :data:`NAME`.
        pack: what to compute.
    """
    tree = TreeBlocks.of(pack)
    out = backbone(input_ids=pack.ids[None], position_ids=pack.position[None], use_cache=False, tree=tree)
    return out.last_hidden_state[0]


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    tree: TreeBlocks | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a pack's N tokens as transformers calls it.

    Legend: A query heads, H key heads, D head size.

    Args:
        module: the attention layer; not used.
        query: [1, A, N, D].
        key: [1, H, N, D].
        value: [1, H, N, D].
        attention_mask: not used, ``tree`` says who looks where.
        scaling: factor on the scores.
        tree: handed to the model's forward; None is an ordinary causal forward, of [B, heads, N, D].
        kwargs: what else transformers passes; not used.

    Returns:
        [1, N, A, D] and no weights.

    Raises:
        ValueError: where an ordinary forward goes on from cached keys.
    """
    if tree is None:
        if query.shape[2] != key.shape[2]:
            raise ValueError(f"{NAME} takes no key/value cache; load the model with 'sdpa' to generate")
        causal = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return causal.transpose(1, 2), None
    q, k, v = (_as_autocast(x[0].transpose(0, 1)) for x in (query, key, value))
    attend = varlen if fits_varlen(q) else _padded
    parts = [attend(q, k, v, batch, scaling) for batch in tree.batches]
    return torch.cat(parts).index_select(0, tree.order)[None], None


def _as_autocast(x: Tensor) -> Tensor:
    """``x`` in the precision of autocast where that is on: norms and rotary embeddings give float32."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _padded(query: Tensor, key: Tensor, value: Tensor, batch: BlockBatch, scaling: float | None) -> Tensor:
    """One batch through PyTorch's scaled dot product attention; [N, heads, D] in, [M, A, D] out."""
    q, k, v = (x[index].transpose(1, 2) for x, index in ((query, batch.query), (key, batch.key), (value, batch.key)))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=batch.mask, is_causal=batch.mask is None, scale=scaling, enable_gqa=True
    )
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat if batch.real is None else flat.index_select(0, batch.real)


def register() -> None:
    """Make the function known to transformers under :data:`NAME`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """In place of the masks that transformers makes for its own kernels.

    Raises:
        ValueError: where a mask is given, which would be overlooked.
    """
    if attention_mask is not None:
        raise ValueError(f"{NAME} takes no attention mask; load the model with 'sdpa' for padded batches")
