"""Adapters: gymnasium environments that speak, and TextWorld games."""

from __future__ import annotations

import pickle
import shutil
import sys
from dataclasses import replace

import pytest

from command_world import act
from lit_treerl.data.textworld_tasks import TextWorldTasks
from lit_treerl.envs.checker import check_environment
from lit_treerl.envs.gymnasium_text import GymnasiumText
from lit_treerl.envs.textworld_game import TextWorldGame
from lit_treerl.envs.textworld_text import WorldInWords
from lit_treerl.trees.task import Task

NAMES = ("colder", "warmer", "stop")
FACTORY = "gymnasium_worlds:thermometer"
AT_2 = Task("t1", "weather", "make it 0 degrees", extra={"options": {"at": 2}, "seed": 3})
TASKS = [AT_2, *(Task(f"t{i}", "weather", "make it 0 degrees") for i in range(2, 5))]


def played(env, task, *commands):
    env.reset(task)
    return [env.step(act(command)) for command in commands]


# ---- gymnasium ----


@pytest.fixture
def thermometer():
    pytest.importorskip("gymnasium")
    return lambda form="names", **options: GymnasiumText(
        FACTORY,
        {"form": form, **options.pop("env_args", {})},
        commands=NAMES if form in ("names", "dict", "mask") else None,
        text_key="text" if form == "dict" else None,
        **options,
    )


@pytest.mark.parametrize("form", ["names", "dict", "mask", "offered", "free"])
def test_a_gymnasium_environment_is_a_world_of_commands(thermometer, form):
    env = thermometer(form)
    results = played(env, AT_2, "colder", "hotter!", "colder", "stop")
    assert [r.action_key for r in results] == ["colder", "INVALID", "colder", "stop"]
    assert [r.reward for r in results] == [0.0, 0.0, 0.0, 1.0]
    assert "It is 1 degrees." in results[0].prompt[0]["content"]
    assert (results[-1].info["success"], results[-1].info["score"]) == (1.0, 1.0)
    assert env.offered() == ()


@pytest.mark.parametrize("form", ["names", "mask", "offered", "free"])
@pytest.mark.parametrize("copying", ["auto", "deepcopy", "replay"])
def test_it_keeps_the_contract(thermometer, form, copying):
    env = thermometer(form, copying=copying, reward="score")
    actions = [act(name) for name in (*NAMES, "colder", "jump")] if form == "free" else None
    report = check_environment(env, TASKS, actions=actions, reward_range=(0, 1)).assert_ok()
    assert report.turns > 20
    env.runs_in = "processes"
    check_environment(env, TASKS, actions=actions, episodes=4).assert_ok()


def test_what_cannot_be_copied_is_replayed(thermometer):
    env = thermometer(env_args={"stubborn": True})
    check_environment(env, TASKS).assert_ok()
    env = thermometer(env_args={"stubborn": True}, copying="deepcopy")
    env.reset(AT_2)
    with pytest.raises(TypeError, match="generator"):
        env.snapshot()


def test_rewards_are_summed_and_made_a_score(thermometer):
    [*_, last] = played(thermometer(reward="score"), AT_2, "colder", "colder", "warmer", "stop")
    assert (last.reward, last.info["success"], last.info["score"]) == (0.5, 0.0, 0.5)
    [*_, last] = played(thermometer(best_return=0.5), AT_2, "colder", "colder", "warmer", "stop")
    assert (last.reward, last.info["score"]) == (1.0, 1.0)
    results = played(thermometer(env_args={"limit": 2}), AT_2, "colder", "colder")
    assert [(r.done, r.reward) for r in results] == [(False, 0.0), (True, 0.0)]  # cut by the environment


def test_the_task_decides_the_seed(thermometer):
    for seeds in ([{"seed": seed} for seed in range(20)], [{} for _ in range(20)]):
        tasks = [Task(f"t{i}", "weather", "q", extra=extra) for i, extra in enumerate(seeds)]
        first, again = ([thermometer().reset(task)[0]["content"] for task in tasks] for _ in range(2))
        assert first == again
        assert len(set(first)) == 3


