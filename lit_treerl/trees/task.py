"""A task: what the agent is asked, and what a right answer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]


@dataclass(frozen=True)
class Task:
    """One task of any environment.

    Attributes:
        id: unique and stable over runs; seeds are derived from it.
        data_source: the set it comes from (``hotpotqa``); metrics are kept per data source.
        question: the plain question or instruction.
        answers: accepted answers, for environments that compare text.
        prompt: the row's own chat messages; used as they are when given.
        extra: anything an environment needs beside (a game file, a goal).
    """

    id: str
    data_source: str
    question: str
    answers: tuple[str, ...] = ()
    prompt: tuple[Message, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
