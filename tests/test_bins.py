import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.modeling.bins import balanced_bins


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


def test_many_items_of_more_than_half_a_bin_are_quickly_done():
    sizes = [5100 + i for i in range(2000)]
    assert balanced_bins(sizes, sizes, 10_000) == [[i] for i in range(1999, -1, -1)]
