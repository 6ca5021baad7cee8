"""Apportionment: whole trees from fractional shares, in exact arithmetic so that the order of tasks never matters."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction


def largest_remainder(
    weights: Sequence[float], total: int, least: int, most: int, ties: Sequence[int] | None = None
) -> list[int]:
    """Whole numbers in ``least..most`` that sum to exactly ``total``: the method of the largest remainder.

    What is above the floor is shared out in proportion to ``weights``, evenly where they are all 0. A share beyond
    the cap is cut and the excess goes to the others, again by weight. Shares are then rounded down, and the largest
    remainders get the units that are left. A larger weight never gets less than a smaller one.

    Args:
        weights: [N] at least 0.
        total: to share out.
        least: floor of each.
        most: cap of each.
        ties: [N] keys; among equal remainders the lowest key is rounded up first, then the first in order.

    Raises:
        ValueError: for a bad weight, or where no numbers between floor and cap have that sum.
    """
    size, ties = _checked(weights, ties), ties or [0] * len(weights)
    if not size * least <= total <= size * most:
        raise ValueError(f"{size} numbers from {least} to {most} cannot sum to {total}")
    rest = total - size * least
    shares = _capped_shares(list(map(Fraction, weights)), rest, most - least)
    counts = [math.floor(share) for share in shares]
    order = sorted(range(size), key=lambda i: (counts[i] - shares[i], ties[i], i))
    for i in order[: rest - sum(counts)]:
        counts[i] += 1
    return [least + count for count in counts]


def highest_averages(
    weights: Sequence[float],
    costs: Sequence[float],
    limit: Fraction,
    least: int,
    most: int,
    ties: Sequence[int] | None = None,
) -> list[int]:
    """Whole numbers n in ``least..most`` with sum(n * costs) <= ``limit``: Webster's highest averages, by purse.

    Everyone has the floor; then one unit at a time goes to the largest weight / (units above the floor + 1/2) among
    those below the cap that the rest can still pay for. So what stays unspent pays for no further unit, and without
    caps the units above the floor are about in proportion to ``weights``, whatever the costs.

    Args:
        weights: [N] at least 0.
        costs: [N] of one unit each, above 0.
        limit: exact, never exceeded; the floors must fit.
        least: floor of each.
        most: cap of each.
        ties: [N] keys; among equal averages the lowest key comes first, then the first in order.

    Raises:
        ValueError: for a bad weight or cost, a cap below the floor, or a limit that does not pay for the floors.
    """
    size, ties = _checked(weights, ties), ties or [0] * len(weights)
    if len(costs) != size or not all(cost > 0 and math.isfinite(cost) for cost in costs):
        raise ValueError(f"{size} finite costs above 0 are needed, got {list(costs)}")
    prices = list(map(Fraction, costs))
    left = limit - least * sum(prices)
    if left < 0 or most < least:
        raise ValueError(f"a limit of {float(limit)} with a cap of {most} does not allow a floor of {least} for each")
    extra = [0] * size
    queue = [(-2 * weights[i], 0, ties[i], i) for i in range(size) if most > least]
    heapq.heapify(queue)
    while queue:
        *_, i = heapq.heappop(queue)
        if prices[i] > left:
            continue  # the rest only shrinks: never payable again
        extra[i] += 1
        left -= prices[i]
        if least + extra[i] < most:
            heapq.heappush(queue, (-weights[i] / (extra[i] + 0.5), extra[i], ties[i], i))
    return [least + more for more in extra]


def allocation_entropy(counts: Sequence[int]) -> float:
    """Entropy of the shares over that of a uniform allocation, in [0, 1]; 1 where nothing can be unequal."""
    total = sum(counts)
    if len(counts) < 2 or total == 0 or min(counts) == max(counts):
        return 1.0
    entropy = -math.fsum(count / total * math.log(count / total) for count in counts if count)
    return min(1.0, entropy / math.log(len(counts)))


def _checked(weights: Sequence[float], ties: Sequence[int] | None) -> int:
    if bad := [weight for weight in weights if not (math.isfinite(weight) and weight >= 0)]:
        raise ValueError(f"weights must be finite and at least 0, got {bad[0]}")
    if ties is not None and len(ties) != len(weights):
        raise ValueError(f"{len(ties)} ties for {len(weights)} weights")
    return len(weights)


def _capped_shares(weights: list[Fraction], total: int, cap: int) -> list[Fraction]:
    """Shares of ``total`` in proportion to ``weights``, none above ``cap``. The heaviest first: once one is not cut,
    no later one is, and the rate no longer changes."""
    shares = [Fraction(0)] * len(weights)
    left, weight_left = Fraction(total), sum(weights, Fraction(0))
    for place, i in enumerate(sorted(range(len(weights)), key=lambda i: -weights[i])):
        share = left * weights[i] / weight_left if weight_left else left / (len(weights) - place)
        shares[i] = min(share, Fraction(cap))
        left -= shares[i]
        weight_left -= weights[i]
    return shares
