from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.task import Task
from lit_treerl.trees.value_keys import INVALID, LONGEST_KEY, action_key, task_key

TASK = Task("id", "hotpotqa", "Who?", ("she", "her"), ({"role": "user", "content": "Who?"},), {"game": "a.tw"})


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("Search:  Who\twas\nHE ", "search: who was he"),
        ("click[buy now]", "click[buy now]"),
        ("ÄPFEL\u00a0essen", "äpfel essen"),
        *((raw, INVALID) for raw in ("", " \n\t", "INVALID", "invalid", " Invalid ")),
        ("invalid action", "invalid action"),
    ],
)
def test_action_keys_are_canonical(raw, key):
    assert action_key(raw) == key


@given(st.text(), st.sampled_from([" ", "\n", "\t "]))
def test_action_keys_ignore_case_and_space_and_are_stable(text, space):
    key = action_key(text)
    assert action_key(key) == key
    assert action_key(space + text.replace(" ", space) + space) == key
    assert key
    assert len(key) <= LONGEST_KEY


def test_long_actions_keep_apart():
    one, two = "a " * LONGEST_KEY + "one", "a " * LONGEST_KEY + "two"
    assert action_key(one) == action_key(one.upper()) != action_key(two)
    assert len(action_key(one)) == 32
    assert action_key("x" * LONGEST_KEY) == "x" * LONGEST_KEY


def test_task_key_is_of_the_content_alone():
    assert task_key(replace(TASK, id="other")) == task_key(TASK)
    assert task_key(replace(TASK, extra={})) == task_key(replace(TASK, extra={}, id=""))
    changed = [
        replace(TASK, data_source="nq"),
        replace(TASK, question="who?"),
        replace(TASK, answers=("her", "she")),
        replace(TASK, answers=()),
        replace(TASK, prompt=None),
        replace(TASK, prompt=({"role": "system", "content": "Who?"},)),
        replace(TASK, extra={"game": "b.tw"}),
        replace(TASK, extra={"game": "a.tw", "seed": None}),
    ]
    assert len({task_key(task) for task in [TASK, *changed]}) == len(changed) + 1


class Odd:
    def __init__(self, name: str = "") -> None:
        self.name = name


class Named(Odd):
    def __repr__(self) -> str:
        return f"Named({self.name})"


def extra(**values) -> str:
    return task_key(replace(TASK, extra=values))


def test_task_key_takes_any_extra():
    assert extra(a=1, b=[1, (2, 3)]) == extra(b=(1, [2, 3]), a=1)
    assert extra(a=Odd()) == extra(a=Odd())  # where an object lies in memory is no content
    assert extra(a=Named("x")) == extra(a=Named("x")) != extra(a=Named("y"))
    assert extra(a={"x", "y"}) == extra(a={"y", "x"}) != extra(a={"x"})
    assert extra(a=torch.arange(3)) == extra(a=[0, 1, 2]) != extra(a=torch.arange(4))
    assert extra(a=Path("f")) != extra(a=Path("g"))
    assert extra(a={(1, 2): "x", None: 1, 3: 2}) == extra(a={None: 1, 3: 2, (1, 2): "x"})
    assert extra(a={1: "x"}) != extra(a={"1": "x"})
    assert extra(a=b"x") != extra(a="x")
    assert len({extra(a=a) for a in (0, 0.0, False, None, "", [], {}, float("nan"), "\ud800")}) == 9


def test_task_key_is_the_same_in_every_process():
    code = (
        "from lit_treerl.trees.task import Task; from lit_treerl.trees.value_keys import task_key; "
        "print(task_key(Task('i', 's', 'q', ('a',), None, {'set': {'x', 'y', 'z'}, 'object': object()})))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.strip()) == 32
