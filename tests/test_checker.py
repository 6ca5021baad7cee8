"""The environment checker: good environments pass, and every broken promise is found and told in words."""

from __future__ import annotations

import itertools
import math
import random
import threading
from dataclasses import replace
from typing import ClassVar

import pytest

from command_world import TASK, Corridor, act
from lit_treerl.data.embedded_search import EmbeddedRetriever, EmbeddedTasks
from lit_treerl.envs.base import Environment, EnvironmentFailure, StepResult
from lit_treerl.envs.check_report import EnvironmentProblems
from lit_treerl.envs.checker import check_environment
from lit_treerl.envs.command_env import Scene
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.trees.task import Task
from scripted import StateEnv

TASKS = [
    TASK,
    Task("t2", "corridor", "take the gem", extra={"rooms": 5}),
    Task("t3", "corridor", "?", extra={"rooms": 1}),
]


def found(env: Environment, tasks=TASKS, **options) -> dict[str, str]:
    """Problems by their check, the first of each."""
    return {p.check: str(p) for p in reversed(check_environment(env, tasks, **options).problems)}


# ---- environments that keep the contract ----


@pytest.mark.parametrize("context", ["window", "growing"])
@pytest.mark.parametrize("runs_in", ["caller", "threads", "processes"])
def test_a_world_of_commands_passes(context, runs_in):
    env = Corridor(context=context, invalid_penalty=0.1)
    env.runs_in = runs_in
    report = check_environment(env, TASKS, reward_range=(-0.1, 1)).assert_ok()
    assert (report.problems, report.notes, report.episodes) == ([], [], 10)
    assert report.won > 0  # the offered commands lead somewhere
    assert set(report.seconds) == {"reset", "step", "snapshot", "restore"}
    assert len(report.seconds["snapshot"]) == report.turns
    assert len(report.seconds["step"]) > 3 * report.turns


class ByReplay(Environment):
    """Counts its turns; snapshots are the default ones, by replay."""

    max_turns = 4

    def __init__(self):
        self.said = []

    def _reset(self, task):
        self.said = []
        return [{"role": "user", "content": task.question}]

    def _step(self, text):
        self.said = [*self.said, text]
        done = len(self.said) == 4
        info = {"success": 1.0} if done else {}
        return StepResult(f"turn {len(self.said)}", "", float(done), done, text, info)


def test_an_environment_by_replay_and_a_search_tool_pass():
    check_environment(ByReplay(), TASKS).assert_ok()
    env = SearchQA(EmbeddedRetriever(), max_turns=2)
    report = check_environment(env, EmbeddedTasks(n=4).load(), episodes=6, reward_range=(-0.2, 1)).assert_ok()
    assert report.turns > 6


def test_search_and_zero_turns():
    env = SearchQA(EmbeddedRetriever(), max_turns=0)
    assert check_environment(env, EmbeddedTasks(n=2).load(), episodes=2).assert_ok().turns == 2


# ---- promises ----


class Lucky(Corridor):
    def _execute(self, command):
        return replace(super()._execute(command), text=f"{random.random()}")


def test_chance_is_found():
    problem = found(Lucky())["determinism"]
    assert "determinism: task 't1', turn 1, '" in problem
    assert ": observation was " in problem
    assert problem.endswith("more times)")


def test_ignored_info_may_differ():
    class Timed(ByReplay):
        counter = itertools.count()

        def _step(self, text):
            result = super()._step(text)
            result.info["seconds"] = next(self.counter)
            return result

    assert "info['seconds'] was 0 and is now " in found(Timed(), TASKS[:1], episodes=1)["determinism"]
    check_environment(Timed(), TASKS, ignore=["seconds"]).assert_ok()


class HalfSnapshot(Corridor):
    """Forgets where it was."""

    def _return_to(self, world):
        self.at, self.length = 0, world[1]


def test_a_snapshot_that_forgets_is_found():
    problems = found(HalfSnapshot())
    assert set(problems) == {"snapshot"}
    assert "snapshot: task 't" in problems["snapshot"]


class Notebook(ByReplay):
    """Its snapshot is the list that the episode goes on writing to."""

    def _step(self, text):
        self.said.append(text)
        done = len(self.said) == 4
        return StepResult(str(len(self.said)), "", 0.0, done, text, {"success": 0.0} if done else {})

    def snapshot(self):
        return self.said

    def restore(self, snapshot):
        self.said, self._history = snapshot, []


def test_a_snapshot_that_changes_is_found():
    assert set(found(Notebook())) >= {"snapshot", "old snapshot"}


