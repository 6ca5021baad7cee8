"""What `test`, `validate` and `predict` say and write, on the embedded policy."""

from __future__ import annotations

import json

import pytest

from lit_treerl.callbacks.results import COLUMNS, results_table
from lit_treerl.data.episodes import JSONLEpisodes
from lit_treerl.rollout.episodes import episode_numbers
from runs import Run, run

pytestmark = pytest.mark.filterwarnings("ignore")


def results(done: Run, name: str) -> dict:
    return json.loads((done.folder / f"{name}_results.json").read_text())


@pytest.fixture(scope="module")
def predicted(tmp_path_factory) -> list[dict]:
    """The rows of six test episodes."""
    done = run(pytest.MonkeyPatch.context, "predict", tmp_path_factory.mktemp("predict"))
    return JSONLEpisodes(str(done.folder / "episodes.jsonl")).load()


def test_test_writes_means_per_data_source_that_predict_confirms(predicted, tmp_path, capsys):
    done = run(pytest.MonkeyPatch.context, "test", tmp_path)
    means, said = results(done, "test"), capsys.readouterr().out
    assert str(done.folder / "test_results.json") in said.replace("\n", "")
    sources = {row["data_source"] for row in predicted}
    assert set(means) == sources | {"all"} == {"embedded_1hop", "embedded_2hop", "all"}
    assert all("score" not in numbers for numbers in means.values())
    for source, numbers in means.items():
        rows = [episode_numbers(row) for row in predicted if source in (row["data_source"], "all")]
        assert numbers["episodes"] == len(rows)
        assert source in said
        for name in ("em", "f1", "success_rate", "reward", "turns", "tool_calls", "tokens", "failed", "truncated"):
            assert numbers[name] == pytest.approx(sum(row[name] for row in rows) / len(rows)), (source, name)
    assert means["all"]["turns"] == pytest.approx(means["all"]["tool_calls"] + 1)


def test_predicted_episodes_are_whole(predicted):
    assert len(predicted) == 6
    for row in predicted:
        assert row["question"]
        assert row["prompt"][-1]["content"] == row["question"]
        assert [turn["action"] for turn in row["turns"]][-1].endswith("</answer>")
        assert all("<information>" in turn["observation"] for turn in row["turns"][:-1])
        assert len(row["turns"]) == row["turns_taken"]
        assert row["info"]["answer"]


def test_several_samples_a_task_at_a_temperature(tmp_path):
    args = ("--rollout.eval_samples", "3", "--rollout.eval_temperature", "1.5")
    done = run(pytest.MonkeyPatch.context, "predict", tmp_path, *args)
    rows = [json.loads(line) for line in (done.folder / "episodes.jsonl").read_text().splitlines()]
    assert [rows[i]["id"] for i in range(0, 18, 3)] == [rows[i]["id"] for i in range(2, 18, 3)]
    assert len({json.dumps(row["turns"]) for row in rows}) > 6


def test_a_checkpoints_weights_are_the_ones_that_are_tested(tmp_path):
    """A learning rate of 1 ruins the policy in one iteration."""
    quick = ("--trainer.limit_val_batches", "0", "--trainer.max_epochs", "1")
    ruined = run(pytest.MonkeyPatch.context, "fit", tmp_path / "fit", "--model.actor_lr", "1.0", *quick)
    context = pytest.MonkeyPatch.context
    before = results(run(context, "validate", tmp_path / "a"), "validate")
    after = results(run(context, "validate", tmp_path / "b", "--ckpt_path", str(ruined.last)), "validate")
    assert set(before["all"]) == set(after["all"])
    assert before["all"]["tool_calls"] > 0
    assert (after["all"]["em"], after["all"]["tool_calls"]) == (0.0, 0.0)


def test_results_table_has_a_row_per_source_and_dashes_for_what_was_not_measured():
    table = results_table({"nq": {"em": 0.5, "episodes": 2}, "all": {"em": 0.25, "episodes": 4}}, "title")
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert len(cells) == 2 + len(COLUMNS) - 2  # no F1 and no score
    assert cells["data source"] == ["nq", "all"]
    assert cells["episodes"] == ["2", "4"]
    assert cells["EM"] == ["0.500", "0.250"]
    assert cells["tool calls"] == ["-", "-"]
    with_score = results_table({"shop": {"score": 0.5, "episodes": 2}}, "title")
    assert [str(column.header) for column in with_score.columns][2:4] == ["score", "success"]
