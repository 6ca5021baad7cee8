"""Sharing out work: items into bins of bounded size and like cost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush


def balanced_bins(
    sizes: Sequence[int], costs: Sequence[float], max_size: int, *, multiple_of: int = 1
) -> list[list[int]]:
    """Indices of the items in each bin, costliest first; no bin is empty but those that ``multiple_of`` asks for.

    Longest processing time first: the costliest item goes to the cheapest bin with room. The number of bins is the
    fewest that bisection finds to let every item find room that way; with ``multiple_of`` fewer bins one would not.
    Equal input gives equal bins. Time grows as n log n with the number of items, times the logarithm of the bins that
    are tried.

    Args:
        sizes: of the items.
        costs: of the items.
        max_size: most that the sizes in a bin add up to; an item that alone is larger gets a bin of its own.
        multiple_of: the number of bins is a multiple of this, such as the number of ranks.

    Raises:
        ValueError: where ``max_size`` or ``multiple_of`` is below 1.
    """
    if max_size < 1 or multiple_of < 1:
        raise ValueError(f"max_size and multiple_of must be at least 1, got {max_size} and {multiple_of}")
    if not sizes:
        return []
    order = sorted(range(len(sizes)), key=lambda i: (-costs[i], -sizes[i], i))

    def tried(units: int) -> list[list[int]] | None:
        return _fill(order, sizes, costs, max_size, units * multiple_of)

    enough = -(-_fewest(sizes, max_size) // multiple_of)
    too_few, step = enough - 1, 1
    while (bins := tried(enough)) is None:  # a bin for each item is always enough
        too_few, enough, step = enough, enough + step, 2 * step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if (fewer := tried(middle)) is None:
            too_few = middle
        else:
            enough, bins = middle, fewer
    return bins


def _fewest(sizes: Sequence[int], max_size: int) -> int:
    """Bins that any sharing out needs: by what sizes add up to, and by how many items go into one bin.

    Of items larger than 1/k of a bin no k share one.
    """
    ascending = sorted(min(size, max_size) for size in sizes)
    by_count = (
        -(-(len(ascending) - bisect_right(ascending, max_size // k)) // (k - 1)) for k in range(2, len(sizes) + 2)
    )
    return max(1, -(-sum(ascending) // max_size), *by_count)


def _fill(
    order: Sequence[int], sizes: Sequence[int], costs: Sequence[float], max_size: int, count: int
) -> list[list[int]] | None:
    """The items in ``count`` bins, None where one finds no room."""
    bins: list[list[int]] = [[] for _ in range(count)]
    room, cost = [max_size + 1] * count, [0.0] * count  # an empty bin takes even what is larger than a bin
    wants = [min(size, max_size + 1) for size in sizes]
    cheapest = _Cheapest(wants, count)
    for item in order:
        best = cheapest.take(wants[item])
        if best is None:
            return None
        room[best] = (room[best] if bins[best] else max_size) - sizes[item]
        bins[best].append(item)
        cost[best] += costs[item]
        cheapest.put(best, cost[best], room[best])
    return bins


class _Cheapest:
    """Finds the cheapest bin with room for an item: bins stand on shelves by the largest item that they have room for.

    Each shelf is a heap by cost; a binary tree above the shelves holds the cheapest of every subtree.

    Args:
        wants: sizes of the items that will be asked for.
        count: bins, all of them empty.
    """

    def __init__(self, wants: Sequence[int], count: int) -> None:
        self._wants = sorted(set(wants))
        self._none = (float("inf"), count)
        self._shelves: list[list[tuple[float, int]]] = [[] for _ in self._wants]
        self._shelves[-1] = [(0.0, b) for b in range(count)]
        self._shelf_of = [len(self._wants) - 1] * count
        self._tree = [self._none] * (2 * len(self._wants))
        self._update(len(self._wants) - 1)

    def take(self, want: int) -> int | None:
        """Take out the cheapest bin with room for ``want``, the first of equals; None where there is none."""
        shelves = len(self._shelves)
        low, high = bisect_left(self._wants, want) + shelves, 2 * shelves
        best, tree = self._none, self._tree
        while low < high:  # of the shelves from the first with room on: half-open, level by level
            if low % 2:
                if tree[low] < best:
                    best = tree[low]
                low += 1
            if high % 2:
                high -= 1
                if tree[high] < best:
                    best = tree[high]
            low, high = low // 2, high // 2
        if best is self._none:
            return None
        shelf = self._shelf_of[best[1]]
        heappop(self._shelves[shelf])
        self._update(shelf)
        return best[1]

    def put(self, bin_: int, cost: float, room: int) -> None:
        """Put a bin back; one without room for the smallest item is done with."""
        shelf = bisect_right(self._wants, room) - 1
        if shelf >= 0:
            self._shelf_of[bin_] = shelf
            heappush(self._shelves[shelf], (cost, bin_))
            self._update(shelf)

    def _update(self, shelf: int) -> None:
        tree, at = self._tree, shelf + len(self._shelves)
        top = self._shelves[shelf][0] if self._shelves[shelf] else self._none
        while at and tree[at] is not top:
            tree[at] = top
            beside = tree[at ^ 1]
            if beside < top:
                top = beside
            at //= 2
