import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.modeling.bins import balanced_bins


def slowly(sizes, costs, max_size, count):
    """The items in ``count`` bins, costliest first to the cheapest bin with room, None where one finds none."""
    bins = [[] for _ in range(count)]
    for item in sorted(range(len(sizes)), key=lambda i: (-costs[i], -sizes[i], i)):
        room = [b for b in bins if not b or sum(sizes[i] for i in b) + sizes[item] <= max_size]
        if not room:
            return None
        min(room, key=lambda b: sum(costs[i] for i in b)).append(item)
    return bins


def test_golden_costliest_first_to_the_cheapest_with_room():
    assert balanced_bins([4, 3, 3, 2], [4, 3, 3, 2], 6) == [[0, 3], [1, 2]]
    assert balanced_bins([1, 1, 1, 1], [9, 5, 4, 1], 2) == [[0, 3], [1, 2]]
    assert balanced_bins([1, 1, 1], [1, 1, 1], 9, multiple_of=2) == [[0, 2], [1]]
    assert balanced_bins([9, 1], [9, 1], 4) == [[0], [1]]  # too large, so alone
    assert balanced_bins([1], [1], 4, multiple_of=3) == [[0], [], []]
    assert balanced_bins([], [], 4) == []


def test_bad_limits_are_named():
    with pytest.raises(ValueError, match="at least 1, got 0 and 1"):
        balanced_bins([1], [1], 0)
    with pytest.raises(ValueError, match="at least 1, got 4 and 0"):
        balanced_bins([1], [1], 4, multiple_of=0)


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(5, 40), st.integers(1, 4))
def test_every_item_is_in_one_bin_and_bins_are_bounded_and_balanced(sizes, max_size, ranks):
    bins = balanced_bins(sizes, sizes, max_size, multiple_of=ranks)
    assert sorted(i for members in bins for i in members) == list(range(len(sizes)))
    assert len(bins) % ranks == 0
    loads = [sum(sizes[i] for i in members) for members in bins]
    for members, load in zip(bins, loads, strict=True):
        assert load <= max_size or len(members) == 1
    if sizes and sum(sizes) <= max_size:
        assert len(bins) == ranks
        assert max(loads) - min(loads) <= max(sizes)  # the bound of list scheduling
    assert bins == balanced_bins(sizes, sizes, max_size, multiple_of=ranks)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=40),
    st.integers(1, 40),
    st.integers(1, 3),
)
def test_bins_are_those_of_looking_at_every_bin_and_fewer_would_not_do(items, max_size, ranks):
    sizes, costs = zip(*items, strict=True)
    bins = balanced_bins(sizes, costs, max_size, multiple_of=ranks)
    assert bins == slowly(sizes, costs, max_size, len(bins))
    assert slowly(sizes, costs, max_size, len(bins) - ranks) is None


def test_many_items_of_more_than_half_a_bin_are_quickly_done():
    sizes = [5100 + i for i in range(2000)]
    assert balanced_bins(sizes, sizes, 10_000) == [[i] for i in range(1999, -1, -1)]


@pytest.mark.parametrize(("smallest", "largest", "in_a_bin"), [(2800, 3400, 2), (1700, 2000, 4)])
def test_many_items_of_which_few_fit_a_bin_are_quickly_done(smallest, largest, in_a_bin):
    draw = random.Random(0)
    sizes = [draw.randrange(smallest, largest) for _ in range(4000)]
    bins = balanced_bins(sizes, [s * (s + 5000.0) for s in sizes], 8192)
    assert {len(members) for members in bins} == {in_a_bin}  # as many as fit, hence no fewer bins would do
    assert all(sum(sizes[i] for i in members) <= 8192 for members in bins)
    costs = [sum(sizes[i] * (sizes[i] + 5000.0) for i in members) for members in bins]
    assert max(costs) < 1.1 * min(costs)


def test_many_items_of_all_sizes_leave_little_room():
    draw = random.Random(0)
    sizes = [draw.randrange(10, 3000) for _ in range(2000)]
    bins = balanced_bins(sizes, sizes, 8192)
    assert all(sum(sizes[i] for i in members) <= 8192 for members in bins)
    assert sum(sizes) / 8192 <= len(bins) <= 1.05 * sum(sizes) / 8192
