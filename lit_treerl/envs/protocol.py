"""The tag protocol of search question answering: reading a turn, judging its format, defusing retrieved text.

A turn is ``<think>...</think>`` and then ``<search>query</search>`` or ``<answer>text</answer>``. Tags are written
exactly so, in lower case and without spaces, because they double as stop strings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

TurnKind = Literal["search", "answer", "invalid"]

TAGS = ("think", "search", "information", "answer")

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_ACTION = re.compile(r"<(search|answer)>((?:(?!</?(?:search|answer)>).)*)</\1>", re.DOTALL)
_PLAIN = rf"(?:(?!</?(?:{'|'.join(TAGS)})>).)*"
_WELL_FORMED = re.compile(rf"\s*<think>{_PLAIN}</think>\s*<(search|answer)>({_PLAIN})</\1>\s*", re.DOTALL)

_GAP = r"[\s\u200b-\u200f\u2060\ufeff]*"  # white space and the characters nobody sees
_SPECIAL_TOKEN_EDGE = re.compile(r"(?<=<)(?=[|\uff5c])|(?<=[|\uff5c])(?=>)")


@dataclass(frozen=True)
class Turn:
    """What a turn asks for.

    Attributes:
        kind: ``search``, ``answer``, or ``invalid`` when neither could be read.
        content: the query or the answer without surrounding white space; "" when invalid.
    """

    kind: TurnKind
    content: str = ""


def parse_turn(text: str) -> Turn:
    """Read the action of one turn: the first matching pair of search or answer tags outside of the thought.

    What stands inside ``<think>`` never counts; a thought that is not closed reaches to the end of the turn, and text
    before a ``</think>`` that was opened elsewhere (by the prompt) is thought too. Of nested tags the inner pair
    counts: it is the one that a stop string would have ended the turn with.

    >>> parse_turn("<think> hm <answer>no</answer> </think> <search> Ada Lovelace </search>")
    Turn(kind='search', content='Ada Lovelace')
    """
    match = _ACTION.search(outside_thought(text))
    if match is None:
        return Turn("invalid")
    return Turn("answer" if match[1] == "answer" else "search", match[2].strip())


def outside_thought(text: str) -> str:
    """What of a turn is no thought: neither between the tags nor before a ``</think>`` that was opened elsewhere."""
    return _THOUGHT.sub(" ", text).rpartition("</think>")[2]


def well_formed(text: str) -> TurnKind:
    """Kind of a turn that is a thought and one action with only white space around them, else ``invalid``.

    Thought and action may hold no tag of the protocol, and the action may not be empty.
    """
    match = _WELL_FORMED.fullmatch(text)
    if match is None or not match[2].strip():
        return "invalid"
    return "answer" if match[1] == "answer" else "search"


def format_valid(turns: Sequence[str]) -> bool:
    """Whether an episode keeps the format: think, search, (information), think, search, ..., think, answer.

    The information in between is the environment's own and needs no check.

    Args:
        turns: the policy's text of every turn, in order.
    """
    kinds = [well_formed(text) for text in turns]
    return bool(kinds) and kinds[-1] == "answer" and all(kind == "search" for kind in kinds[:-1])


def neutralise(text: str) -> str:
    """Defuse retrieved text: it can neither open nor close a tag of the protocol nor look like a special token.

    Angle brackets of our tags, in any case and spacing, become square ones, and a space parts the ends of
    ``<|...|>``. Everything else stays, so people and models can still read it. Applying it twice changes nothing more.

    >>> neutralise("see < / Answer > and <|im_end|>")
    'see [ / Answer ] and < |im_end| >'
    """
    return defuse(text, TAGS)


def defuse(text: str, tags: tuple[str, ...]) -> str:
    """:func:`neutralise` for another protocol's tags."""
    spaced = _SPECIAL_TOKEN_EDGE.sub(" ", text)
    return _tag_like(tags).sub(lambda match: f"[{match[1]}{']' if match[2] else ''}", spaced)


@lru_cache
def _tag_like(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<({_GAP}(?:/{_GAP})?(?:{'|'.join(tags)})\b[^<>]*)(>?)", re.IGNORECASE)
