"""Task sources: both row forms, broken rows, limits, ids, and the small real sets."""

import json
import os
from pathlib import Path

import pytest

from lit_treerl.data.rows import task_from_row
from lit_treerl.data.sources import HFTasks, JSONLTasks, ParquetTasks
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.retrieval.bm25 import BM25Retriever
from lit_treerl.trees.task import Task

PLAIN = {"id": "p1", "question": " Who? ", "golden_answers": ["Ada", "Ada Lovelace"]}
PROMPT = [{"role": "system", "content": "s"}, {"role": "user", "content": "Question: Who?"}]
SEARCH_R1 = {
    "data_source": "nq",
    "prompt": PROMPT,
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
    "extra_info": {"split": "test", "index": 3},
}


def write(path: Path, *lines) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def plain(n: int) -> list[dict]:
    return [{"id": str(i), "question": f"q{i}", "answer": "x"} for i in range(n)]


def test_a_plain_row():
    assert task_from_row(PLAIN, "mine") == Task("p1", "mine", "Who?", ("Ada", "Ada Lovelace"))


def test_a_search_r1_row():
    task = task_from_row(SEARCH_R1, "mine")
    assert (task.data_source, task.question, task.answers) == ("nq", "Question: Who?", ("Ada",))
    assert task.prompt == tuple(PROMPT)
    assert task.extra == {"split": "test", "index": 3}


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answer": "x"}, ("x",)),
        ({"answers": ["x", " x ", "y"]}, ("x", "y")),
        ({"answer": 1862}, ("1862",)),
        ({"golden_answers": ["", "y"]}, ("y",)),
        ({"golden_answers": None, "answer": "z"}, ("z",)),
        ({"reward_model": {"ground_truth": {"target": "x"}}}, ("x",)),
        ({"reward_model": {"ground_truth": "x"}}, ("x",)),
        ({"answer": "mine", "reward_model": {"ground_truth": {"target": ["theirs"]}}}, ("mine",)),
    ],
)
def test_forms_of_answers(row, answers):
    assert task_from_row({"question": "q"} | row, "s").answers == answers


def test_a_prompt_may_be_a_string():
    task = task_from_row({"prompt": "Who?", "answer": "x"}, "s")
    assert task.prompt == ({"role": "user", "content": "Who?"},)
    assert task.question == "Who?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "must be an object, not list"),
        ({"answer": "x"}, "needs a 'question' or a 'prompt'"),
        ({"question": " ", "answer": "x"}, "needs a 'question'"),
        ({"question": "q"}, r"needs one of golden_answers, answers, answer or .*target; has \['question'\]"),
        ({"question": "q", "answers": []}, "no answer that is not empty"),
        ({"question": "q", "answers": ["", " "]}, "no answer that is not empty"),
        ({"question": "q", "answers": [["x"]]}, "a string or a list of strings"),
        ({"question": "q", "answers": {"x": 1}}, "a string or a list of strings"),
        ({"question": "q", "answer": "x", "prompt": []}, "list of messages"),
        ({"question": "q", "answer": "x", "prompt": [{"role": "user"}]}, "needs 'role' and 'content'"),
        ({"prompt": [{"role": "system", "content": "s"}], "answer": "x"}, "a 'prompt' with a user message"),
        ({"question": "q", "answer": "x", "data_source": 3}, "'data_source' must be a name"),
    ],
)
def test_broken_rows_say_what_is_wrong(row, message):
    with pytest.raises(ValueError, match=message):
        task_from_row(row, "s")


def test_ids_without_an_own_one_come_from_the_content():
    first = task_from_row({"question": "q", "answer": "x"}, "s")
    assert first.id == task_from_row({"answer": "x", "question": "q", "other": 1}, "s").id
    others = [({"question": "q", "answer": "y"}, "s"), ({"question": "r", "answer": "x"}, "s")]
    others.append(({"question": "q", "answer": "x"}, "other"))
    assert len({first.id, *(task_from_row(row, source).id for row, source in others)}) == 4
    assert task_from_row({"id": 0, "question": "q", "answer": "x"}, "s").id == "0"


def test_repeated_ids_are_made_unique_in_order(tmp_path):
    rows = [{"id": name, "question": "q", "answer": "x"} for name in ("a", "a", "a#2", "b", "a", "a#2")]
    tasks = JSONLTasks(write(tmp_path / "t.jsonl", *rows)).load()
    assert [task.id for task in tasks] == ["a", "a#3", "a#2", "b", "a#4", "a#2#2"]


def test_jsonl_parquet_and_datasets_give_the_same_tasks(tmp_path):
    import datasets

    rows = [SEARCH_R1 | {"id": "r0"}, SEARCH_R1 | {"id": "r1", "data_source": "hotpotqa"}]
    expected = [task_from_row(row, "unused") for row in rows]
    dataset = datasets.Dataset.from_list(rows)
    dataset.to_parquet(tmp_path / "train.parquet")
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"dev": dataset}).save_to_disk(tmp_path / "several")
    sources = [
        JSONLTasks(write(tmp_path / "t.jsonl", *rows)),
        ParquetTasks(str(tmp_path / "train.parquet")),
        HFTasks(str(tmp_path / "one")),
        HFTasks(str(tmp_path / "several"), split="dev"),
    ]
    assert [source.load() for source in sources] == [expected] * 4
    with pytest.raises(ValueError, match="no split 'test'; it has dev"):
        HFTasks(str(tmp_path / "several"), split="test").load()


