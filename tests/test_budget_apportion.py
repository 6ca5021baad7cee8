import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.apportion import allocation_entropy, highest_averages, largest_remainder

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("weights", "total", "least", "most", "counts"),
    [
        # Hare quotas of 47, 16, 15.8, 12, 6.1, 3.1 of 100 seats: 4.7 1.6 1.58 1.2 .61 .31 of 10
        ([47, 16, 15.8, 12, 6.1, 3.1], 10, 0, 10, [5, 2, 1, 1, 1, 0]),
        ([1, 2, 3], 12, 0, 12, [2, 4, 6]),
        ([1, 2, 3], 12, 2, 12, [3, 4, 5]),  # 6 above the floor
        ([1, 1, 1], 7, 1, 7, [3, 2, 2]),  # equal remainders of 1/3: the first
        ([8, 1, 1], 10, 0, 4, [4, 3, 3]),  # 4 beyond the cap, halved
        ([8, 6, 1, 1], 16, 0, 5, [5, 5, 3, 3]),  # the excess of both goes to the light ones
        ([8, 2, 1, 1], 12, 0, 6, [6, 3, 2, 1]),  # 6 left by 2:1:1 are 3, 1.5, 1.5
        ([5, 0, 0], 9, 1, 5, [5, 2, 2]),  # nothing but the capped one has a weight
        ([0, 0], 4, 1, 4, [2, 2]),
        ([0.1, 0.2, 0.3, 0.4], 4, 1, 1, [1, 1, 1, 1]),
        ([], 0, 1, 2, []),
    ],
)
def test_hand_computed_apportionment(weights, total, least, most, counts):
    assert largest_remainder(weights, total, least, most) == counts


def test_ties_are_broken_by_key_then_by_order():
    assert largest_remainder([1, 1, 1], 7, 1, 7, ties=[5, 4, 3]) == [2, 2, 3]
    assert largest_remainder([1, 1, 1], 8, 1, 8, ties=[5, 4, 5]) == [3, 3, 2]
    assert largest_remainder([1, 1.1, 1], 7, 1, 7, ties=[0, 9, 0]) == [2, 3, 2]  # a key never beats a remainder
    assert highest_averages([1, 1], [1, 1], Fraction(3), 1, 3, ties=[1, 0]) == [1, 2]


@given(WEIGHTS, st.integers(0, 4), st.integers(0, 9), st.data())
def test_sums_are_exact_within_bounds_and_ordered_by_weight(weights, least, room, data):
    total = data.draw(st.integers(len(weights) * least, len(weights) * (least + room)))
    counts = largest_remainder(weights, total, least, least + room)
    assert sum(counts) == total
    assert all(least <= count <= least + room for count in counts)
    for a, first in zip(weights, counts, strict=True):
        assert all(first >= second for b, second in zip(weights, counts, strict=True) if a > b)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 60))
def test_without_caps_every_count_is_its_quota_rounded(weights, total):
    counts = largest_remainder(weights, total, 0, total)
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - Fraction(total * weight, sum(weights))) < 1


def plain_shares(weights: list[float], total: int, cap: int) -> list[Fraction]:
    """Shares above the floor: cut all that are beyond the cap, hand the rest out anew, until none is."""
    shares, free, left = [Fraction(cap)] * len(weights), set(range(len(weights))), Fraction(total)
    while free:
        whole = sum(Fraction(weights[i]) for i in free)
        part = {i: left * Fraction(weights[i]) / whole if whole else left / len(free) for i in free}
        full = {i for i in free if part[i] > cap}
        if not full:
            return [part.get(i, share) for i, share in enumerate(shares)]
        free, left = free - full, left - cap * len(full)
    return shares


