"""Rows with unlike numbers of new tokens laid out for one forward: without padding but inside attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_treerl.sampling.kv_cache import RowCache

PADDING = 512  # tokens of padding in attention that cost no more than another call


@dataclass(frozen=True)
class RowGroup:
    """Neighbouring rows whose attention is computed at once.

    Legend: n rows, Q most new tokens of one, T positions in view.

    Attributes:
        first: the first of the rows.
        rows: n.
        start: its first token among all new tokens.
        stop: one past its last.
        end: T.
        mask: [n, 1, Q, T], added to scores: 0 where a token may look, -inf elsewhere.
        places: [n, Q] the tokens of each row, counted from ``start``, padded at the end; None where Q is 1.
        real: [n, Q] True where there is a token; None where Q is 1.
    """

    first: int
    rows: int
    start: int
    stop: int
    end: int
    mask: Tensor
    places: Tensor | None = None
    real: Tensor | None = None


@dataclass(frozen=True)
class RaggedTokens:
    """All new tokens of a forward, row after row.

    Legend: N new tokens.

    Attributes:
        cache: where keys and values go.
        row: [N] each token's row in the cache.
        position: [N] each token's position in its row.
        groups: the rows, in order.
        last: [rows] each row's last token.
    """

    cache: RowCache
    row: Tensor
    position: Tensor
    groups: list[RowGroup]
    last: Tensor

    @classmethod
    def lay_out(cls, cache: RowCache, spans: Sequence[tuple[int, int]]) -> RaggedTokens:
        """Lay out rows 0, 1, ... of ``cache`` with new tokens at positions ``start`` to ``stop - 1`` of each span."""
        device = cache.data.device
        table = torch.tensor(spans, device=device)
        starts, widths = table[:, 0], table[:, 1] - table[:, 0]
        ends = widths.cumsum(0)
        rows = torch.arange(len(spans), device=device)
        row = rows.repeat_interleave(widths)
        position = torch.arange(len(row), device=device) - (ends - widths - starts)[row]
        groups, token = [], 0
        for first, last in _neighbours(spans):
            group = _group(table[first:last], spans[first:last], first, token, cache.data.dtype)
            groups.append(group)
            token = group.stop
        return cls(cache, row, position, groups, ends - 1)


def _group(table: Tensor, spans: Sequence[tuple[int, int]], first: int, token: int, dtype: torch.dtype) -> RowGroup:
    end = max(stop for _, stop in spans)
    widths = [stop - start for start, stop in spans]
    width, total = max(widths), sum(widths)
    order = torch.arange(end, device=table.device)
    if width == 1:
        mask = _added((order <= table[:, :1])[:, None, None], dtype)
        return RowGroup(first, len(spans), token, token + total, end, mask)
    column = order[:width]
    size = table[:, 1] - table[:, 0]
    real = column < size[:, None]
    places = (size.cumsum(0) - size)[:, None] + torch.where(real, column, 0)
    mask = _added(order <= (table[:, :1] + column)[:, None, :, None], dtype)
    return RowGroup(first, len(spans), token, token + total, end, mask, places, real)


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to scores; attention would make one of a boolean mask anew in every layer."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _neighbours(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Cut rows into runs of like numbers of new tokens, those with one token by themselves."""
    widths = [stop - start for start, stop in spans]
    start, widest, total = 0, 0, 0
    for i, width in enumerate(widths):
        grown = max(widest, width)
        padding = grown * (i + 1 - start) - total - width
        alike = (width == 1) == (widths[start] == 1) and padding <= max(PADDING, grown * (i + 1 - start) // 4)
        if not alike:
            yield start, i
            start, grown, total = i, width, 0
        widest, total = grown, total + width
    yield start, len(widths)
