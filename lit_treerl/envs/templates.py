"""Default texts of search question answering, and checks of a user's own."""

from __future__ import annotations

from string import Formatter

PROMPT = """\
Answer the question below. You may look things up before you answer.
First think, between <think> and </think>. Then do one of two things:
- search: write a query between <search> and </search>. You will be shown the best passages between \
<information> and </information>, and it is your turn again.
- answer: write the answer alone, as short as possible, between <answer> and </answer>. This ends the task.
Search as often as you need, one query at a time.

Question: {question}"""

PASSAGE = 'Doc {rank} (Title: "{title}") {text}'

CORRECTION = (
    "That turn could not be read. Think between <think> and </think>, then write either a query between <search> "
    "and </search> or the answer between <answer> and </answer>."
)

_PASSAGE_FIELDS = {"rank", "title", "text", "id"}


def check_prompt_template(template: str) -> None:
    """Make sure that the question has a place.

    Raises:
        ValueError: when ``{question}`` is missing.
    """
    if "{question}" not in template:
        raise ValueError(f"prompt_template must contain {{question}}; it is {template[:80]!r}")


def check_passage_format(template: str) -> None:
    """Make sure that a passage can be put in.

    Raises:
        ValueError: when ``{text}`` is missing or a field is unknown.
    """
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise ValueError(f"passage_format {template[:80]!r}: {error}") from None
    if "text" not in fields or not fields <= _PASSAGE_FIELDS:
        raise ValueError(
            f"passage_format must use {{text}} and no more than {{rank}}, {{title}} and {{id}}; it is {template[:80]!r}"
        )
