"""A shop: products, goals and search, opened once per process and shared by all episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from lit_treerl.envs.webshop.files import read_catalogue
from lit_treerl.envs.webshop.generate import generate_catalogue
from lit_treerl.envs.webshop.goals import Goal, GoalStyle, all_goals
from lit_treerl.envs.webshop.nouns import nouns_of
from lit_treerl.envs.webshop.products import Product, read_products
from lit_treerl.envs.webshop.search import ProductSearch

GENERATED = 2000  # products
MOST_HITS = 50  # of a search


@dataclass(frozen=True)
class ShopSettings:
    """What a shop is made from.

    Attributes:
        catalogue: folder of the released files, or None for a generated catalogue in memory.
        products: generated products (2,000 when None), or the first so many rows of the files (all when None).
        seed: of a generated catalogue.
        types: product types of a generated catalogue, of 48; fewer make a smaller vocabulary.
        goals: ``human`` or ``synthetic``.
        nouns: how nouns of titles are found: ``rules``, ``spacy`` or ``spacy:MODEL``.
    """

    catalogue: str | None = None
    products: int | None = None
    seed: int = 0
    types: int = 48
    goals: GoalStyle = "human"
    nouns: str = "rules"

    def __post_init__(self) -> None:
        if self.goals not in ("human", "synthetic"):
            raise ValueError(f"goals must be 'human' or 'synthetic', got {self.goals!r}")
        if self.products is not None and self.products < 1:
            raise ValueError(f"products must be at least 1, or null, got {self.products}")


class Shop:
    """Products, goals in their one order, and search; read-only.

    Args:
        products: the catalogue.
        goals: style of goals.
        nouns: see :class:`ShopSettings`.
    """

    def __init__(self, products: Sequence[Product], goals: GoalStyle = "human", nouns: str = "rules") -> None:
        self.products = tuple(products)
        self.goals: tuple[Goal, ...] = tuple(all_goals(self.products, goals))
        self.nouns = nouns_of(nouns)

    @cached_property
    def search(self) -> ProductSearch:
        """The search; its index is built on first use."""
        return ProductSearch(self.products, MOST_HITS)


@lru_cache(8)
def open_shop(settings: ShopSettings) -> Shop:
    """The shop of ``settings``; equal settings share one per process.

    Raises:
        FileNotFoundError: for a missing file, saying how to make a generated set.
        ValueError: for broken files or settings.
    """
    if settings.catalogue is None:
        rows, limit = generate_catalogue(settings.products or GENERATED, settings.seed, settings.types), None
    else:
        rows, limit = read_catalogue(settings.catalogue, human=settings.goals == "human"), settings.products
    human = rows.human if settings.goals == "human" else {}
    products = read_products(rows.products, rows.attributes, human, limit)
    try:
        return Shop(products, settings.goals, settings.nouns)
    except ValueError as error:
        raise ValueError(f"{settings.catalogue or 'generated catalogue'}: {error}") from None
