"""The study's statistics and report, by hand."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.study.curves import at, curve, read_metrics, tokens_to
from benchmarks.study.estimates import Estimate, estimate, paired, t_quantile
from benchmarks.study.plots import plot_curves
from benchmarks.study.report import load, mean_success, reaching, summarise
from benchmarks.study.runs import read_result
from benchmarks.study.tables import markdown

# ---- statistics ----


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.706), (2, 4.303), (4, 2.776), (7, 2.365), (10, 2.228), (11, 2.201), (15, 2.131), (30, 2.042), (100, 1.984)],
)
def test_t_quantile_is_that_of_the_printed_tables(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=6e-4)


def test_t_quantile_falls_to_the_normal_one():
    values = [t_quantile(freedom) for freedom in range(1, 500)]
    assert values == sorted(values, reverse=True)
    assert t_quantile(10**6) == pytest.approx(1.95996, abs=1e-4)
    with pytest.raises(ValueError, match="at least 1"):
        t_quantile(0)


def test_interval_of_three_values():
    found = estimate([1.0, 2.0, 3.0])  # deviation 1, so 4.302653 / sqrt 3
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half == pytest.approx(2.484138, abs=1e-6)
    assert str(found) == "2.000 ± 2.484"
    assert str(estimate([0.25])) == "0.250"  # one value has no interval
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


def test_paired_difference_is_over_common_seeds():
    found = paired({0: 1.0, 1: 3.0, 2: 5.0}, {0: 0.5, 2: 3.0, 7: 9.0})  # .5 and 2: deviation .75 sqrt 2
    assert found == Estimate(1.25, pytest.approx(12.706205 * 0.75), 2)
    assert paired({0: 1.0}, {1: 1.0}) is None


# ---- curves ----

POINTS = [(0.0, 0.1), (100.0, 0.3), (200.0, 0.2), (400.0, 0.8)]


@pytest.mark.parametrize(
    ("mark", "em"), [(0, 0.1), (50, 0.2), (100, 0.3), (150, 0.25), (200, 0.2), (300, 0.5), (400, 0.8), (900, 0.8)]
)
def test_success_between_validations(mark, em):
    assert at(POINTS, mark) == pytest.approx(em)


@pytest.mark.parametrize(
    ("level", "tokens"), [(0.1, 0), (0.05, 0), (0.2, 50), (0.3, 100), (0.5, 300), (0.8, 400), (0.81, math.inf)]
)
def test_tokens_to_the_first_crossing(level, tokens):
    assert tokens_to(POINTS, level) == pytest.approx(tokens)


steps = st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1)), min_size=1, max_size=8)


@given(steps, st.floats(0, 1), st.floats(0, 1))
def test_a_level_is_met_where_it_is_said_to_be_reached(later, start, level):
    points, tokens = [(0.0, start)], 0
    for step, em in later:
        tokens += step
        points.append((float(tokens), em))
    for x, y in points:
        assert at(points, x) == pytest.approx(y)
    found = tokens_to(points, level)
    if math.isinf(found):
        assert max(y for _, y in points) < level
    else:
        assert at(points, found) == pytest.approx(max(level, start) if found == 0 else level, abs=1e-6)
        assert all(y < level for x, y in points if x < found - 1e-6)


def test_mean_success_is_the_area_under_the_curve():
    assert mean_success([(0.0, 0.0), (100.0, 1.0)], 100) == pytest.approx(0.5)
    assert mean_success([(0.0, 0.2), (50.0, 0.2)], 100) == pytest.approx(0.2)


METRICS = """epoch,step,val/success_rate,\
rollout/sampled_tokens,rollout/leaves,time/rollout,time/train,{warmup},{low},{high}
-1,0,0.1,,,,,,,
0,3,,100,8,1.5,2.5,0.25,,nan
1,5,0.3,,,,,,,
1,5,,150,8,0.5,1.0,,2.0,6.0
2,7,,50,4,1.0,1.0,,4.0,
""".format(warmup="warmup/explained_variance", low="budget/by_difficulty/0.0", high="budget/by_difficulty/0.4")


@pytest.fixture
def run_folder(tmp_path):
    """What three iterations, a validation and a test leave behind."""
    for step, em in (("fit", 0), ("validate", 0.4), ("test", 0.5)):
        folder = tmp_path / step / "version_0"
        folder.mkdir(parents=True)
        if step == "fit":
            (folder / "metrics.csv").write_text(METRICS)
        else:
            (folder / f"{step}_results.json").write_text(json.dumps({"all": {"success_rate": em}}))
    return tmp_path


def test_curve_is_over_the_tokens_sampled_before_each_validation(run_folder):
    assert curve(read_metrics(run_folder / "fit/version_0/metrics.csv")) == [(0.0, 0.1), (250.0, 0.3)]


def test_result_of_a_run_is_what_its_folders_say(run_folder):
    found = read_result(run_folder, {"fit": 9.0})
    assert found["points"] == [(0.0, 0.1), (250.0, 0.3), (300.0, 0.4)]
    assert (found["tokens"], found["iterations"], found["leaves"]) == (300, 3, 20)
    assert found["seconds"] == {"fit": 9.0, "rollout": 3.0, "train": 4.5, "sync": 0}
    assert (found["warmup_tokens"], found["warmup_iterations"], found["warmup_explained_variance"]) == (100, 1, 0.25)
    assert found["explained_variance"] is None
    assert found["trees_by_difficulty"] == {"0.0": 3.0, "0.4": 6.0}
    assert found["test"]["all"]["success_rate"] == 0.5


# ---- the report ----


def result(arm: str, seed: int, end: float, test: float, regime: str = "default", **more) -> dict:
    """A run of 100,000 tokens that rises evenly from .1 to ``end``."""
    made = {"arm": arm, "regime": regime, "seed": seed, "settings": ["--max_sampled_tokens", "100000"]}
    made |= {
        "tokens": 110_000.0,
        "iterations": 2,
        "leaves": 12.0,
        "explained_variance": None,
        "trees_by_difficulty": {},
    }
    made |= {"warmup_tokens": 0, "warmup_iterations": 0, "warmup_explained_variance": None}
    return {
        **made,
        "points": [[0.0, 0.1], [110_000.0, 0.1 + (end - 0.1) * 1.1]],
        "test": {"embedded_2hop": {"success_rate": test + 0.1}, "all": {"success_rate": test}},
        "seconds": {"fit": 10.0 + seed, "validate": 1.0, "test": 1.0, "rollout": 4.0, "train": 5.0},
        **more,
    }


WARM = {"warmup_tokens": 20_000.0, "warmup_iterations": 2, "warmup_explained_variance": 0.3, "explained_variance": 0.5}
RESULTS = [
    result("grpo", 0, 0.5, 0.4),
    result("grpo", 1, 0.3, 0.2),
    result("tree_ppo", 0, 0.7, 0.5, **WARM, trees_by_difficulty={"0.0": 3.0, "0.4": 6.0}),
    result("tree_ppo", 1, 0.15, 0.1, **WARM, trees_by_difficulty={"0.0": 2.0}),
    result("tree_ppo", 2, 0.9, 0.9, **WARM),
]


def test_summary_of_hand_made_runs():
    arms = summarise(RESULTS)["default"]["arms"]
    grpo, ours = arms["grpo"], arms["tree_ppo"]
    assert grpo["test_success"] == {"mean": pytest.approx(0.3), "half": pytest.approx(12.706205 * 0.1), "n": 2}
    assert (grpo["test_success_difference"], grpo["mean_success_difference"]) == (None, None)
    assert ours["test_success"]["mean"] == pytest.approx(0.5)
    assert ours["test_success_difference"] == {"mean": pytest.approx(0), "half": pytest.approx(1.2706205), "n": 2}
    assert ours["mean_success"]["mean"] == pytest.approx((0.4 + 0.125 + 0.5) / 3)
    assert ours["mean_success_difference"]["mean"] == pytest.approx((0.1 - 0.075) / 2)
    assert [found["mean"] for found in grpo["em_at"]] == pytest.approx([0.16, 0.22, 0.28, 0.34, 0.4])
    assert (grpo["stalled"], ours["stalled"], ours["seeds"]) == (0, 1, 3)
    assert ours["tokens_to"]["0.5"] == {"median": pytest.approx(200_000 / 3), "reached": 2}
    assert grpo["tokens_to"]["0.7"] == {"median": None, "reached": 0}
    # The mean curve of three runs rises to .5833 and meets GRPO's last mean, .4, after .3 / .4833 of the way.
    assert ours["tokens_to_reference"] == pytest.approx(100_000 * 0.3 / (1.75 / 3 - 0.1))
    assert ours["test_success_by_source"] == {"embedded_2hop": pytest.approx(0.6)}
    assert (ours["seconds"]["fit"], ours["warmup_tokens"], ours["explained_variance"]) == (11.0, 20_000.0, 0.5)
    assert ours["trees_by_difficulty"]["0.0"]["mean"] == 2.5
    assert ours["trees_by_difficulty"]["0.4"] == {"mean": 6.0, "half": None, "n": 1}


def test_median_of_tokens_counts_runs_that_never_get_there():
    flat, steep = [(0.0, 0.1), (100.0, 0.2)], [(0.0, 0.1), (100.0, 0.5)]
    assert reaching([steep, flat, steep], 0.5) == {"median": 100.0, "reached": 2}
    assert reaching([steep, flat, flat], 0.5) == {"median": None, "reached": 1}
    assert reaching([steep, flat], 0.5) == {"median": None, "reached": 1}


def test_tables_hold_the_summary():
    text = markdown(summarise(RESULTS))
    lines = text.splitlines()
    assert lines[0] == "## default: 2 to 6 hops"
    assert "| `grpo` | 2 | 0.300 ± 1.271 | - | 0.250 ± 0.635 | - | 0/2 |" in lines
    assert any(line.startswith("| `tree_ppo` | 3 | 0.500 ± 0.994 | +0.000 ± 1.271 |") for line in lines)
    assert "| `grpo` | 75k (2/2) | - (1/2) | - (0/2) | 100k |" in lines
    assert "| `tree_ppo` | 33k (2/3) | 67k (2/3) | 100k (2/3) | 62k |" in lines
    assert "| `tree_ppo` | 2 | 110k | 12 | 11 | 4 | 5 | 20k | 2.0 | 0.30 | 0.50 |" in lines
    assert "| `tree_ppo` | 2.500 ± 6.353 | 6.000 |" in lines
    for block in text.split("\n\n"):  # rows as wide as their heads
        assert len({line.count("|") for line in block.splitlines() if line.startswith("|")}) <= 1


def test_a_study_without_its_reference_has_dashes():
    text = markdown(summarise(RESULTS[2:]))
    assert "+" not in text
    assert "grpo`" not in text


def test_regimes_and_arms_keep_their_order_and_limits(tmp_path):
    written = [result("tree_ppo", 0, 0.5, 0.4), result("grpo", 10, 0.5, 0.4), result("grpo", 9, 0.5, 0.4)]
    written.append(result("ppo", 0, 0.5, 0.4, regime="low"))
    for one in written:
        path = tmp_path / one["regime"] / one["arm"] / f"seed_{one['seed']}" / "result.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(one))
    found = [(r["regime"], r["arm"], r["seed"]) for r in load(tmp_path)]
    assert found == [("default", "grpo", 9), ("default", "grpo", 10), ("default", "tree_ppo", 0), ("low", "ppo", 0)]
    with pytest.raises(ValueError, match=r"different --tokens: \[100000, 200000\]"):
        summarise([*RESULTS, {**RESULTS[0], "settings": [*RESULTS[0]["settings"], "--max_sampled_tokens", "200000"]}])
    path.write_text(json.dumps({**written[-1], "arm": "bandit"}))
    with pytest.raises(ValueError, match="no arm bandit"):
        load(tmp_path)


def test_runs_of_several_versions_are_told_of():
    assert "versions" not in markdown(summarise(RESULTS))
    mixed = [RESULTS[0], {**RESULTS[1], "code": "other"}]
    assert "Made by 2 versions of the code." in markdown(summarise(mixed))


def test_plots_name_arms_and_seeds(tmp_path):
    pytest.importorskip("matplotlib")
    (path,) = plot_curves(RESULTS, tmp_path)
    first = path.read_text()
    assert path.name == "em_default.svg"
    assert "grpo (2)" in first
    assert "tree_ppo (3)" in first
    plot_curves(RESULTS, tmp_path)
    assert path.read_text() == first


def test_no_plots_without_matplotlib(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.study.plots.find_spec", lambda _: None)
    assert plot_curves(RESULTS, tmp_path) == []
    assert "matplotlib is not installed" in capsys.readouterr().out
