"""Rewards of search question answering, from what came out of an episode."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

EM_SOURCES = (
    "nq",
    "triviaqa",
    "popqa",
    "web_questions",
    "hotpotqa",
    "2wikimultihopqa",
    "musique",
    "bamboogle",
    "strategyqa",
)


@dataclass(frozen=True)
class Outcome:
    """How an episode ended.

    Attributes:
        data_source: of the task.
        answer: the answer given, None when there was none (an empty one counts as none).
        em: exact match, 0 or 1.
        f1: token F1, in [0, 1].
        format_valid: every turn kept the tag format and the last one answered.
    """

    data_source: str
    answer: str | None
    em: float
    f1: float
    format_valid: bool


class Reward(ABC):
    """Turns an :class:`Outcome` into the reward of the episode."""

    @abstractmethod
    def __call__(self, outcome: Outcome) -> float:
        """Reward of an episode that ended so."""


class OutcomeReward(Reward):
    """Outcome minus a penalty for bad format: the formula of the Tree-GRPO paper.

    Args:
        metric: ``em``, ``f1``, or ``auto``: exact match for the data sources of :func:`uses_exact_match`, F1 for
            others (open questions on the web).
        format_penalty: taken off when the episode broke the format.
    """

    def __init__(self, metric: Literal["auto", "em", "f1"] = "auto", format_penalty: float = 0.2) -> None:
        if metric not in ("auto", "em", "f1"):
            raise ValueError(f"metric is {metric!r}; it must be 'auto', 'em' or 'f1'")
        self.metric = metric
        self.format_penalty = format_penalty

    def __call__(self, outcome: Outcome) -> float:
        """Metric of ``outcome``, less the penalty when its format is bad."""
        exact = self.metric == "em" or (self.metric == "auto" and uses_exact_match(outcome.data_source))
        score = outcome.em if exact else outcome.f1
        return score if outcome.format_valid else score - self.format_penalty


class TableReward(Reward):
    """The table of the published Tree-GRPO code, by exact match and format.

    ========= ============ ==============
    answer    format valid format invalid
    ========= ============ ==============
    correct   1.0          0.8
    wrong     0.2          0.1
    none      0.2          0.0
    ========= ============ ==============
    """

    def __init__(self) -> None:
        pass

    def __call__(self, outcome: Outcome) -> float:
        """Entry of the table for ``outcome``."""
        if outcome.em == 1.0:
            return 1.0 if outcome.format_valid else 0.8
        if outcome.format_valid:
            return 0.2
        return 0.0 if outcome.answer is None else 0.1


def uses_exact_match(data_source: str) -> bool:
    """Whether a data source is scored by exact match: the usual QA sets and all that start with ``embedded``.

    A set's name may be part of a longer one, parted by other signs: ``dev_hotpotqa``, ``NQ-open``.
    """
    name = "_" + re.sub(r"[^a-z0-9]+", "_", data_source.lower()) + "_"
    return name.startswith("_embedded") or any(f"_{known}_" in name for known in EM_SOURCES)
