"""How the tokens of a pack look at each other: blocks that read on from a path, and batches of like blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_treerl.modeling.pack import Pack

SLACK = 4096  # query-key pairs of padding that cost no more than another call
SHARE = 0.25  # of a batch's pairs that may be padding besides


@dataclass(frozen=True)
class Block:
    """Neighbouring tokens that follow one another in one context, and what comes before them in it.

    From a fork on, the first child's tokens follow their parent's without a break, so a block runs from where another
    child begins (or a context) down to a leaf: a tree has as many blocks as leaves.

    Attributes:
        start: its first token.
        stop: one past its last.
        path: the tokens before it in its context, as (start, stop) of runs in order.
    """

    start: int
    stop: int
    path: tuple[tuple[int, int], ...]

    @property
    def queries(self) -> int:
        """Tokens that look."""
        return self.stop - self.start

    @property
    def keys(self) -> int:
        """Tokens that are looked at: the whole context."""
        return self.queries + sum(stop - start for start, stop in self.path)


@dataclass(frozen=True)
class BlockBatch:
    """Blocks of like shape whose attention is computed at once.

    Legend: B blocks, Q most queries of one, K most keys, M queries of all. Padding is at the end of every row.

    Attributes:
        query: [B, Q] tokens that look.
        key: [B, K] tokens that are looked at.
        real: [M] which of the B * Q queries are tokens; None where all are.
        mask: [B, 1, Q, K] True where a query sees a key; None where plain causality says the same.
        queries: [B] of each block.
        keys: [B] of each block.
    """

    query: Tensor
    key: Tensor
    real: Tensor | None
    mask: Tensor | None
    queries: tuple[int, ...]
    keys: tuple[int, ...]


@dataclass(frozen=True)
class TreeBlocks:
    """A whole pack.

    Attributes:
        batches: its blocks.
        order: [N] where each token comes among the queries of all batches.
    """

    batches: list[BlockBatch]
    order: Tensor

    @classmethod
    def of(cls, pack: Pack) -> TreeBlocks:
        """Lay a pack out, on its own device."""
        runs = list(_batches(blocks(pack)))
        order = torch.empty(len(pack), dtype=torch.long)
        count = 0
        for block in (block for run in runs for block in run):
            order[block.start : block.stop] = torch.arange(count, count + block.queries)
            count += block.queries
        device = pack.ids.device
        return cls([_batch(run, device) for run in runs], order.to(device))


def blocks(pack: Pack) -> list[Block]:
    """The blocks of a pack in the order of their tokens."""
    parents = pack.segment_parent.tolist()
    stops = torch.bincount(pack.segment, minlength=len(parents)).cumsum(0).tolist()
    starts = [0, *stops[:-1]]
    first: list[int] = []  # by segment: the first segment of its block
    paths: dict[int, tuple[tuple[int, int], ...]] = {}  # by first segment
    ends: dict[int, int] = {}
    for segment, parent in enumerate(parents):
        if parent >= 0 and parent == segment - 1:
            first.append(first[parent])
        else:
            first.append(segment)
            above = () if parent < 0 else (*paths[first[parent]], (starts[first[parent]], stops[parent]))
            paths[segment] = above
        ends[first[segment]] = stops[segment]
    return [Block(starts[segment], ends[segment], path) for segment, path in paths.items()]


def _batches(found: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks of like shape: whole contexts by themselves, else of like numbers of queries, then of keys."""

    def kind(block: Block) -> tuple[bool, int]:
        return not block.path, block.queries.bit_length()

    run: list[Block] = []
    queries = keys = pairs = 0
    for block in sorted(found, key=lambda block: (*kind(block), block.keys, block.start)):
        most = max(queries, block.queries), max(keys, block.keys)
        total = pairs + block.queries * block.keys
        padded = (len(run) + 1) * most[0] * most[1]
        if run and (kind(block) != kind(run[0]) or padded - total > SLACK + SHARE * padded):
            yield run
            run, most, total = [], (block.queries, block.keys), block.queries * block.keys
        run.append(block)
        (queries, keys), pairs = most, total
    if run:
        yield run


def _batch(run: Sequence[Block], device: torch.device) -> BlockBatch:
    n, m = tuple(block.queries for block in run), tuple(block.keys for block in run)
    shape = len(run), max(n), max(m)
    query, key = torch.zeros(shape[:2], dtype=torch.long), torch.zeros(shape[0], shape[2], dtype=torch.long)
    for row, block in enumerate(run):
        query[row, : block.queries] = torch.arange(block.start, block.stop)
        key[row, : block.keys] = torch.cat([torch.arange(*part) for part in (*block.path, (block.start, block.stop))])
    sizes, before = torch.tensor(n), torch.tensor(m) - torch.tensor(n)
    column = torch.arange(shape[1])
    real = None if min(n) == shape[1] else (column < sizes[:, None]).flatten().nonzero().squeeze(-1).to(device)
    mask = None
    if run[0].path:
        mask = (torch.arange(shape[2]) <= (before[:, None] + column)[:, :, None])[:, None].to(device)
    return BlockBatch(query.to(device), key.to(device), real, mask, n, m)
