"""Sharing out work: items into bins of bounded size and like cost."""

from __future__ import annotations

from collections.abc import Sequence


def balanced_bins(
    sizes: Sequence[int], costs: Sequence[float], max_size: int, *, multiple_of: int = 1
) -> list[list[int]]:
    """Indices of the items in each bin, costliest first; no bin is empty but those that ``multiple_of`` asks for.

    Longest processing time first: the costliest item goes to the cheapest bin with room. There are as few bins as let
    every item find room that way. Equal input gives equal bins.

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
    # No two items of more than half a bin share one.
    count = max(-(-sum(min(size, max_size) for size in sizes) // max_size), sum(2 * size > max_size for size in sizes))
    while True:
        bins = _fill(order, sizes, costs, max_size, count + -count % multiple_of)
        if bins is not None:
            return bins
        count += 1


def _fill(
    order: Sequence[int], sizes: Sequence[int], costs: Sequence[float], max_size: int, count: int
) -> list[list[int]] | None:
    """The items in ``count`` bins, None where one finds no room."""
    bins: list[list[int]] = [[] for _ in range(count)]
    size, cost = [0] * count, [0.0] * count
    for item in order:
        room = [b for b in range(count) if not bins[b] or size[b] + sizes[item] <= max_size]
        if not room:
            return None
        best = min(room, key=lambda b: (cost[b], b))
        bins[best].append(item)
        size[best] += sizes[item]
        cost[best] += costs[item]
    return bins