@given(WEIGHTS, st.integers(0, 9), st.data())
def test_counts_are_the_plain_shares_rounded(weights, cap, data):
    total = data.draw(st.integers(0, len(weights) * cap))
    shares = plain_shares(weights, total, cap)
    counts = largest_remainder(weights, total, 0, cap)
    up = [share - math.floor(share) for share, count in zip(shares, counts, strict=True) if count > share]
    down = [share - math.floor(share) for share, count in zip(shares, counts, strict=True) if count <= share]
    assert all(math.floor(share) <= n <= math.ceil(share) for share, n in zip(shares, counts, strict=True))
    assert not up or min(up) >= max(down, default=Fraction(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], 5, 0, 2), "2 numbers from 0 to 2 cannot sum to 5"),
        (([1, 1], 1, 1, 2), "2 numbers from 1 to 2 cannot sum to 1"),
        (([], 1, 0, 2), "0 numbers"),
        (([1, -1], 2, 0, 2), "at least 0, got -1"),
        (([1, math.nan], 2, 0, 2), "got nan"),
        (([1, math.inf], 2, 0, 2), "got inf"),
        (([1, 1], 2, 0, 2, [1]), "1 ties for 2 weights"),
    ],
)
def test_what_cannot_be_apportioned_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        largest_remainder(*arguments)


def test_hand_computed_highest_averages():
    # averages 2w, 2w/3, 2w/5 ...: 6 2 1.2 | 4 1.33 .8 | 2 .67: six units are a b a c b a
    assert highest_averages([3, 2, 1], [1, 1, 1], Fraction(6), 0, 9) == [3, 2, 1]
    assert highest_averages([3, 2, 1], [1, 1, 1], Fraction(9), 1, 9) == [4, 3, 2]
    assert highest_averages([3, 2, 1], [1, 1, 1], Fraction(6), 0, 2) == [2, 2, 2]
    # 9 to spend at 4, 2, 3: a (5 left), b (3 left), a's second (2) is too dear, b's second (1.33) before c (1)
    assert highest_averages([3, 2, 0.5], [4, 2, 3], Fraction(9), 0, 9) == [1, 2, 0]
    assert highest_averages([0, 0], [1, 1], Fraction(4), 0, 9) == [2, 2]
    assert highest_averages([], [], Fraction(0), 1, 2) == []


@given(WEIGHTS, st.integers(1, 3), st.integers(0, 8), st.data())
def test_the_limit_holds_and_the_rest_pays_for_nothing(weights, least, room, data):
    costs = data.draw(st.lists(st.floats(0.01, 5000), min_size=len(weights), max_size=len(weights)))
    floor = least * sum(map(Fraction, costs))
    limit = floor * Fraction(data.draw(st.floats(1, 4)))
    counts = highest_averages(weights, costs, limit, least, least + room)
    rest = limit - sum(count * Fraction(cost) for count, cost in zip(counts, costs, strict=True))
    assert rest >= 0
    assert all(least <= count <= least + room for count in counts)
    assert all(rest < Fraction(c) for n, c in zip(counts, costs, strict=True) if n < least + room)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], [1, 0], Fraction(9), 1, 2), "2 finite costs above 0"),
        (([1, 1], [1, math.nan], Fraction(9), 1, 2), "2 finite costs above 0"),
        (([1, 1], [1], Fraction(9), 1, 2), "2 finite costs above 0"),
        (([1, 1], [2, 3], Fraction(4), 1, 2), "limit of 4.0 .*floor of 1"),
        (([1, 1], [2, 3], Fraction(50), 3, 2), "cap of 2 .*floor of 3"),
        (([1, -1], [2, 3], Fraction(50), 1, 2), "got -1"),
    ],
)
def test_purses_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        highest_averages(*arguments)


def test_golden_entropy():
    assert allocation_entropy([4, 4, 4]) == 1.0
    assert allocation_entropy([0, 7]) == 0.0
    assert allocation_entropy([2, 1, 1]) == pytest.approx(1.5 * math.log(2) / math.log(3))
    assert [allocation_entropy(counts) for counts in ([], [3], [0, 0])] == [1.0, 1.0, 1.0]


@given(st.lists(st.integers(0, 40), min_size=2, max_size=20))
def test_entropy_is_one_for_uniform_counts_alone(counts):
    entropy = allocation_entropy(counts)
    assert 0 <= entropy <= 1
    assert (entropy == 1.0) is (min(counts) == max(counts))
