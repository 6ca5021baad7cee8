"""Whether what an environment returns is what the contract says: types, ranges, and what must be there at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, get_args

from lit_treerl.envs.base import Environment, RunsIn, StepResult
from lit_treerl.envs.check_report import short
from lit_treerl.trees.tree import ContextStyle

Wrong = tuple[str, str]
"""(kind, in words)"""


def judge_settings(env: Environment) -> Iterator[Wrong]:
    """What is wrong with an environment's attributes."""
    for name, choices in (("context", get_args(ContextStyle)), ("runs_in", get_args(RunsIn))):
        if getattr(env, name) not in choices:
            yield name, f"{name} must be one of {', '.join(choices)}, got {getattr(env, name)!r}"
    if not isinstance(env.stop, tuple) or not all(isinstance(text, str) and text for text in env.stop):
        yield "stop", f"stop must be a tuple of texts that are not empty, got {env.stop!r}"
    if not isinstance(env.max_turns, int) or env.max_turns < 0:
        yield "max_turns", f"max_turns must be a whole number, got {env.max_turns!r}"


def judge_prompt(prompt: Any) -> Iterator[Wrong]:
    """What is wrong with the messages of a prompt."""
    if not isinstance(prompt, list) or not prompt:
        yield "prompt", f"a prompt must be a list of messages that is not empty, got {short(prompt)}"
        return
    for message in prompt:
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            yield "message", f"a message must be a dict with 'role' and 'content', got {short(message)}"
        elif not all(isinstance(value, str) for value in message.values()):
            yield "message", f"a message's values must be texts, got {short(message)}"


def judge_result(env: Environment, result: Any, reward_range: tuple[float, float]) -> Iterator[Wrong]:
    """What is wrong with the answer to one action."""
    if not isinstance(result, StepResult):
        yield "result", f"step must return a StepResult, got {short(result)}"
        return
    for name in ("observation", "closing", "action_key"):
        if not isinstance(getattr(result, name), str):
            yield name, f"{name} must be a text, got {short(getattr(result, name))}"
    if not isinstance(result.done, bool):
        yield "done", f"done must be True or False, got {short(result.done)}"
    yield from _judge_reward(result.reward, reward_range)
    yield from _judge_info(result.info, done=bool(result.done))
    if result.done:
        return  # nobody reads a prompt any more
    if env.context == "window" and result.prompt is None:
        yield "prompt", "in the window context every turn but the last must give the next prompt; prompt is None"
    elif env.context == "growing" and result.prompt is not None:
        yield "prompt", f"in the growing context prompt must be None, got {short(result.prompt)}"
    elif result.prompt is not None:
        yield from judge_prompt(result.prompt)


def _judge_reward(reward: Any, reward_range: tuple[float, float]) -> Iterator[Wrong]:
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        yield "reward type", f"a reward must be a float, got {short(reward)} of {type(reward).__name__}"
    elif not math.isfinite(reward):
        yield "reward", f"a reward must be finite, got {reward}"
    elif not reward_range[0] <= reward <= reward_range[1]:
        yield "reward range", f"the reward {reward} is not between {reward_range[0]} and {reward_range[1]}"


def _judge_info(info: Any, *, done: bool) -> Iterator[Wrong]:
    if not isinstance(info, dict):
        yield "info", f"info must be a dict, got {short(info)}"
        return
    if strange := [key for key in info if not isinstance(key, str)]:
        yield "info keys", f"keys of info must be texts, got {strange[0]!r}"
    for key, value in info.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"info[{key!r}]", f"info[{key!r}] must be JSON: {error}; got {short(value)}"
    success = info.get("success")
    if done and success is None:
        yield "success", "info must have 'success' (0 to 1) at the end of an episode: metrics read it"
    elif success is not None and not (isinstance(success, int | float) and 0 <= success <= 1):
        yield "success", f"info['success'] must be from 0 to 1, got {short(success)}"
