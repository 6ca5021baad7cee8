"""BM25 retrieval in this process, on bm25s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from lit_treerl.retrieval.base import Passage, Retriever, passage_from_row
from lit_treerl.retrieval.index import Backend, IndexSettings, PassageIndex, build_model


class BM25Retriever(Retriever):
    """BM25 over a JSONL corpus; the index is built once, cached by content and memory-mapped.

    Args:
        corpus: JSONL file of ``{"id", "contents"}`` (``"Title"``, line break, text) or ``{"id", "title", "text"}``.
        index_dir: folder for indexes; ``$LIT_TREERL_CACHE`` or ``~/.cache/lit_treerl`` when None.
        backend: scorer; ``auto`` takes numba for large corpora, where compiling it pays.
        stopwords: ``english`` leaves out the most frequent English words, ``none`` keeps all.
        k1: saturation of term frequency.
        b: normalisation by length.
        cache_size: queries whose results are kept in memory.
    """

    def __init__(
        self,
        corpus: str | None = None,
        index_dir: str | None = None,
        backend: Backend = "auto",
        stopwords: Literal["english", "none"] = "english",
        k1: float = 1.5,
        b: float = 0.75,
        cache_size: int = 10_000,
    ) -> None:
        if backend not in ("auto", "numba", "numpy"):
            raise ValueError(f"backend is {backend!r}; it must be 'auto', 'numba' or 'numpy'")
        if stopwords not in ("english", "none"):
            raise ValueError(f"stopwords is {stopwords!r}; it must be 'english' or 'none'")
        self.corpus, self.index_dir = corpus, index_dir
        self.backend: Backend = backend
        self.settings = IndexSettings(stopwords, k1, b)
        self.cache_size = cache_size
        self._rows: Iterable[Mapping[str, Any]] | None = None
        self._search: Callable[[str, int], tuple[Passage, ...]] | None = None

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], **settings: Any) -> BM25Retriever:
        """A retriever over rows in memory, of the same forms; nothing is written to disk.

        Args:
            rows: the passages.
            settings: further arguments of the class.
        """
        retriever = cls(**settings)
        retriever._rows = list(rows)
        return retriever

    def setup(self) -> None:
        """Build or open the index.

        Raises:
            ValueError: without a corpus, or naming what is wrong with it.
        """
        if self._search is None:
            index = self._open()
            self._search = lru_cache(self.cache_size)(lambda query, topk: tuple(index.search(query, topk)))

    def close(self) -> None:
        """Drop the index; :meth:`setup` opens it again."""
        self._search = None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Best passages of every query; a passage that shares no word with the query is never returned."""
        if self._search is None:
            self.setup()
        assert self._search is not None
        return [list(self._search(query, topk)) for query in queries]

    def _open(self) -> PassageIndex:
        if self._rows is not None:
            passages = [passage_from_row(row) for row in self._rows]
            rows = [{"id": p.id, "title": p.title, "text": p.text} for p in passages]
            return PassageIndex(build_model(rows, self.settings), rows, self.settings, self.backend)
        if not self.corpus:
            raise ValueError("BM25Retriever has no corpus: set 'corpus' to a JSONL file of passages")
        from lit_treerl.retrieval.index_cache import open_index

        return open_index(self.corpus, self.settings, self.backend, self.index_dir)
