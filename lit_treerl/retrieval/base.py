"""The Retriever contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Passage:
    """One retrieved passage; ``title`` is "" when it has none, a larger ``score`` is better."""

    id: str
    title: str
    text: str
    score: float = 0.0


class Retriever(ABC):
    """Finds passages; one instance serves all environments and threads of a process."""

    blocking: bool = False  # waits for something outside the process

    def setup(self) -> None:
        """Build the index or open the connection; calling again does nothing."""

    def close(self) -> None:
        """Release what :meth:`setup` opened."""

    @abstractmethod
    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return the best ``topk`` or fewer passages of every query, best first.

        Raises:
            EnvironmentFailure: on external trouble, after retries.
        """


def passage_from_row(row: Mapping[str, Any], score: float = 0.0) -> Passage:
    """Make a passage of a corpus row ``{"id", "contents"}`` or ``{"id", "title", "text"}``.

    ``contents`` is a title in quotes, a line break, and the text; without a line break it is all text.

    Raises:
        ValueError: when the row has no text.
    """
    title, text = row.get("title"), row.get("text")
    if text is None:
        contents = row.get("contents")
        if not isinstance(contents, str):
            raise ValueError(f"a passage needs 'contents' or 'text' as a string; this one has {sorted(row)}")
        head, found, tail = contents.partition("\n")
        text = tail if found else contents
        title = head.strip().strip('"') if found and title is None else title
    if not isinstance(text, str) or not (title is None or isinstance(title, str)):
        raise ValueError(f"title and text must be strings, not {type(title).__name__} and {type(text).__name__}")
    return Passage(str(row.get("id", "")), title or "", text, score)
