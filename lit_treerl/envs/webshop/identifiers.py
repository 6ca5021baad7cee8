"""Identifiers of generated products: three short words, so that a word-level policy can copy them."""

from __future__ import annotations

import random
from itertools import product

_LETTERS = ("abcdefghi", "jklmnopqr", "stuvwxyz")
MOST = 500_000


def id_words(products: int) -> tuple[list[str], list[str], list[str]]:
    """The words an identifier's first, second and third place take, as few as ``products`` identifiers need.

    Raises:
        ValueError: when there are more products than identifiers of ten characters.
    """
    if not 1 <= products <= MOST:
        raise ValueError(f"products must be between 1 and {MOST}, got {products}")
    each = 2
    while each**3 < products:
        each += 1
    first, second, third = ([a + digit for digit in "0123456789" for a in letters][:each] for letters in _LETTERS)
    return first, second, third


def draw_ids(products: int, rng: random.Random) -> list[str]:
    """So many different identifiers in random order, at most ten characters each as in the released files."""
    return [" ".join(words) for words in rng.sample(list(product(*id_words(products))), products)]
