"""ALFWorld: equal to the stock engine, states to come back to, and the six types of tasks won from what is shown."""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("alfworld")

from lit_treerl.data.alfworld_agents import HouseholdAgent
from lit_treerl.data.alfworld_tasks import AlfworldTasks
from lit_treerl.envs.alfworld import engine as engine_module
from lit_treerl.envs.alfworld.engine import Engine
from lit_treerl.envs.alfworld.env import ALFWorld
from lit_treerl.envs.alfworld.goals import read_goal
from lit_treerl.envs.alfworld_games.settings import TASK_TYPES
from lit_treerl.envs.base import Environment, EnvironmentFailure
from lit_treerl.envs.command_env import INVALID
from lit_treerl.trees.task import Task

EASY = {"receptacles": 6, "alike": 2, "distractors": (2, 4)}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_TREERL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tasks():
    return AlfworldTasks("train", n=12, **EASY).load()


def turn(command: str) -> str:
    return f"<think>a</think><action>{command}</action>"


def commands_of(env: ALFWorld) -> tuple[str, ...]:
    return env.snapshot()[0].scene.commands


def walk(env: ALFWorld, rng: random.Random, steps: int) -> list:
    """Random commands, now and then one that is not taken; the results."""
    results = []
    for _ in range(steps):
        command = rng.choice([*commands_of(env), "fly away"])
        results.append(env.step(turn(command)))
        if results[-1].done:
            break
    return results


def shared_locations(file: Path, out: Path) -> Path:
    """The game with two receptacles moved to one location, as there are in released games."""
    game = json.loads(file.read_text())
    lines = game["pddl_problem"].split("\n")
    first, second = [line.split()[-1].rstrip(")") for line in lines if "(receptacleAtLocation" in line][:2]
    game["pddl_problem"] = "\n".join(
        line if line.strip() == f"{second} - location" else line.replace(second, first) for line in lines
    )
    out.write_text(json.dumps(game))
    return out