def test_masked_actions_are_neither_offered_nor_taken(thermometer):
    env = thermometer("mask")
    env.reset(Task("t", "weather", "q", extra={"options": {"at": 3}}))
    assert env.offered() == ("colder", "stop")
    assert env.step(act("warmer")).action_key == "INVALID"


def test_ids_work_like_factories(thermometer):
    env = GymnasiumText("gymnasium_worlds:Thermometer-v0", commands=NAMES)
    assert played(env, AT_2, "colder", "colder", "stop")[-1].reward == 1.0
    check_environment(env, TASKS, episodes=4).assert_ok()
    env.close()
    assert "It is 2 degrees." in env.reset(AT_2)[0]["content"]


def test_settings_that_cannot_work(thermometer, monkeypatch):
    for form, options, message in [
        ("names", {"commands": NAMES[:2]}, "has 3 actions and commands names 2; name each of them"),
        ("names", {}, "has 3 actions and commands names 0"),
        ("free", {"commands": NAMES}, "commands names the actions of a Discrete space; .* has Text"),
        ("dict", {"commands": NAMES}, "text_key is None, but the observations of .* have 'text', 'n'"),
    ]:
        with pytest.raises(ValueError, match=message):
            GymnasiumText(FACTORY, {"form": form}, **options).reset(AT_2)
    with pytest.raises(ValueError, match="must be text, or dicts with text; got int"):
        GymnasiumText("gymnasium_worlds:Mute", commands=NAMES).reset(AT_2)
    for options, message in [
        ({"best_return": 0}, "best_return must be above 0"),
        ({"copying": "fork"}, "copying must be one of 'auto'"),
        ({"runs_in": "gpu"}, "runs_in must be one of"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            GymnasiumText(FACTORY, **options)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install 'lit-treerl\[gymnasium\]'"):
        GymnasiumText("Thermometer-v0").reset(AT_2)


# ---- TextWorld ----


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """One game of cooking, which takes seconds to make, under two names."""
    pytest.importorskip("textworld")
    folder = tmp_path_factory.mktemp("games")
    [made] = TextWorldTasks(challenge="cooking", levels=[3], n=1, seed=1, folder=str(folder)).load()
    other = folder / "cooking-other.json"
    shutil.copy(made.extra["game"], other)
    return [made, replace(made, id=other.stem, extra={"game": str(other)})]


def winning(game) -> list[str]:
    """What TextWorld's own solver does."""
    import json

    with open(game.extra["game"]) as file:
        return json.load(file)["metadata"]["walkthrough"]


def test_games_are_won_by_their_walkthrough(games):
    env = TextWorldGame(reward="score")
    env.setup()
    for game in games:
        results = played(env, game, *winning(game))
        assert [r.done for r in results] == [False] * (len(results) - 1) + [True]
        assert not any(r.info["invalid"] for r in results)
        assert (results[-1].reward, results[-1].info["success"]) == (1.0, 1.0)


def test_a_json_game_is_told_in_words(games):
    env = TextWorldGame(context="growing")
    [message] = env.reset(games[1])
    assert "You are in: kitchen.\nHere: counter with " in message["content"]
    assert "You carry: nothing." in message["content"]
    assert "open fridge" in env.offered()
    assert "[if" not in env.step(act("Examine Cookbook")).observation
    opened = env.step(act("open fridge"))
    assert "fridge (closed)" in message["content"]
    assert "fridge (open)" in opened.observation
    assert opened.action_key == "open fridge"
    refused = env.step(act("dance"))
    assert (refused.action_key, refused.info["invalid"]) == ("INVALID", True)
    assert "Nothing happens." in refused.observation
    assert "close fridge" in env.offered()


def test_a_lost_game_is_over(games):
    """The only ingredient is burned by cooking it twice."""
    way = winning(games[0])
    cook = next(i for i, command in enumerate(way) if command.startswith("cook "))
    results = played(TextWorldGame(reward="score", scale=10), games[0], *way[: cook + 1], way[cook])
    assert [r.done for r in results[-2:]] == [False, True]
    assert results[-1].action_key == way[cook]
    assert (results[-1].info["success"], results[-1].info["score"]) == (0.0, 0.5)
    assert results[-1].reward == 5.0


@pytest.mark.parametrize("context", ["window", "growing"])
def test_games_keep_the_contract(games, context):
    env = TextWorldGame(max_turns=8, context=context)
    assert env.runs_in == "processes"
    report = check_environment(env, games, episodes=4, reward_range=(0, 1)).assert_ok()
    assert report.turns > 8


def test_instances_leave_engines_behind(games):
    env = TextWorldGame()
    env.reset(games[0])
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    twin = pickle.loads(pickle.dumps(env))
    twin.restore(snapshot)
    assert twin.step(act("inventory")) == env.step(act("inventory"))
    env.close()
    env.restore(snapshot)
    assert env.offered() == twin.offered()


@pytest.mark.slow
def test_made_games_depend_on_their_settings_alone(games, tmp_path):
    again = TextWorldTasks(challenge="cooking", levels=[3], n=1, seed=1, folder=str(tmp_path)).load()
    first, second = (played(TextWorldGame(), task, *winning(games[0])) for task in (games[0], again[0]))
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == ["cooking-3-1-0.json"]


@pytest.mark.slow
def test_hints_tell_the_way(tmp_path):
    pytest.importorskip("textworld")
    [last], [whole] = (
        TextWorldTasks(challenge="coin_collector", levels=[2], n=1, hints=hints, folder=str(tmp_path)).load()
        for hints in (False, True)
    )
    assert "coin" in last.question
    assert len(whole.question) > len(last.question)
    results = played(TextWorldGame(), last, *winning_moves(last))
    assert results[-1].info["success"] == 1.0
    assert "Ways out: " in results[0].observation


@pytest.mark.slow
def test_z_machine_games_are_played_with_their_own_text(games, tmp_path):
    import textworld
    from textworld.generator import compile_game

    options = textworld.GameOptions()
    options.path = str(tmp_path / "game.z8")
    compile_game(textworld.Game.load(games[1].extra["game"]), options)
    [task] = TextWorldTasks(options.path).load()
    assert task.question == games[1].question
    results = played(TextWorldGame(context="growing"), task, *winning(games[1]))
    assert results[-1].info["success"] == 1.0
    assert results[0].observation.startswith("\n\nYou are carrying nothing.\n\nYou can do:\n")
    check_environment(TextWorldGame(max_turns=6), [task], episodes=2).assert_ok()


def winning_moves(game) -> list[str]:
    import textworld

    return list(textworld.Game.load(game.extra["game"]).walkthrough)


def test_files_are_tasks_in_the_order_of_their_names(games, tmp_path):
    first = games[0].extra["game"]
    assert (games[0].id, games[0].data_source) == ("cooking-3-1-0", "textworld_cooking")
    assert "delicious meal" in games[0].question
    pattern = first.replace("cooking-3-1-0", "*")
    assert [task.id for task in TextWorldTasks(pattern).load()] == ["cooking-3-1-0", "cooking-other"]
    [task] = TextWorldTasks([pattern], limit=1).load()
    assert (task.extra["game"], task.data_source) == (first, "textworld")
    (tmp_path / "a.z8").write_bytes(b"")
    assert TextWorldTasks(str(tmp_path / "a.z8")).load()[0].question == "Finish the game."
    with pytest.raises(ValueError, match="have one name"):
        TextWorldTasks([first, first]).load()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "a.json: is no JSON"),
        ("a.json", "[]", "a.json: is no TextWorld game: 'world' and 'infos' are missing"),
        ("a.txt", "", "a.txt: a TextWorld game ends in .json, .z3"),
    ],
)
def test_files_that_are_no_games(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        TextWorldTasks(str(tmp_path / name)).load()
    with pytest.raises(FileNotFoundError, match=r"no TextWorld game at .*nothing"):
        TextWorldTasks(str(tmp_path / "nothing*.json")).load()


def test_broken_games_and_tasks_are_named(tmp_path):
    pytest.importorskip("textworld")
    (tmp_path / "a.json").write_text('{"world": [], "infos": []}')
    (tmp_path / "a.txt").write_text("x")
    env = TextWorldGame()
    for game, error, message in [
        (str(tmp_path / "a.json"), ValueError, "a.json: is no TextWorld game"),
        (str(tmp_path / "b.json"), FileNotFoundError, "no TextWorld game at .*b.json"),
        (str(tmp_path / "a.txt"), ValueError, "a.txt: a TextWorld game ends in .json"),
        (None, ValueError, "task 't': extra must name a TextWorld game under 'game', got None"),
    ]:
        with pytest.raises(error, match=message):
            env.reset(Task("t", "textworld", "q", extra={"game": game}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either games"),
        ({"games": "x", "challenge": "cooking"}, "give either games"),
        ({"challenge": "chess"}, "challenge must be one of coin_collector, treasure_hunter, cooking, got 'chess'"),
        ({"challenge": "cooking", "levels": [1, 9]}, "levels of cooking go from 1 to 8, got 9"),
        ({"challenge": "treasure_hunter", "levels": [0]}, "go from 1 to 30, got 0"),
        ({"challenge": "cooking", "levels": []}, "levels must not be empty"),
        ({"challenge": "cooking", "n": 0}, "n must be at least 1"),
        ({"challenge": "cooking", "seed": -1}, "seed from 0 to 65535"),
        ({"games": "x", "limit": 0}, "limit is 0"),
    ],
)
def test_sources_that_cannot_work(settings, message):
    with pytest.raises(ValueError, match=message):
        TextWorldTasks(**settings)


def test_a_missing_textworld_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ImportError, match=r"pip install 'lit-treerl\[alfworld\]'"):
        TextWorldGame().setup()


