"""Actions to check an environment with: the user's, what a world of commands offers, or what any may get."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from lit_treerl.envs.base import Environment
from lit_treerl.envs.command_env import CommandEnvironment
from lit_treerl.trees.task import Task

Policy = Callable[[Task, Sequence[str], random.Random], str]
"""(task, texts seen so far: of the prompt, then of every answer; randomness) -> the text of a turn."""

ODD = (
    "",
    "nothing to be read",
    "<think>not closed <action>look</action>",
    "</action></answer></search>",
    "<action>\x00 \U0001f600 {task} <|im_end|></action>",
    "<think>odd</think><action>no such command 0</action>",
)
ODD_SHARE = 0.15
ANSWER_SHARE = 0.1
_CLOSING = re.compile(r"</(\w+)>")
_BLANK = re.compile(r"<[^<>]+>")  # where an offered command wants words, as in search[<words>]


def policy_of(actions: Sequence[str] | Policy | None) -> Policy | None:
    """The user's policy; of a list every turn takes one by chance.

    Raises:
        ValueError: for a list without actions.
    """
    if actions is None or callable(actions):
        return actions
    if isinstance(actions, str) or not actions:
        raise ValueError(f"actions must be a list of texts that is not empty, or a function; got {actions!r}")
    choices = list(actions)
    return lambda task, seen, rng: rng.choice(choices)


def choose(policy: Policy | None, env: Environment, task: Task, seen: Sequence[str], rng: random.Random) -> str:
    """The text of the next turn."""
    if policy is not None:
        return policy(task, seen, rng)
    if rng.random() < ODD_SHARE:
        return rng.choice(ODD)
    if isinstance(env, CommandEnvironment) and (commands := env.offered()):
        return f"<think>any</think><action>{_filled(rng.choice(commands), task, rng)}</action>"
    tags = [match[1] for match in map(_CLOSING.fullmatch, env.stop) if match and match[1] != "answer"]
    return _tagged(tags or ["search", "action"], task, seen, rng)


def _filled(command: str, task: Task, rng: random.Random) -> str:
    return _BLANK.sub(lambda _: " ".join(_words(task.question, rng)), command)


def _tagged(tags: list[str], task: Task, seen: Sequence[str], rng: random.Random) -> str:
    """An answer (the right one half of the time) or one of the tags, about words that were seen."""
    words = " ".join(_words(rng.choice([task.question, *seen]), rng))
    if rng.random() < ANSWER_SHARE:
        return f"<think>so</think><answer>{rng.choice([words, *task.answers[:1]])}</answer>"
    tag = rng.choice(tags)
    return f"<think>next</think><{tag}>{words}</{tag}>"


def _words(text: str, rng: random.Random) -> list[str]:
    """One to three words of a text, next to one another."""
    words = re.findall(r"\w+", text) or ["any"]
    start = rng.randrange(len(words))
    return words[start : start + rng.randint(1, 3)]