class OneBoard(Corridor):
    """All instances move the same piece."""

    board: ClassVar = [0]

    def _execute(self, command):
        self.at = self.board[0]
        scene = super()._execute(command)
        self.board[0] = self.at
        return scene

    def _begin(self, task):
        self.board[0] = 0
        return super()._begin(task)

    def _world(self):
        return self.board[0], self.length

    def _return_to(self, world):
        self.board[0], self.length = world


def test_shared_state_is_found():
    """One episode after the other all is well; in turn they disturb one another."""
    problems = found(OneBoard())
    assert set(problems) == {"shared state"}
    assert "observation was " in problems["shared state"]


class Engine(Corridor):
    """Fine in one thread, but says so only there."""

    runs_in = "threads"
    owner = threading.get_ident()

    def _execute(self, command):
        if threading.get_ident() != self.owner:
            raise RuntimeError("wrong thread")
        return super()._execute(command)


def test_trouble_in_threads_is_found():
    assert "raised RuntimeError: wrong thread" in found(Engine())["threads"]


def test_what_cannot_be_pickled_is_found():
    env = Corridor()
    env.callback = lambda: None
    check_environment(env, TASKS).assert_ok()
    env.runs_in = "processes"
    assert "pickle: task 't1': raised" in found(env)["pickle"]


class Endless(ByReplay):
    max_turns = 2

    def _step(self, text):
        return StepResult("more", action_key="x")


def test_an_episode_that_does_not_end_is_found():
    assert found(Endless())["end"].startswith(
        "end: task 't1', turn 4: after 3 turns the episode still goes on; max_turns is 2"
    )


def ending(**values):
    """An environment of one turn with this result."""

    class Ending(Environment):
        def _reset(self, task):
            return [{"role": "user", "content": "go"}]

        def _step(self, text):
            return StepResult(**({"done": True, "action_key": "x", "info": {"success": 1.0}} | values))

    return Ending()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward": math.nan}, "a reward must be finite, got nan"),
        ({"reward": -math.inf}, "a reward must be finite, got -inf"),
        ({"reward": 2.0}, "the reward 2.0 is not between 0 and 1"),
        ({"reward": True}, "a reward must be a float, got True of bool"),
        ({"reward": None}, "a reward must be a float, got None of NoneType"),
        ({"observation": None}, "observation must be a text, got None"),
        ({"closing": 3}, "closing must be a text, got 3"),
        ({"action_key": ("go", 1)}, "action_key must be a text, got ('go', 1)"),
        ({"done": 1}, "done must be True or False, got 1"),
        ({"info": None}, "info must be a dict, got None"),
        ({"info": {}}, "info must have 'success' (0 to 1) at the end of an episode"),
        ({"info": {"success": 7}}, "info['success'] must be from 0 to 1, got 7"),
        ({"info": {"success": "yes"}}, "info['success'] must be from 0 to 1, got 'yes'"),
        ({"info": {"success": 1, "at": {1, 2}}}, "info['at'] must be JSON: Object of type set is not JSON"),
        ({"info": {"success": 1, "at": math.nan}}, "info['at'] must be JSON: Out of range float values"),
        ({"info": {"success": 1, 3: 4}}, "keys of info must be texts, got 3"),
    ],
)
def test_wrong_results_are_told(values, message):
    report = check_environment(ending(**values), TASKS, episodes=2, reward_range=(0, 1))
    assert message in str(report.problems[0])
    assert report.problems[0].check == "result"
    assert report.problems[0].where.startswith("task 't1', turn 1, ")


def test_prompts_belong_to_windows():
    class Prompting(ByReplay):
        next_prompt: ClassVar = [{"role": "user", "content": "next"}]

        def _step(self, text):
            return replace(super()._step(text), prompt=self.next_prompt)

    env = ByReplay()
    env.context = "window"
    assert "every turn but the last must give the next prompt" in found(env)["result"]
    assert "in the growing context prompt must be None, got [{'role'" in found(Prompting())["result"]
    env = Prompting()
    env.context = "window"
    check_environment(env, TASKS).assert_ok()
    env.next_prompt = [{"role": "user"}]
    assert "a message must be a dict with 'role' and 'content', got {'role': 'user'}" in found(env)["result"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "a prompt must be a list of messages that is not empty, got []"),
        ("text", "a prompt must be a list of messages that is not empty, got 'text'"),
        (["text"], "a message must be a dict with 'role' and 'content', got 'text'"),
        ([{"role": "user", "content": 3}], "a message's values must be texts"),
    ],
)
def test_wrong_prompts_are_told(prompt, message):
    env = ending()
    env._reset = lambda task: prompt
    problems = check_environment(env, TASKS, episodes=4).problems
    assert [(p.check, p.times) for p in problems] == [("prompt", 4)]
    assert message in str(problems[0])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("context", "tree", "context must be one of growing, window, got 'tree'"),
        ("runs_in", "gpu", "runs_in must be one of caller, threads, processes, got 'gpu'"),
        ("stop", "</action>", "stop must be a tuple of texts that are not empty, got '</action>'"),
        ("stop", ("",), "stop must be a tuple"),
        ("max_turns", None, "max_turns must be a whole number, got None"),
    ],
)
def test_wrong_attributes_are_told(name, value, message):
    env = Corridor()
    setattr(env, name, value)
    assert message in found(env)["settings"]


