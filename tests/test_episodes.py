"""Episodes as rows: what a rollout writes, what supervised training reads, and that the ids agree."""

from __future__ import annotations

import json

import pytest
from test_rollout import WindowEnv
from test_rollout_tokens import TOKENS, Fixed

from lit_treerl.data.episodes import JSONLEpisodes, encode_episode
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.rollout.episodes import EPISODE_NUMBERS, episode_numbers, episodes
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import ROOT, RolloutGroup, Status, Tree
from scripted import ScriptedSampler, StateEnv, by_place, grow

THINK = "<think>a</think>"
SEARCH, ANSWER = f"{THINK}<search>b</search>", f"{THINK}<answer>x</answer>"
GOOD = {"prompt": [{"role": "user", "content": "q"}], "turns": [{"action": "a", "observation": "o"}], "reward": 1.0}


def rolled_out(*actions: str, task: Task | None = None) -> RolloutGroup:
    """One chain of these actions in a search environment that finds a hostile passage."""
    env, left = SearchQA(Fixed("one <|im_end|> two", "é"), topk=2, max_turns=3), iter(actions)
    sampler = ScriptedSampler(lambda *_: next(left), TOKENS)
    task = task or Task("t", "nq", "who?", ("x",))
    limits = {"max_context": 9999, "max_observation_tokens": None}
    [group] = grow(sampler, env, TreeSearch(trees=1, expansions=0), [task], tokens=TOKENS, **limits)
    return group


def test_a_row_holds_the_episode_and_its_numbers():
    group = rolled_out(SEARCH, "nonsense", ANSWER)
    [row] = list(episodes(group))
    assert [turn["action"] for turn in row["turns"]] == [SEARCH, "nonsense", ANSWER]
    assert row["turns"][0]["observation"].startswith("\n\n<information>")
    assert row["turns"][2]["observation"] == ""
    assert row["prompt"][0]["content"].endswith("who?")
    assert (row["id"], row["data_source"], row["question"], row["answers"]) == ("t", "nq", "who?", ["x"])
    assert (row["reward"], row["status"], row["info"]["answer"]) == (0.8, "terminal", "x")  # bad format: -0.2
    assert json.loads(json.dumps(row)) == row
    assert episode_numbers(row) == pytest.approx(
        {
            "em": 1.0,
            "f1": 1.0,
            "score": float("nan"),
            "success_rate": 1.0,
            "reward": 0.8,
            "turns": 3.0,
            "tool_calls": 1.0,
            "tokens": float(sum(len(TOKENS.plain(text)) for text in (SEARCH, "nonsense", ANSWER))),
            "failed": 0.0,
            "truncated": 0.0,
        },
        nan_ok=True,
    )


def test_every_leaf_is_a_row_with_its_whole_path():
    script = {(0, 0, 0): "a", (0, 0, 1): "answer x", (0, 1, 0): "answer y", (0, 1, 1): "answer y"}
    [group] = grow(ScriptedSampler(by_place(script)), StateEnv(), TreeSearch(trees=1, expansions=1))
    rows = list(episodes(group))
    assert len(rows) == 2
    assert [turn["action"] for turn in rows[0]["turns"]] == ["a", "answer x"]
    assert rows[1]["turns"][-1]["action"] == "answer y"
    assert [row["reward"] for row in rows] == [1.0, 0.0]


@pytest.mark.parametrize("status", [Status.FAILED, Status.TRUNCATED])
def test_a_tree_without_any_action_is_one_row(status):
    tree = Tree("t")
    tree.add_root([])
    tree.status[ROOT] = status
    [row] = list(episodes(RolloutGroup(Task("t", "nq", "q"), [tree])))
    numbers = episode_numbers(row)
    assert (row["turns"], row["turns_taken"], numbers["failed"]) == ([], 0, float(status is Status.FAILED))
    if status is Status.FAILED:  # kept out of every average but its own
        assert [name for name in EPISODE_NUMBERS if numbers[name] == numbers[name]] == ["failed"]
    else:
        assert (numbers["em"], numbers["truncated"]) == (0.0, 1.0)


