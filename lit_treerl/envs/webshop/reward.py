"""WebShop's reward of a purchase (arXiv 2207.01206, section 3.2, as its released code computes it)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lit_treerl.envs.webshop.goals import Goal
from lit_treerl.envs.webshop.nouns import Nouns
from lit_treerl.envs.webshop.products import Product

FUZZY_ABOVE = 85  # of 100: token_set_ratio of texts that count as the same
SHARED_CATEGORIES = 2  # parts of the category path that make two products alike

_COLOR_WORDS = """
amber apricot aqua azure beige black blue bronze brown burgundy camel champagne charcoal chocolate coffee copper
coral cream crimson cyan denim emerald fuchsia gold graphite gray green grey indigo ivory khaki lavender lilac lime
magenta maroon mauve mint mocha navy nude olive orange peach pink plum purple red rose ruby rust salmon sand
sapphire silver slate tan taupe teal turquoise violet white wine yellow
"""
COLORS = tuple(_COLOR_WORDS.split())


def purchase_reward(product: Product, goal: Goal, options: Mapping[str, str], nouns: Nouns) -> float:
    """Reward in [0, 1]: type * (attributes + options + price that match) / (attributes + options + 1).

    Args:
        product: what was bought.
        goal: what was asked for.
        options: chosen value by option name.
        nouns: of titles.
    """
    matched = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    matched += sum(has_option(options, option) for option in goal.options)
    matched += product.price <= goal.price_cap
    return type_reward(product, goal, nouns) * matched / (goal.conditions + 1)


def type_reward(product: Product, goal: Goal, nouns: Nouns) -> float:
    """1, 0.5, 0.1 or 0: whether the product is of the kind that was asked for.

    Title score: share of the goal's title nouns that the product's title has (0.2 where the goal has none). Then 0 for
    a score of 0; 0.1 below 0.1; 1 with a score above 0.2, the same query or two shared categories; else 0.5.
    """
    wanted, found = nouns(goal.name), set(nouns(product.name))
    title = len(found & set(wanted)) / len(wanted) if wanted else 0.2
    if title < 0.1:
        return 0.1 if title > 0 else 0.0
    shared = len(_categories(product.product_category) & _categories(goal.product_category))
    alike = product.query == goal.query or shared >= SHARED_CATEGORIES or title > 0.2
    return 1.0 if alike else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether an attribute is close to one of the product's, or stands in its title, features or description."""
    if any(same(known, attribute) for known in product.attributes):
        return True
    texts = (product.name, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def has_option(chosen: Mapping[str, str], option: str | tuple[str, str]) -> bool:
    """Whether one of the chosen values is close to the option that was asked for, colours folded.

    A (name, value) pair is compared as the two words' text and, as upstream, without folding its colour.
    """
    wanted = fold_color(option) if isinstance(option, str) else " ".join(option)
    return any(same(fold_color(value), wanted) for value in chosen.values())


def fold_color(text: str) -> str:
    """The first colour name of :data:`COLORS`, in alphabetical order, that is part of ``text``; else ``text``.

    >>> fold_color("dark navy stripes"), fold_color("xx-large")
    ('navy', 'xx-large')
    """
    return next((color for color in COLORS if color in text), text)


@lru_cache(100_000)
def same(a: str, b: str) -> bool:
    """Whether two texts count as the same: rounded token_set_ratio above 85."""
    from rapidfuzz import fuzz, utils

    return round(fuzz.token_set_ratio(a, b, processor=utils.default_process)) > FUZZY_ABOVE


@lru_cache(10_000)
def _categories(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("\u203a"))
