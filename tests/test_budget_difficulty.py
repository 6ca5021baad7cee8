import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.budget import TaskBelief
from lit_treerl.trees.difficulty import by_difficulty, predicted_success, return_spread

NUMBER = st.floats(-3, 3)
BELIEF = st.builds(
    TaskBelief,
    count=st.floats(0, 50),
    mean=NUMBER,
    variance=st.none() | st.floats(-1e-12, 3),
    value=st.none() | NUMBER,
)


@pytest.mark.parametrize(
    ("belief", "p"),
    [
        (TaskBelief(), None),
        (TaskBelief(mean=0.7), None),  # a mean of no episodes
        (TaskBelief(value=0.3), 0.3),
        (TaskBelief(count=6, mean=0.5, value=0.1), (6 * 0.5 + 2 * 0.1) / 8),
        (TaskBelief(count=6, mean=0.5), 0.5),
        (TaskBelief(count=4, mean=-0.2, value=-0.1), 0.0),
        (TaskBelief(value=1.7), 1.0),
    ],
)
def test_golden_predicted_success(belief, p):
    assert predicted_success(belief) == pytest.approx(p)


def test_the_parameters_of_predicted_success():
    belief = TaskBelief(count=3, mean=4.0, value=9.0)
    assert predicted_success(belief, prior_weight=1.0, reward_range=(-10, 10)) == pytest.approx((5.25 + 10) / 20)
    assert predicted_success(belief, prior_weight=0.0, reward_range=(0, 10)) == 0.4
    assert predicted_success(TaskBelief(value=9.0), prior_weight=0.0, reward_range=(0, 10)) == 0.9
    assert predicted_success(TaskBelief(count=2, mean=1.0), fallback=0.2) == pytest.approx(2.4 / 4)
    assert predicted_success(TaskBelief(count=2, mean=1.0, value=0.5), fallback=0.2) == 0.75  # a value comes first
    assert predicted_success(TaskBelief(), fallback=0.2) is None


def test_golden_spread():
    belief = TaskBelief(count=6, mean=0.5, variance=0.09)
    assert return_spread(belief, 0.2) == 0.4
    assert return_spread(belief, 0.2, kind="variance") == pytest.approx(math.sqrt((6 * 0.09 + 2 * 0.16) / 8))
    assert return_spread(belief, 0.2, prior_weight=0, kind="variance") == pytest.approx(0.3)
    assert return_spread(belief, 0.2, 0, (0, 10), "variance") == pytest.approx(0.03)
    assert return_spread(TaskBelief(variance=0.01), 0.2, kind="variance") == 0.4  # a variance of no episodes
    assert return_spread(TaskBelief(count=3), 0.2, kind="variance") == 0.4
    assert return_spread(TaskBelief(count=9, variance=8.0), 0.2, kind="variance") == 0.5


@given(BELIEF, st.floats(0, 9), st.none() | NUMBER, st.sampled_from(["bernoulli", "variance"]))
def test_predictions_and_spreads_stay_in_range(belief, prior_weight, fallback, kind):
    p = predicted_success(belief, prior_weight, (-1.0, 1.0), fallback)
    assert (p is None) is (belief.count == 0 and belief.value is None)
    if p is not None:
        assert 0 <= p <= 1
        assert 0 <= return_spread(belief, p, prior_weight, (-1.0, 1.0), kind) <= 0.5


def test_golden_histogram():
    got = by_difficulty([1, 1, 8, 6, 2], [0.0, 0.1, 0.5, 0.74, 1.0], bins=4)
    assert got == [(0.0, 0.25, 2, 1.0), (0.25, 0.5, 0, 0.0), (0.5, 0.75, 2, 7.0), (0.75, 1.0, 1, 2.0)]
    assert by_difficulty([3, 9], [0.5, math.nan], bins=1) == [(0.0, 1.0, 1, 3.0)]
    assert by_difficulty([], []) == [(i / 10, (i + 1) / 10, 0, 0.0) for i in range(10)]


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0, 1)), max_size=20), st.integers(1, 100))
def test_every_task_is_in_the_bin_that_holds_it(rows, bins):
    counts, p = [count for count, _ in rows], [chance for _, chance in rows]
    found = by_difficulty(counts, p, bins)
    for bin in found:
        inside = [c for c, q in rows if bin.low <= q < bin.high or q == bin.high == 1.0]
        assert (bin.tasks, bin.tasks * bin.mean) == (len(inside), pytest.approx(sum(inside)))
    assert sum(bin.tasks for bin in found) == len(rows)


def test_impossible_histograms_are_refused():
    for arguments, message in (
        (([1], []), "1 counts, 0 predictions"),
        (([1], [0.5], 0), "0 bins"),
        (([1], [1.5]), r"in \[0, 1\], got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            by_difficulty(*arguments)
