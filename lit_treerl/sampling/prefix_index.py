"""Which blocks of which prefixes are kept: exact keys, least recently used leave first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

BlockKey = tuple[int, tuple[int, ...]]
"""Identity of the block before (0 for none) and the tokens of this block: equal keys mean equal prefixes."""


@dataclass(frozen=True)
class Match:
    """Known leading blocks of a sequence.

    Attributes:
        slots: where the blocks lie in the pool, in order.
        missing: key of the first block that is not known, None when every full block is.
    """

    slots: list[int]
    missing: BlockKey | None


class BlockIndex:
    """Maps prefixes, cut into blocks of ``block`` tokens, to slots of a pool.

    Args:
        capacity: most blocks to keep.
        block: tokens in a block; only full blocks are kept.
    """

    def __init__(self, capacity: int, block: int = 8) -> None:
        self.capacity = capacity
        self.block = block
        self.clear()

    def clear(self) -> None:
        """Forget every block."""
        # Oldest first; a block is always older than the block before it, so prefixes lose their ends first.
        self._blocks: OrderedDict[BlockKey, tuple[int, int]] = OrderedDict()
        self._used = 0
        self._identities = count(1)

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, ids: Sequence[int]) -> Match:
        """Find the longest known prefix of ``ids`` in whole blocks, and mark it as used."""
        known, missing = self._walk(ids)
        self._touch(known)
        return Match([self._blocks[key][1] for key in known], missing)

    def insert(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Keep the full blocks of ``ids``; the least recently used others make room.

        Returns:
            (number of the block within ``ids``, its slot) of the new blocks, which the caller has to fill.
        """
        chain, missing = self._walk(ids)
        self._touch(chain)
        own = set(chain)
        new = []
        for number in range(len(chain), len(ids) // self.block):
            slot = self._take_slot(own)
            if slot is None or missing is None:
                break
            identity = next(self._identities)
            self._blocks[missing] = (identity, slot)
            chain.append(missing)
            own.add(missing)
            new.append((number, slot))
            missing = (identity, self._tokens(ids, number + 1))
        self._touch(chain)
        return new

    def _walk(self, ids: Sequence[int]) -> tuple[list[BlockKey], BlockKey | None]:
        known: list[BlockKey] = []
        identity = 0
        for number in range(len(ids) // self.block):
            key = (identity, self._tokens(ids, number))
            found = self._blocks.get(key)
            if found is None:
                return known, key
            known.append(key)
            identity = found[0]
        return known, None

    def _tokens(self, ids: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(ids[number * self.block : (number + 1) * self.block])

    def _touch(self, chain: list[BlockKey]) -> None:
        for key in reversed(chain):
            self._blocks.move_to_end(key)

    def _take_slot(self, own: set[BlockKey]) -> int | None:
        if self._used < self.capacity:
            self._used += 1
            return self._used - 1
        oldest = next(iter(self._blocks), None)
        if oldest is None or oldest in own:
            return None
        return self._blocks.pop(oldest)[1]