def stock_states(file: str, rng: random.Random, steps: int):
    """Command and what the stock engine says to it, from the beginning on."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)), shuffle=False)
    env.load(file)
    state, command, done = env.reset(), None, False
    for _ in range(steps):
        yield command, (state.feedback, state.admissible_commands, state.won)
        if done:
            return
        command = rng.choice([*state.admissible_commands, "fly away"])
        state, _, done = env.step(command)


def compare_with_stock(file: str, rng: random.Random, steps: int) -> int:
    engine, path, compared = Engine(), (), 0
    for command, expected in stock_states(file, rng, steps):
        text = engine.text(file, path)
        if command is not None:
            operator = engine.commands(file, path).get(command)
            path = path if operator is None else (*path, operator)
            text = "Nothing happens." if operator is None else engine.text(file, path)
        assert (text, sorted(engine.commands(file, path)), engine.standing(file, path)[0]) == expected
        compared += 1
    return compared


def test_texts_commands_and_outcome_are_those_of_the_stock_engine(tmp_path):
    rng = random.Random(0)
    games = [task.extra["game"] for task in AlfworldTasks("train", n=6, receptacles=4, distractors=(2, 3)).load()]
    games.append(str(shared_locations(Path(games[0]), tmp_path / "game.tw-pddl")))
    assert sum(compare_with_stock(game, rng, 12) for game in games) >= 70


@pytest.mark.slow
def test_games_of_the_released_size_are_equal_too():
    rng = random.Random(1)
    games = [task.extra["game"] for task in AlfworldTasks("valid_unseen", n=12, seed=1).load()]
    assert sum(compare_with_stock(game, rng, 40) for game in games) >= 400


def test_hundreds_of_states_come_back_as_by_replay(tasks):
    """In other instances and other orders, with other games in between."""
    rng, states = random.Random(2), []
    for task in tasks:
        env = ALFWorld()
        env.reset(task)
        for _ in range(20):
            states.append((env.snapshot(), task, tuple(env._history)))
            if walk(env, rng, 1)[-1].done:
                break
    assert len(states) > 200
    rng.shuffle(states)
    fork, replay = ALFWorld(), ALFWorld()
    for snapshot, task, history in states:
        fork.restore(pickle.loads(pickle.dumps(snapshot)))
        Environment.restore(replay, (task, history))
        assert fork.snapshot() == replay.snapshot()
        ahead = [walk(one, random.Random(7), 2) for one in (fork, replay)]
        assert ahead[0] == ahead[1]


def test_instances_take_turns_at_one_library(tasks):
    alone, mixed = [], []
    for task in tasks[:3]:
        env = ALFWorld()
        env.reset(task)
        alone.append(walk(env, random.Random(3), 8))
    envs: list[Any] = [ALFWorld().spawn() for _ in range(3)]
    rngs = [random.Random(3) for _ in range(3)]
    for env, task in zip(envs, tasks, strict=False):
        env.reset(task)
        mixed.append([])
    for _ in range(8):
        for env, rng, results in zip(envs, rngs, mixed, strict=True):
            if not (results and results[-1].done):
                results += walk(env, rng, 1)
    assert mixed == alone


def test_little_memory_changes_nothing(tasks, monkeypatch):
    def play():
        env = ALFWorld()
        out = []
        for task in (*tasks[:3], tasks[0]):
            env.reset(task)
            out.append(walk(env, random.Random(4), 12))
        return out

    expected = play()
    for name, kept in (("KEPT_STATES", 2), ("KEPT_GAMES", 1)):
        monkeypatch.setattr(engine_module, name, kept)
    engine_module.shared_engine.cache_clear()
    assert play() == expected


def test_two_engines_do_not_take_each_others_states(tasks):
    one, two = Engine(), Engine()
    first, second = (task.extra["game"] for task in tasks[:2])
    expected = one.commands(first, ())
    two.commands(second, ())
    assert one.text(first, (expected["look"],)).startswith("You are in the middle of a room.")
    two.text(first, ())
    assert one.commands(first, (expected["inventory"],)) == {**expected}


@pytest.mark.parametrize("split", ["train", "valid_unseen"])
def test_the_scripted_agent_wins_all_six_types(split):
    games = AlfworldTasks(split, n=12, seed=3, **EASY).load()
    assert {task.data_source for task in games} == {f"alfworld/{name}" for name in TASK_TYPES}
    env = ALFWorld(scale=10.0)
    for number, task in enumerate(games):
        env.reset(task)
        rng = random.Random(number) if number % 2 else None
        agent, scores, result = HouseholdAgent(task.extra["task_type"], task.extra["params"], rng), [0.0], None
        while result is None or not result.done:
            scene = env.snapshot()[0].scene
            result = env.step(turn(agent.act(scene.text, scene.commands)))
            assert not result.info["invalid"]
            scores.append(env.snapshot()[0].scene.score)
        assert (result.reward, result.info["success"], result.info["score"]) == (10.0, 1.0, 1.0)
        assert all(score < 1 for score in scores[:-1])
        parts = {"pick_and_place_simple": 1, "look_at_obj_in_light": 2, "pick_two_obj_and_place": 2}
        share = 1 / parts.get(task.extra["task_type"], 3)
        assert all(min(abs(score - k * share) for k in range(4)) < 1e-9 for score in scores)
        assert max(scores[:-1]) >= 1 - 2 * share - 1e-9


def test_the_first_prompt_shows_the_task_the_room_and_what_can_be_done(tasks):
    env, task = ALFWorld(intro="room"), tasks[0]
    [message] = env.reset(task)
    text = message["content"]
    assert task.question in text
    assert "Welcome" not in text
    assert text.count(task.question) == 1
    assert "\nYou are in the middle of a room. Looking quickly around you, you see a " in text
    assert "Step 1 of 50 at most" in text
    offered = commands_of(env)
    assert list(offered) == sorted(offered)
    assert {"look", "inventory"} <= set(offered)
    assert "help" not in offered
    assert f"Your task is to: {task.question}." in ALFWorld().reset(task)[0]["content"]


def test_commands_not_taken_change_nothing_and_count_as_invalid(tasks):
    env = ALFWorld(invalid_penalty=0.1, max_turns=3)
    env.reset(tasks[0])
    before = env.snapshot()[1]
    result = env.step(turn("take moon 1 from sky 1"))
    assert result.observation.strip().startswith("Nothing happens.")
    assert (result.action_key, result.reward, result.done, result.info["invalid"]) == (INVALID, -0.1, False, True)
    assert env.snapshot()[1] == before
    place = next(command for command in commands_of(env) if command.startswith("go to "))
    result = env.step(turn(f" {place.replace(' ', '  ')}"))
    assert (result.action_key, result.reward, result.info["tool_calls"]) == (place, 0.0, 1)
    last = env.step("no command at all")
    assert (last.done, last.reward, last.info["success"], last.info["invalid_turns"]) == (True, -0.1, 0.0, 2)


def test_goals_are_read_from_the_pddl():
    goal = "(:goal (and (exists (?r - receptacle) (exists (?o - object) (and (isHot ?o) (heatable ?o) "
    goal += "(objectType ?o MugType) (receptacleType ?r ShelfType) (inReceptacle ?o ?r))))))"
    found = read_goal(goal)
    assert found is not None
    assert (found.object, found.place, found.treated, found.number, found.light) == (
        *("mugtype", "shelftype", "ishot"),
        *(1, ""),
    )
    facts = {"objecttype": (("mug", "mugtype"), ("mug2", "mugtype")), "receptacletype": (("shelf", "shelftype"),)}
    assert found.score(facts) == 0
    assert found.score({**facts, "inreceptacle": (("mug", "shelf"),), "ishot": (("mug2",),)}) == pytest.approx(2 / 3)
    assert found.score({**facts, "inreceptacle": (("mug", "shelf"),), "ishot": (("mug",),)}) == 1
    assert read_goal(goal.replace("isHot", "isSliced")) is None
    assert read_goal("(define (problem x))") is None


def test_broken_games_are_named_with_their_field(tasks, tmp_path):
    game = json.loads(Path(tasks[0].extra["game"]).read_text())
    file = tmp_path / "game.tw-pddl"
    cases = {
        "'pddl_problem' of a game must be text": {**game, "pddl_problem": None},
        "'grammar' of a game must be text": {key: game[key] for key in ("pddl_domain", "pddl_problem")},
        "a game is a JSON object, but this is a list": [1],
    }
    for message, data in cases.items():
        file.write_text(json.dumps(data))
        with pytest.raises(ValueError, match=message) as caught:
            ALFWorld().reset(Task("t", "alfworld", "q", extra={"game": str(file)}))
        assert str(file) in str(caught.value)
    for field in ("pddl_problem", "grammar"):
        file.write_text(json.dumps({**game, field: game[field][: len(game[field]) // 2]}))
        with pytest.raises(EnvironmentFailure, match=f"game.tw-pddl: the field '{field}' cannot be"):
            ALFWorld().reset(Task("t", "alfworld", "q", extra={"game": str(file)}))
    with pytest.raises(ValueError, match="cannot be read"):
        ALFWorld().reset(Task("t", "alfworld", "q", extra={"game": str(tmp_path / "none")}))
    with pytest.raises(ValueError, match=r"task 't' has no game: an ALFWorld task needs extra\['game'\]"):
        ALFWorld().reset(Task("t", "alfworld", "q"))
    with pytest.raises(ValueError, match="intro must be"):
        ALFWorld(intro="none")  # type: ignore[arg-type]
    env = ALFWorld()  # and the engine still works
    env.reset(tasks[1])
    assert env.step(turn("look")).action_key == "look"


def test_damaged_translations_are_made_again(tasks):
    import os

    env = ALFWorld()
    env.reset(tasks[0])
    expected = commands_of(env)
    files = list((Path(os.environ["LIT_TREERL_CACHE"]) / "alfworld" / "translations").iterdir())
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    engine_module.shared_engine.cache_clear()
    env.reset(tasks[0])
    assert commands_of(env) == expected
