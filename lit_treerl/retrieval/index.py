"""The BM25 index over passages: building, and searching with a deterministic order."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lit_treerl.retrieval.base import Passage, passage_from_row

if TYPE_CHECKING:
    import bm25s
    import numpy as np

Backend = Literal["auto", "numba", "numpy"]

WORD = r"(?u)\b\w+\b"  # one-letter and one-digit words too: they tell "Malcolm X" and "Apollo 8" apart
_WORD = re.compile(WORD)
NUMBA_FROM = 20_000  # passages; below, compiling takes longer than it saves


@dataclass(frozen=True)
class IndexSettings:
    """What an index depends on besides its corpus; ``k1`` and ``b`` as in the BM25 formula."""

    stopwords: Literal["english", "none"] = "english"
    k1: float = 1.5
    b: float = 0.75


class PassageIndex:
    """A bm25s model and its passages (rows, in memory or on disk); searching is thread-safe."""

    def __init__(self, model: bm25s.BM25, rows: Sequence[Any], settings: IndexSettings, backend: Backend) -> None:
        self._model, self._rows = model, rows
        self._stopwords = _stopwords(settings)
        self._rows_lock = threading.Lock()  # rows on disk share one file position
        if backend == "numba" or (backend == "auto" and len(rows) >= NUMBA_FROM and _has_numba()):
            model.activate_numba_scorer()

    def __len__(self) -> int:
        return len(self._rows)

    def search(self, query: str, topk: int) -> list[Passage]:
        """Best ``topk`` passages that share a word with ``query``; equal scores in the order of the corpus."""
        # as bm25s.tokenize does, which takes several times as long for one query
        words = [word for word in _WORD.findall(query.lower()) if word not in self._stopwords]
        ids = self._model.get_tokens_ids(words)
        if not ids or topk < 1:
            return []
        scores = self._model.get_scores_from_ids(ids)
        best = _top(scores, topk)
        with self._rows_lock:
            rows = [self._rows[int(place)] for place in best]
        return [passage_from_row(row, score=float(scores[place])) for row, place in zip(rows, best, strict=True)]


def build_model(rows: Sequence[Mapping[str, Any]], settings: IndexSettings) -> bm25s.BM25:
    """Index rows ``{"id", "title", "text"}`` by title and text.

    Raises:
        ValueError: when there is no passage or none has a word.
    """
    import bm25s

    if not rows:
        raise ValueError("the corpus has no passages")
    texts = [f"{row['title']}\n{row['text']}" for row in rows]
    tokens: Any = bm25s.tokenize(texts, token_pattern=WORD, stopwords=sorted(_stopwords(settings)), show_progress=False)
    if not tokens.vocab:
        raise ValueError("no passage of the corpus has a word to index")
    model = bm25s.BM25(k1=settings.k1, b=settings.b, backend="numpy")
    model.index(tokens, show_progress=False)
    return model


def _top(scores: np.ndarray, topk: int) -> np.ndarray:
    """Places of the largest positive scores, largest first; ties by place, whatever the backend."""
    import numpy as np

    places = np.flatnonzero(scores > 0)
    if len(places) > topk:
        found = scores[places]
        floor = np.partition(found, len(found) - topk)[len(found) - topk]
        places = places[found >= floor]
    return places[np.argsort(-scores[places], kind="stable")[:topk]]


def _stopwords(settings: IndexSettings) -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN if settings.stopwords == "english" else ())


def _has_numba() -> bool:
    from importlib.util import find_spec

    return find_spec("numba") is not None
