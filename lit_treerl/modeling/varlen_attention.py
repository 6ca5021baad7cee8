"""Tree attention by PyTorch's variable-length flash kernel, where a GPU has it: no padding at all."""

from __future__ import annotations

import itertools
from typing import cast

import torch
from torch import Tensor

from lit_treerl.modeling.tree_blocks import BlockBatch

HEAD_SIZES = range(8, 257, 8)
DTYPES = (torch.float16, torch.bfloat16)


def fits_varlen(query: Tensor) -> bool:
    """Whether the flash kernel takes these queries: half precision on an NVIDIA GPU of compute capability 8 or more."""
    if query.device.type != "cuda" or query.dtype not in DTYPES or query.shape[-1] not in HEAD_SIZES:
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(query.device) >= (8, 0)


def varlen(query: Tensor, key: Tensor, value: Tensor, batch: BlockBatch, scaling: float | None) -> Tensor:
    """One batch of blocks; [N, heads, D] in, [M, A, D] out.

    Causality is aligned to the ends of queries and keys, as a block's queries are the last of its keys.
    """
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = (_real(index, sizes) for index, sizes in ((batch.query, batch.queries), (batch.key, batch.keys)))
    out = varlen_attn(
        query[queries],
        key[keys],
        value[keys],
        _bounds(batch.queries, query.device),
        _bounds(batch.keys, query.device),
        max(batch.queries),
        max(batch.keys),
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return cast(Tensor, out)  # without the sums that it gives on request


def _real(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The rows of ``index`` one after the other, without their padding."""
    return torch.cat([row[:size] for row, size in zip(index, sizes, strict=True)])


def _bounds(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(list(itertools.accumulate(sizes, initial=0)), dtype=torch.int32, device=device)
