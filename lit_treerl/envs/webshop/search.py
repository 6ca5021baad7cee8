"""The shop's search: BM25 over titles, descriptions, first features and options, English stems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lit_treerl.envs.webshop.products import Product
from lit_treerl.retrieval.index import WORD

K1, B = 0.9, 0.4  # as the original's Lucene index is queried
CACHED = 20_000  # queries
_WORD = re.compile(WORD)


class ProductSearch:
    """Places of the products that fit a query; equal queries and catalogues give equal results.

    Args:
        products: the catalogue.
        most: hits of a query.

    Raises:
        ImportError: naming the extra to install.
    """

    def __init__(self, products: Sequence[Product], most: int) -> None:
        import bm25s
        from bm25s.stopwords import STOPWORDS_EN

        stemmer: Any = _stemmer()
        self._stem, self._stopwords = stemmer.stemWords, frozenset(STOPWORDS_EN)
        self._model = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
        self._model.index([self._words(search_text(product)) for product in products], show_progress=False)
        self._most = most
        self._cached = lru_cache(CACHED)(self._search)

    def __call__(self, query: str) -> tuple[int, ...]:
        """The best places first, ties in the order of the catalogue; only products that share a word with the query."""
        return self._cached(query)

    def _words(self, text: str) -> list[str]:
        return self._stem([word for word in _WORD.findall(text.lower()) if word not in self._stopwords])

    def _search(self, query: str) -> tuple[int, ...]:
        import numpy as np

        ids = self._model.get_tokens_ids(self._words(query))
        if not ids:
            return ()
        scores = self._model.get_scores_from_ids(ids)
        found = np.flatnonzero(scores > 0)
        return tuple(found[np.argsort(-scores[found], kind="stable")[: self._most]].tolist())


def search_text(product: Product) -> str:
    """What a product is found by."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.name, product.description, *product.bullets[:1], options])


def _stemmer() -> Any:
    try:
        import Stemmer
    except ImportError:
        raise ImportError("WebShop's search needs PyStemmer: pip install 'lit-treerl[webshop]'") from None
    return Stemmer.Stemmer("porter")