def test_an_episode_of_windows_is_written_and_encoded_turn_by_turn():
    left = iter(("a", "b", "answer x"))
    sampler, search = ScriptedSampler(lambda *_: next(left), TOKENS), TreeSearch(trees=1, expansions=0)
    [group] = grow(sampler, WindowEnv(), search, [Task("t", "shop", "q")], tokens=TOKENS, max_context=9999)
    [tree], [row] = group.trees, json.loads(json.dumps(list(episodes(group))))
    assert [turn.get("prompt", [{}])[0].get("content") for turn in row["turns"]] == ["turn 1 a", "turn 2 b", None]
    parts = encode_episode(row, TOKENS)
    contexts = [list(request.prompt_ids) for request in sampler.requests]
    assert [prompt for prompt, _ in parts] == contexts
    assert [turns for _, turns in parts] == [[(tree.ids[n][: tree.action_len[n]], [])] for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "actions", [(ANSWER,), (SEARCH, ANSWER), ("gibberish é", SEARCH, SEARCH, ANSWER)], ids=["answer", "search", "long"]
)
@pytest.mark.parametrize("own_prompt", [False, True])
def test_a_demonstration_is_encoded_as_its_rollout_was(actions, own_prompt):
    prompt = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"}) if own_prompt else None
    group = rolled_out(*actions, task=Task("t", "nq", "who?", ("x",), prompt=prompt))
    [tree], [row] = group.trees, list(episodes(group))
    [(ids, turns)] = encode_episode(json.loads(json.dumps(row)), TOKENS)
    assert ids == tree.ids[ROOT]
    parts = [(tree.ids[n][: tree.action_len[n]], tree.ids[n][tree.action_len[n] :]) for n in range(1, len(tree))]
    assert [(list(action), list(observation)) for action, observation in turns] == parts


# ---- reading files ----


def write(path, *rows) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def test_rows_are_read_in_order_and_blank_lines_skipped(tmp_path):
    other = GOOD | {"reward": 0.2}
    path = write(tmp_path / "e.jsonl", GOOD, "", other)
    assert JSONLEpisodes(path).load() == [GOOD, other]
    assert JSONLEpisodes(path, min_reward=0.5).load() == [GOOD]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "no JSON"),
        ("[]", "it is a list and not an object"),
        ({"turns": GOOD["turns"]}, "'prompt'"),
        ({"prompt": GOOD["prompt"]}, "'turns'"),
        (GOOD | {"prompt": []}, "prompt"),
        (GOOD | {"turns": [{"action": "a", "prompt": "next"}]}, "a turn's 'prompt'"),
        (GOOD | {"prompt": "q"}, "prompt"),
        (GOOD | {"prompt": [{"content": "q"}]}, "'role'"),
        (GOOD | {"prompt": [{"role": "user", "content": 5}]}, "content"),
        (GOOD | {"turns": []}, "turns"),
        (GOOD | {"turns": "a"}, "turns"),
        (GOOD | {"turns": [{"observation": "o"}]}, "'action'"),
        (GOOD | {"turns": [{"action": 5}]}, "action"),
        (GOOD | {"turns": [{"action": ""}]}, "action"),
        (GOOD | {"turns": [{"action": "a", "observation": None}]}, "observation"),
    ],
)
def test_a_row_that_is_no_episode_names_file_line_and_fault(tmp_path, row, message):
    path = write(tmp_path / "e.jsonl", GOOD, "", row)
    with pytest.raises(ValueError, match=rf"e.jsonl:3: not an episode, .*{message}"):
        JSONLEpisodes(path).load()


def test_nothing_to_learn_from_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.jsonl"):
        JSONLEpisodes(str(tmp_path / "none.jsonl")).load()
    with pytest.raises(ValueError, match=r"empty\.jsonl: has no episodes"):
        JSONLEpisodes(write(tmp_path / "empty.jsonl")).load()
    path = write(tmp_path / "low.jsonl", GOOD | {"reward": 0.1})
    with pytest.raises(ValueError, match=r"low\.jsonl: none of 1 episodes has a reward of at least 0\.5"):
        JSONLEpisodes(path, min_reward=0.5).load()


def test_failed_episodes_of_a_prediction_are_left_out(tmp_path):
    tree = Tree("t")
    tree.add_root([])
    tree.status[ROOT] = Status.FAILED
    [failed] = list(episodes(RolloutGroup(Task("t", "nq", "q"), [tree])))
    [row] = list(episodes(rolled_out(SEARCH, ANSWER)))
    assert JSONLEpisodes(write(tmp_path / "e.jsonl", failed, row)).load() == [row]


def test_an_empty_turn_of_a_prediction_can_be_read(tmp_path):
    """A policy may end its turn at once; the environment then answers with its correction."""
    [row] = list(episodes(rolled_out("", ANSWER)))
    assert row["turns"][0]["action"] == ""
    assert JSONLEpisodes(write(tmp_path / "e.jsonl", row)).load() == [row]
