"""Episode metrics: means per data source, NaN left out, exact over any split of the episodes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.metrics import ALL, EpisodeMetrics

NAMES = ("em", "turns")
NAN = float("nan")


def metrics(*episodes: tuple[str, float, float]) -> EpisodeMetrics:
    out = EpisodeMetrics(["nq", "popqa", "empty"], NAMES)
    out.update([(source, dict(zip(NAMES, numbers, strict=True))) for source, *numbers in episodes])
    return out


def test_means_per_source_and_over_all_episodes():
    assert metrics(("nq", 1, 2), ("nq", 0, 4), ("popqa", 1, 9)).compute() == {
        "nq": {"em": 0.5, "turns": 3.0, "episodes": 2},
        "popqa": {"em": 1.0, "turns": 9.0, "episodes": 1},
        ALL: {"em": pytest.approx(2 / 3), "turns": 5.0, "episodes": 3},  # over episodes, not over sources
    }


def test_nan_is_left_out_of_its_mean():
    assert metrics(("nq", NAN, 2), ("nq", 1, 4), ("popqa", NAN, NAN)).compute() == {
        "nq": {"em": 1.0, "turns": 3.0, "episodes": 2},
        ALL: {"em": 1.0, "turns": 3.0, "episodes": 2},
    }


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_nothing_counted_and_reset():
    some = metrics(("nq", 1, 2))
    some.reset()
    assert some.compute() == {ALL: {"episodes": 0}}


def test_an_unknown_source_is_named():
    with pytest.raises(KeyError, match=r"'trivia' was not announced; known are \['nq', 'popqa', 'empty'\]"):
        metrics(("trivia", 1, 1))


numbers = st.one_of(st.integers(0, 50).map(float), st.just(NAN))
episodes = st.lists(st.tuples(st.sampled_from(["nq", "popqa"]), numbers, numbers), max_size=30)


@given(episodes, st.lists(st.booleans(), min_size=30, max_size=30))
def test_any_split_over_two_ranks_gives_the_same_values(rows, sides):
    """States of ranks are added, as torchmetrics does over processes."""
    whole = metrics(*rows)
    ranks = [metrics(*[row for row, side in zip(rows, sides, strict=False) if side is rank]) for rank in (False, True)]
    merged = metrics()
    for name in ("total", "count"):
        assert merged._reductions[name] is not None
        parts = torch.stack([getattr(rank, name) for rank in ranks])
        setattr(merged, name, merged._reductions[name](parts))  # type: ignore[operator]
    assert merged.compute() == whole.compute()
    assert not any(math.isnan(value) for means in whole.compute().values() for value in means.values())
