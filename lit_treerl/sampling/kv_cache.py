"""Keys and values: of the running rows, each at its own position, and of prefixes kept for reuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_treerl.sampling.prefix_index import BlockIndex, Match

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

POOL_BYTES = 1 << 26  # by so much the prefix store grows
COPY_BYTES = 1 << 23  # bounds the temporary copies between pools and rows
CACHE_BYTES = 1 << 30  # of the prefix store where nothing else is said, as vLLM's on CPU
CACHE_CONTEXTS = 4  # but at least these: a large model's context alone may take more


def default_cache_tokens(token_bytes: int, max_context: int) -> int:
    """Tokens that a prefix store keeps where nobody says how many: 1 GiB of them, but at least four whole contexts.

    Args:
        token_bytes: memory of one token, see :attr:`RowCache.token_bytes`.
        max_context: most tokens of a context.
    """
    return max(CACHE_BYTES // token_bytes, CACHE_CONTEXTS * max_context)


class RowCache:
    """Keys and values of the rows that are running.

    Legend: R rows, H key heads, T positions, D head size, N new tokens.

    Args:
        config: of the decoder.
        dtype: of keys and values.
        device: where they lie.
        block: positions in a block of the prefix store.
        max_rows: most rows that will ever run.
        max_length: most positions that a row will ever have.

    Attributes:
        data: [2 * layers, R, H, T, D], keys and values of a layer one after the other.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        device: torch.device,
        *,
        block: int,
        max_rows: int,
        max_length: int,
    ) -> None:
        heads = config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.block, self._max_rows, self._max_length = block, max_rows, max_length
        self.data = torch.zeros(2 * config.num_hidden_layers, 0, heads, block, size, dtype=dtype, device=device)

    @property
    def token_bytes(self) -> int:
        """Memory of one position of one row, in bytes."""
        two_layers, _, heads, _, size = self.data.shape
        return two_layers * heads * size * self.data.element_size()

    def reserve(self, rows: int, length: int) -> None:
        """Make room for ``rows`` rows of ``length`` positions; doubles what is too small, so growth is rare."""
        two_layers, old_rows, heads, old_length, size = self.data.shape
        if rows <= old_rows and length <= old_length:
            return
        new_rows = max(rows, min(2 * old_rows, self._max_rows)) if rows > old_rows else old_rows
        wanted = max(length, min(2 * old_length, self._max_length))
        new_length = wanted if length > old_length else old_length
        new_length += -new_length % self.block
        data = self.data.new_zeros(two_layers, new_rows, heads, new_length, size)
        data[:, :old_rows, :, :old_length] = self.data
        self.data = data

    def write(self, layer: int, row: Tensor, position: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's new keys and values [H, N, D] at ``row`` and ``position`` [N]; returns its [R, H, T, D]."""
        keys, values = self.data[2 * layer], self.data[2 * layer + 1]
        keys[row, :, position] = key.transpose(0, 1)
        values[row, :, position] = value.transpose(0, 1)
        return keys, values

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copy the first ``length`` positions of rows."""
        for old, new in zip(source, target, strict=True):
            self.data[:, new, :, :length] = self.data[:, old, :, :length]

    def blocks(self) -> Tensor:
        """The same memory as [2 * layers, R, H, T / block, block, D]."""
        two_layers, rows, heads, length, size = self.data.shape
        return self.data.view(two_layers, rows, heads, length // self.block, self.block, size)


class PrefixStore:
    """Blocks of finished rows and of prompts, copied in and out of a :class:`RowCache`.

    Memory grows with what is kept, pool by pool, so that no growth copies what is there.

    Args:
        rows: the running rows.
        max_tokens: most tokens to keep; 0 keeps nothing.
    """

    def __init__(self, rows: RowCache, max_tokens: int) -> None:
        self.rows = rows
        self.index = BlockIndex(max_tokens // rows.block, rows.block)
        block_bytes = rows.block * rows.token_bytes
        self._pool_blocks = max(1, min(POOL_BYTES // block_bytes, self.index.capacity))
        self._copy_blocks = max(1, COPY_BYTES // block_bytes)
        self.clear()

    @property
    def memory_bytes(self) -> int:
        """Memory of the pools, in bytes."""
        return sum(pool.nbytes for pool in self._pools)

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.index.clear()
        self._pools: list[Tensor] = []

    def match(self, ids: Sequence[int]) -> Match:
        """Known leading blocks of a prompt; its last token is never among them, for it has to be computed."""
        return self.index.match(ids[:-1])

    def load(self, slots_of_rows: Sequence[Sequence[int]], first: int) -> None:
        """Copy blocks into the beginnings of the rows from ``first`` on."""
        copies = [(slot, first + r, n) for r, slots in enumerate(slots_of_rows) for n, slot in enumerate(slots)]
        for pool, block, row, number in self._parts(copies):
            self.rows.blocks()[:, row, :, number] = pool[block]

    def save(self, sequences: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Keep the full blocks of (row, its computed token ids)."""
        fill: dict[int, tuple[int, int, int]] = {}  # by slot: a later block may have taken an earlier one's
        for row, ids in sequences:
            for number, slot in self.index.insert(ids):
                fill[slot] = (slot, row, number)
        if fill:
            self._grow(max(fill) + 1)
        for pool, block, row, number in self._parts(fill.values()):
            pool[block] = self.rows.blocks()[:, row, :, number]

    def _grow(self, blocks: int) -> None:
        two_layers, _, heads, _, size = self.rows.data.shape
        while (held := len(self._pools) * self._pool_blocks) < blocks:
            new = min(self._pool_blocks, self.index.capacity - held)
            self._pools.append(self.rows.data.new_empty(new, two_layers, heads, self.rows.block, size))

    def _parts(self, copies: Iterable[tuple[int, int, int]]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """(pool, its blocks, their rows, their numbers in the rows) for (slot, row, number), in small parts."""
        by_pool: dict[int, list[tuple[int, int, int]]] = {}
        for slot, row, number in copies:
            pool, block = divmod(slot, self._pool_blocks)
            by_pool.setdefault(pool, []).append((block, row, number))
        for pool, found in by_pool.items():
            for start in range(0, len(found), self._copy_blocks):
                part = torch.tensor(found[start : start + self._copy_blocks], device=self.rows.data.device)
                block_of, row_of, number_of = part.unbind(1)
                yield self._pools[pool], block_of, row_of, number_of