class Named:
    """Stands for TextWorld's propositions, variables and infos."""

    def __init__(self, name, *ids, desc=None, noun=None):
        self.name, self.arguments, self.desc, self.noun = name, [Named(i) for i in ids], desc, noun


def test_states_in_words():
    infos = {
        "r1": Named("cellar"),
        "d1": Named("oak door"),
        "c1": Named("old chest", desc="The [noun] is heavy. [if open]It is open.[else]Shut.[end if]", noun="chest"),
        "o1": Named("coin"),
        "s1": Named("shelf"),
        "f1": Named("leek"),
    }
    facts = [
        Named("at", "P", "r1"),
        Named("at", "c1", "r1"),
        Named("at", "s1", "r1"),
        Named("in", "o1", "c1"),
        Named("on", "f1", "s1"),
        Named("raw", "f1"),
        Named("uncut", "f1"),
        Named("cuttable", "f1"),
        Named("locked", "c1"),
        Named("north_of", "r2", "r1"),
        Named("east_of", "r3", "r1"),
        Named("east_of", "r1", "r4"),
        Named("link", "r1", "d1", "r2"),
        Named("closed", "d1"),
    ]
    words = WorldInWords(infos, facts)
    assert words.scene() == (
        "You are in: cellar.\nHere: old chest (locked); shelf with leek (raw, uncut).\n"
        "Ways out: east, north through oak door (closed).\nYou carry: nothing."
    )
    opened = WorldInWords(
        infos, [f for f in facts if f.name != "locked"] + [Named("open", "c1"), Named("in", "f1", "I")]
    )
    assert "old chest (open) with coin" in opened.scene()
    assert "You carry: leek (raw, uncut)." in opened.scene()
    assert words.details("old chest") == "The chest is heavy."
    assert (words.details("coin"), words.details("moon")) == ("", "")
    assert (
        WorldInWords({}, [Named("at", "P", "r9")]).scene().startswith("You are in: r9.\nHere: nothing.\nWays out: none")
    )
