"""The slow reference for attention over packs: padded rows with dense masks, which any sdpa model can run.

Legend: N tokens, S segments, R rows (contexts that start at position 0, with all that grows from them), C tokens of
the longest row, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lit_treerl.modeling.pack import Pack


def dense_hidden(backbone: nn.Module, pack: Pack) -> Tensor:
    """Final hidden states [N, H] by boolean masks through PyTorch's attention, one padded row for each context.

    Args:
        backbone: a Hugging Face decoder without its head, loaded with ``attn_implementation="sdpa"``.
        pack: what to compute.
    """
    row, column = row_layout(pack)
    shape = int(row[-1]) + 1, int(column.max()) + 1
    ids, position = pack.ids.new_zeros(shape), pack.position.new_zeros(shape)
    ids[row, column], position[row, column] = pack.ids, pack.position
    mask = row_mask(pack, row, column)[:, None]
    out = backbone(input_ids=ids, position_ids=position, attention_mask=mask, use_cache=False)
    return out.last_hidden_state[row, column]


def segment_ends(segment_parent: Tensor) -> Tensor:
    """One past the last segment below each segment, itself included, [S] from parents [S] in depth-first order."""
    parents = segment_parent.tolist()
    ends = list(range(1, len(parents) + 1))
    for segment in range(len(parents) - 1, -1, -1):
        if (parent := parents[segment]) >= 0:
            ends[parent] = max(ends[parent], ends[segment])
    return torch.tensor(ends, device=segment_parent.device)


def row_layout(pack: Pack) -> tuple[Tensor, Tensor]:
    """Row [N] and column [N] of each token."""
    starts_row = (pack.segment_parent < 0).cumsum(0) - 1
    row = starts_row[pack.segment]
    first = torch.cat([row.new_zeros(1), torch.bincount(row).cumsum(0)[:-1]])
    return row, torch.arange(len(pack), device=row.device) - first[row]


def row_mask(pack: Pack, row: Tensor, column: Tensor) -> Tensor:
    """[R, C, C] bool, True where the query (second index) sees the key (third index).

    In depth-first order a segment k is the segment q or above it just where k <= q < end[k]; with causality over the
    tokens the first half is implied. Padding sees itself alone, so that no row of the softmax is empty.
    """
    shape = int(row[-1]) + 1, int(column.max()) + 1
    segment = pack.segment.new_full(shape, len(pack.segment_parent))
    end = pack.segment.new_zeros(shape)
    segment[row, column] = pack.segment
    end[row, column] = segment_ends(pack.segment_parent)[pack.segment]
    order = torch.arange(shape[1], device=row.device)
    causal = order[None, :] <= order[:, None]
    return (causal & (segment[:, :, None] < end[:, None, :])) | torch.eye(shape[1], dtype=torch.bool, device=row.device)
