"""Question answering with a search tool, in the tag protocol of :mod:`lit_treerl.envs.protocol`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from lit_treerl.envs.answers import exact_match, f1, normalise
from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.envs.protocol import Turn, neutralise, parse_turn, well_formed
from lit_treerl.envs.rewards import Outcome, OutcomeReward, Reward
from lit_treerl.envs.templates import CORRECTION, PASSAGE, PROMPT, check_passage_format, check_prompt_template
from lit_treerl.retrieval.base import Passage, Retriever
from lit_treerl.trees.task import Message, Task

INVALID = "INVALID"


@dataclass(frozen=True)
class _State:
    """Everything that an episode has become; immutable, so a snapshot is a reference."""

    task: Task
    turns: int = 0
    formatted: bool = True  # every turn so far was a well-formed search
    invalid: int = 0


class SearchQA(Environment):
    """Ask a retriever, then answer; success is an exact match, also where the reward is F1.

    After ``max_turns`` turns with the tool one last turn remains, to answer; a search there is not executed and
    ends the episode without an answer. A turn that cannot be read, or searches for nothing, is answered by
    ``correction`` and used up. Tasks with a prompt of their own are shown that prompt as it is.

    Args:
        retriever: where to search.
        topk: passages per search.
        max_turns: turns with the tool.
        reward: reward of a finished episode; ``OutcomeReward()`` when None.
        prompt_template: the user message; ``{question}`` is replaced.
        passage_format: one passage; may use ``{rank}`` (from 1), ``{title}``, ``{text}``, ``{id}``.
        joiner: between passages.
        nothing_found: shown when no passage matches.
        lead: before ``<information>`` and before ``correction``.
        padding: inside of ``<information>`` and ``</information>``; a space for tokenizers that split at white space.
        trail: after ``</information>`` and after ``correction``.
        correction: answer to a turn that could not be read.
        final_hint: appended to the observation before the last turn; "" for none.
        max_query_words: longer queries are cut to this many words; 0 for no limit.
    """

    context = "growing"
    stop = ("</search>", "</answer>")

    def __init__(
        self,
        retriever: Retriever | None = None,
        topk: int = 3,
        max_turns: int = 4,
        reward: Reward | None = None,
        prompt_template: str = PROMPT,
        passage_format: str = PASSAGE,
        joiner: str = "\n",
        nothing_found: str = "No passage found.",
        lead: str = "\n\n",
        padding: str = "",
        trail: str = "\n\n",
        correction: str = CORRECTION,
        final_hint: str = "",
        max_query_words: int = 64,
    ) -> None:
        if topk < 1 or max_turns < 0 or max_query_words < 0:
            raise ValueError(
                f"topk must be at least 1, max_turns and max_query_words at least 0; "
                f"got {topk}, {max_turns} and {max_query_words}"
            )
        check_prompt_template(prompt_template)
        check_passage_format(passage_format)
        self.retriever, self.topk, self.max_turns = retriever, topk, max_turns
        self.reward = reward or OutcomeReward()
        self.prompt_template, self.passage_format, self.joiner = prompt_template, passage_format, joiner
        self.nothing_found, self.lead, self.padding, self.trail = nothing_found, lead, padding, trail
        self.correction, self.final_hint, self.max_query_words = correction, final_hint, max_query_words
        self.runs_in = "threads" if retriever is not None and retriever.blocking else "caller"
        self._state: _State | None = None

    def setup(self) -> None:
        """Set the retriever up.

        Raises:
            ValueError: when there is none.
        """
        self._tool().setup()

    def close(self) -> None:
        """Close the retriever."""
        if self.retriever is not None:
            self.retriever.close()

    def snapshot(self) -> Any:
        """The episode's state, by reference."""
        return self._state

    def restore(self, snapshot: Any) -> None:
        """Go on from ``snapshot``, without replaying anything."""
        self._state = snapshot
        self._task, self._history = snapshot.task, []

    def truncate(self) -> StepResult:
        """An episode cut by a limit of length: no answer, bad format."""
        return self._end(self._now(), None, StepResult(), invalid=False)

    def _reset(self, task: Task) -> list[Message]:
        self._state = _State(task)
        if task.prompt is not None:
            return [dict(message) for message in task.prompt]
        return [{"role": "user", "content": self.prompt_template.replace("{question}", task.question)}]

    def _step(self, text: str) -> StepResult:
        before, turn = self._now(), parse_turn(text)
        formatted = before.formatted and well_formed(text) != "invalid"
        after = replace(before, turns=before.turns + 1, formatted=formatted)
        if turn.kind == "answer":
            key = f"answer:{normalise(turn.content)}"
            return self._end(after, turn.content, StepResult(action_key=key), invalid=False)
        if before.turns >= self.max_turns:
            return self._end(after, None, StepResult(action_key=INVALID), invalid=True)
        query = self._query(turn)
        if query:
            return self._go_on(after, self._searched(query))
        return self._go_on(replace(after, invalid=after.invalid + 1), self._corrected())

    def _query(self, turn: Turn) -> str:
        words = turn.content.split() if turn.kind == "search" else []
        return " ".join(words[: self.max_query_words or None])

    def _searched(self, query: str) -> StepResult:
        passages = self._tool().search([query], self.topk)[0][: self.topk]
        shown = self.joiner.join(self._show(rank, passage) for rank, passage in enumerate(passages, 1))
        return StepResult(
            observation=f"{self.lead}<information>{self.padding}{neutralise(shown) or self.nothing_found}",
            closing=f"{self.padding}</information>{self.trail}",
            action_key=f"search:{query.lower()}",
            info={"tool_calls": 1, "invalid": False},
        )

    def _corrected(self) -> StepResult:
        return StepResult(
            observation=f"{self.lead}{self.correction}",
            closing=self.trail,
            action_key=INVALID,
            info={"tool_calls": 0, "invalid": True},
        )

    def _show(self, rank: int, passage: Passage) -> str:
        return self.passage_format.format(rank=rank, id=passage.id, title=passage.title, text=passage.text)

    def _go_on(self, after: _State, result: StepResult) -> StepResult:
        self._state = after
        result.info["turns"] = after.turns
        if self.final_hint and after.turns == self.max_turns:
            result.closing += self.final_hint
        return result

    def _end(self, after: _State, answer: str | None, result: StepResult, invalid: bool) -> StepResult:
        """Fill ``result`` with reward and closing facts; an empty answer counts as none."""
        self._state, task = after, after.task
        answer = answer or None
        em, score = exact_match(answer or "", task.answers), f1(answer or "", task.answers)
        formatted = after.formatted and answer is not None
        reward = float(self.reward(Outcome(task.data_source, answer, em, score, formatted)))
        if not math.isfinite(reward):
            raise ValueError(f"task {task.id!r}: {type(self.reward).__name__} gave the reward {reward}")
        result.done, result.reward = True, reward
        result.info = {
            "tool_calls": 0,
            "turns": after.turns,
            "answer": answer,
            "em": em,
            "f1": score,
            "success": em,
            "format_valid": formatted,
            "invalid": invalid,
            "invalid_turns": after.invalid + invalid,
        }
        return result

    def _now(self) -> _State:
        if self._state is None:
            raise RuntimeError("SearchQA.step was called before reset")
        return self._state

    def _tool(self) -> Retriever:
        if self.retriever is None:
            raise ValueError("SearchQA has no retriever: set 'retriever', for example to BM25Retriever with a corpus")
        return self.retriever
