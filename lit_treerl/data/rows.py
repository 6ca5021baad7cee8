"""One row of a question-answering set as a task, in either public form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lit_treerl.trees.task import Message, Task

_ANSWER_KEYS = ("golden_answers", "answers", "answer")


def task_from_row(row: Any, data_source: str) -> Task:
    """Make a task of a plain row or a Search-R1 row.

    Plain: ``{"question", "answer" | "answers" | "golden_answers"}``; Search-R1: ``{"prompt": [messages],
    "reward_model": {"ground_truth": {"target": [...]}}}``. ``id``, ``data_source``, ``prompt`` and ``extra_info``
    are read from both. The id is the row's own, else a hash of its content.

    Args:
        row: the row as plain containers.
        data_source: used when the row does not name its own.

    Raises:
        ValueError: saying what is wrong with the row.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"a row must be an object, not {type(row).__name__}")
    source = row.get("data_source")
    if source is not None and not (isinstance(source, str) and source):
        raise ValueError(f"'data_source' must be a name, not {source!r}")
    source = source or data_source
    prompt, answers = _prompt(row.get("prompt")), _answers(row)
    question = _question(row.get("question"), prompt)
    own = row.get("id")
    name = str(own) if own not in (None, "") else _content_id(source, question, prompt, answers)
    extra = row.get("extra_info")
    return Task(name, source, question, answers, prompt, dict(extra) if isinstance(extra, Mapping) else {})


def _question(question: Any, prompt: tuple[Message, ...] | None) -> str:
    if question is None and prompt:
        question = next((message["content"] for message in reversed(prompt) if message["role"] == "user"), None)
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"needs a 'question' or a 'prompt' with a user message; question is {question!r}")
    return question.strip()


def _prompt(prompt: Any) -> tuple[Message, ...] | None:
    if prompt is None:
        return None
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, Sequence) or not prompt:
        raise ValueError(f"'prompt' must be a list of messages or a string, not {prompt!r}")
    for message in prompt:
        fits = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not fits:
            raise ValueError(f"a message of 'prompt' needs 'role' and 'content' as strings; got {message!r}"[:200])
    return tuple({"role": message["role"], "content": message["content"]} for message in prompt)


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    found = next((row[key] for key in _ANSWER_KEYS if row.get(key) is not None), None)
    if found is None:
        found = _target(row.get("reward_model"))
    if found is None:
        raise ValueError(
            f"needs one of {', '.join(_ANSWER_KEYS)} or reward_model.ground_truth.target; has {sorted(row)}"
        )
    texts = [found] if isinstance(found, str | int | float) else found
    if not isinstance(texts, Sequence) or not all(isinstance(text, str | int | float) for text in texts):
        raise ValueError(f"answers must be a string or a list of strings, not {found!r}"[:200])
    answers = tuple(dict.fromkeys(str(text).strip() for text in texts if str(text).strip()))
    if not answers:
        raise ValueError("has no answer that is not empty")
    return answers


def _target(reward_model: Any) -> Any:
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return truth.get("target") if isinstance(truth, Mapping) else truth


def _content_id(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]