def test_a_changed_task_is_found():
    class Scribbling(Corridor):
        def _begin(self, task):
            task.extra["visits"] = task.extra.get("visits", 0) + 1
            return super()._begin(task)

    problem = found(Scribbling(), [Task("t", "c", "q")])["task"]
    assert "the episode changed the task, which other episodes share" in problem


def test_a_result_that_is_changed_later_is_found():
    class Reusing(ByReplay):
        info: ClassVar = {}

        def _step(self, text):
            result = super()._step(text)
            self.info |= result.info | {"turn": 0}
            return replace(result, info=self.info)

    assert "changed after it was returned: info['success'] was 'missing' and is now 1.0" in found(Reusing())["result"]


def test_a_wrong_end_by_length_is_found():
    class Silent(ByReplay):
        def truncate(self):
            return StepResult(reward=math.nan)

    problems = check_environment(Silent(), TASKS).problems
    assert [p.check for p in problems] == ["truncate", "truncate"]
    assert "finite" in str(problems[0])
    assert "done=True" in str(problems[1])


def test_what_is_raised_is_told():
    class Raising(Corridor):
        def _execute(self, command):
            if command == "go east":
                raise KeyError("east")
            if command == "take gem":
                raise EnvironmentFailure("the engine is down")
            return super()._execute(command)

    report = check_environment(Raising(), TASKS)
    told = "\n".join(map(str, report.problems))
    assert "playing: task 't1': raised KeyError: 'east' (and " in told
    assert "playing: task 't3': external trouble, so this could not be checked: the engine is down" in told

    class NoSetup(Corridor):
        def setup(self):
            raise FileNotFoundError("no games")

    assert found(NoSetup()) == {"setup": "setup: NoSetup: raised FileNotFoundError: no games"}


def test_actions_without_keys_are_noted():
    report = check_environment(ending(action_key=""), TASKS).assert_ok()
    assert "no action has a key" in report.notes[0]


# ---- actions, and the report ----


def test_actions_are_the_users():
    plan = ["go east", "go east", "take gem"]
    env = Corridor()
    report = check_environment(env, [TASK], actions=lambda task, seen, rng: act(plan[len(seen) - 1]), episodes=3)
    assert (report.assert_ok().won, report.turns) == (3, 9)
    seen_texts = []

    def look(task, seen, rng):
        seen_texts.append(list(seen))
        return act(rng.choice(["look", "give up"]))

    check_environment(env, [TASK], actions=look, episodes=1, seed=2)
    assert all("Room 0." in text for text in seen_texts[-1])
    report = check_environment(env, [TASK], actions=[act("give up")], episodes=3)
    assert (report.won, report.turns) == (0, 3)
    for nothing in ([], "go"):
        with pytest.raises(ValueError, match="actions must be a list of texts that is not empty"):
            check_environment(env, [TASK], actions=nothing)


def test_offered_blanks_are_filled_with_words_of_the_task():
    asked = []

    class Shop(Corridor):
        def _commands_here(self):
            return ("search[<your words>]",)

        def _execute(self, command):
            asked.append(command)
            return Scene("found", ("search[<your words>]",), command)

    check_environment(Shop(max_turns=6), [Task("t", "shop", "red shoes")], episodes=4)
    assert {"search[red]", "search[red shoes]", "search[shoes]"} <= set(asked)


def test_the_seed_decides_the_actions():
    turns = [check_environment(Corridor(), TASKS, seed=seed).turns for seed in (1, 1, 2)]
    assert turns[0] == turns[1] != turns[2]


def test_problems_are_raised_together_and_nothing_to_do_is_an_error():
    with pytest.raises(
        EnvironmentProblems, match=r"(?s)breaks its contract:\nresult: .*got nan \(and 9 more times\)\n"
    ):
        check_environment(ending(reward=math.nan, info={}), TASKS).assert_ok()
    for tasks, episodes in (([], 1), (TASKS, 0)):
        with pytest.raises(ValueError, match="at least one task and one episode"):
            check_environment(Corridor(), tasks, episodes=episodes)


def test_toy_environments_of_these_tests():
    """They say ``em`` and not ``success``, which is told."""
    problems = check_environment(StateEnv(), TASKS).problems
    assert {p.what.split("(")[0] for p in problems} == {"info must have 'success' "}
