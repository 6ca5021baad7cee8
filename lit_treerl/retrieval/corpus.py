"""Reading a corpus of passages from JSONL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from lit_treerl.retrieval.base import Passage, passage_from_row


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Yield the passages of a JSONL file of ``{"id", "contents"}`` or ``{"id", "title", "text"}`` rows.

    Raises:
        ValueError: naming file and line of a row that is no passage; a corpus with holes would go unnoticed.
    """
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a row must be an object, not {type(row).__name__}")
                yield passage_from_row(row)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None


def file_digest(path: str | Path) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