def test_the_data_source_comes_from_the_row_the_parameter_or_the_file(tmp_path):
    path = write(tmp_path / "my_set.jsonl", PLAIN, PLAIN | {"data_source": "nq"})
    assert [task.data_source for task in JSONLTasks(path).load()] == ["my_set", "nq"]
    assert [task.data_source for task in JSONLTasks(path, "given").load()] == ["given", "nq"]


def test_limit_stops_reading(tmp_path):
    path = write(tmp_path / "t.jsonl", *plain(3), "{broken")
    assert [task.id for task in JSONLTasks(path, limit=3).load()] == ["0", "1", "2"]
    with pytest.raises(ValueError, match="limit is 0"):
        JSONLTasks(path, limit=0)


def test_few_broken_rows_are_reported_and_counted(tmp_path, caplog):
    source = JSONLTasks(write(tmp_path / "t.jsonl", *plain(98), "", "{broken", {"question": "q"}), max_broken=0.02)
    assert len(source.load()) == 98
    assert source.broken == 2
    assert [message.split("t.jsonl, ")[1][:9] for message in caplog.messages] == ["line 100:", "line 101:"]
    assert "needs one of golden_answers" in caplog.messages[1]


def test_too_many_broken_rows_stop_the_run(tmp_path):
    path = write(tmp_path / "t.jsonl", *plain(98), "{broken", {"question": "q"})
    with pytest.raises(
        ValueError, match=r"t\.jsonl: 2 of 100 rows are broken, more than max_broken \(1\.0%\)"
    ) as error:
        JSONLTasks(path).load()
    assert "line 99: " in str(error.value)
    assert "line 100: " in str(error.value)


def test_the_report_of_broken_rows_is_bounded(tmp_path, caplog):
    source = JSONLTasks(write(tmp_path / "t.jsonl", *plain(5), *["[]"] * 500), max_broken=1.0)
    assert len(source.load()) == 5
    assert source.broken == 500
    assert len(caplog.messages) == 11
    assert "left out 500 broken rows, 490 of them not shown" in caplog.messages[-1]


def test_bad_bytes_are_a_broken_row(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"question": "\xff", "answer": "x"}\n{"question": "q", "answer": "x"}\n')
    source = JSONLTasks(str(path), max_broken=0.5)
    assert [task.question for task in source.load()] == ["q"]
    assert source.broken == 1


@pytest.mark.parametrize("lines", [[], ["", " "], ["{"]])
def test_a_source_without_tasks_is_an_error(tmp_path, lines):
    with pytest.raises(ValueError, match=r"t\.jsonl: has no tasks"):
        JSONLTasks(write(tmp_path / "t.jsonl", *lines), max_broken=1.0).load()


def test_missing_and_foreign_files_are_named(tmp_path):
    for source in (JSONLTasks("nowhere.jsonl"), ParquetTasks("nowhere.parquet")):
        with pytest.raises(FileNotFoundError, match="no task file at nowhere"):
            source.load()
    path = write(tmp_path / "t.parquet", PLAIN)
    with pytest.raises(ValueError, match=r"t\.parquet: is no parquet file"):
        ParquetTasks(path).load()
    with pytest.raises(ValueError, match="max_broken is 2"):
        JSONLTasks(path, max_broken=2)


SHARED = Path(os.environ.get("LIT_TREERL_SHARED_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.mark.skipif(not SHARED.is_dir(), reason="set LIT_TREERL_SHARED_DATA to a folder with the small real sets")
@pytest.mark.parametrize("name", ["hotpotqa", "2wikimultihopqa", "musique"])
def test_the_small_real_sets(tmp_path, name):
    """Every question finds passages, and asking for the answer finds one that holds it."""
    source = JSONLTasks(str(SHARED / f"ircot_{name}_qa.jsonl"))
    tasks = source.load()
    assert source.broken == 0
    env = SearchQA(BM25Retriever(str(SHARED / f"ircot_{name}_corpus.jsonl"), str(tmp_path)))
    env.setup()
    found = 0
    for task in tasks:
        env.reset(task)
        seen = env.step(f"<think>a</think><search>{task.question}</search>")
        assert seen.observation.startswith('\n\n<information>Doc 1 (Title: "')
        found += any(answer.lower() in seen.observation.lower() for answer in task.answers)
        result = env.step(f"<think>a</think><answer>{task.answers[0]}</answer>")
        assert (result.reward, result.info["em"], result.info["format_valid"]) == (1.0, 1.0, True)
    assert found >= len(tasks) / 4
