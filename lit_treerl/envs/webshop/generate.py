"""A generated catalogue in the form of WebShop's released files: products, attributes, instructions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lit_treerl.envs.webshop.identifiers import draw_ids, id_words
from lit_treerl.envs.webshop.words import (
    BRANDS,
    OPENERS,
    PRICES,
    THOUGHTS,
    Department,
    type_table,
)
from lit_treerl.trees.seeding import derive_seed

LEVELS = ((1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3))
"""Instructions from easy to hard: how many attributes and how many options they ask for."""

_RANGES = 0.1  # share of products with a range of prices


@dataclass
class CatalogueRows:
    """The contents of the three released files.

    Attributes:
        products: rows of ``items_shuffle.json``.
        attributes: ``items_ins_v2.json``: attributes and a synthetic instruction of each asin.
        human: ``items_human_ins.json``: instructions of each asin.
    """

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    human: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def generate_catalogue(products: int = 2000, seed: int = 0, types: int = 48) -> CatalogueRows:
    """Draw a catalogue; the same arguments give the same one on every machine.

    Product types differ in how common they are (type of rank r has weight 1 / r). No two instructions ask for the same
    type, attributes and options; a product has one instruction of every level that it offers enough for.

    Args:
        products: how many.
        seed: of everything drawn.
        types: how many product types of :mod:`lit_treerl.envs.webshop.words`; fewer make a smaller vocabulary.

    Raises:
        ValueError: for sizes out of range.
    """
    rng = random.Random(derive_seed("webshop catalogue", products, seed, types))
    table = type_table(types)
    asins = draw_ids(products, rng)
    ranked = rng.sample(table, len(table))
    drawn = rng.choices(ranked, [1 / rank for rank in range(1, len(ranked) + 1)], k=products)
    rows, asked = CatalogueRows([]), set()
    for place, asin in enumerate(asins):
        department, kind = ranked[place] if place < len(ranked) else drawn[place]  # every type is sold
        attributes = rng.sample(department.attributes, rng.randint(3, 5))
        options = _draw_options(department, rng)
        rows.products.append(_product(asin, department, kind, attributes, options, rng))
        named = attributes[: rng.randint(1, 2)]
        rows.attributes[asin] = {
            "attributes": attributes,
            "instruction": f"find me {' and '.join(named)} {kind}",
            "instruction_attributes": named,
        }
        rows.human[asin] = list(_instructions(kind, attributes, options, asked, rng))
    order = rng.sample(range(products), products)
    rows.products = [rows.products[place] for place in order]
    return rows


def _draw_options(department: Department, rng: random.Random) -> dict[str, list[str]]:
    names = [name for name, _ in department.options if rng.random() < 0.85]
    found = dict(department.options)
    return {name: rng.sample(found[name], rng.randint(2, min(4, len(found[name])))) for name in names}


def _product(
    asin: str,
    department: Department,
    kind: str,
    attributes: list[str],
    options: dict[str, list[str]],
    rng: random.Random,
) -> dict[str, Any]:
    low = rng.randrange(len(PRICES))
    pricing = f"${PRICES[low]}.00"
    if rng.random() < _RANGES and low + 3 < len(PRICES):
        pricing += f"${PRICES[low + rng.randint(1, 3)]}.00"
    return {
        "asin": asin,
        "name": " ".join([*attributes[: rng.randint(1, 2)], kind]),
        "category": department.name,
        "query": kind,
        "product_category": f"{department.name} \u203a all {department.name} \u203a {kind}",
        "full_description": f"{kind} by {rng.choice(BRANDS)}",
        "small_description": [" , ".join(attributes), "sold by the shop"],
        "pricing": pricing,
        "images": [],
        "customization_options": {
            name: [{"value": value, "image": None} for value in values] for name, values in options.items()
        },
    }


def _instructions(
    kind: str,
    attributes: list[str],
    options: dict[str, list[str]],
    asked: set[tuple[str, frozenset[str], frozenset[str]]],
    rng: random.Random,
) -> Iterator[dict[str, Any]]:
    offered = [level for level in LEVELS if level[0] <= len(attributes) and level[1] <= len(options)]
    for of_attributes, of_options in offered:
        wanted = rng.sample(attributes, of_attributes)
        chosen = {name: rng.choice(options[name]) for name in rng.sample(sorted(options), of_options)}
        key = (kind, frozenset(wanted), frozenset(chosen.values()))
        if key in asked:
            continue
        asked.add(key)
        yield {
            "instruction": _instruction(kind, wanted, chosen, rng),
            "instruction_attributes": wanted,
            "instruction_options": list(chosen.values()),
        }


def _instruction(kind: str, wanted: list[str], chosen: dict[str, str], rng: random.Random) -> str:
    """One sentence, words and signs apart by white space."""
    text = f"{rng.choice(OPENERS)} {wanted[0]} {kind}"
    if wanted[1:]:
        text += f" that is {' and '.join(wanted[1:])}"
    if chosen:
        text += " with " + " and ".join(f"{name} {value}" for name, value in chosen.items())
    return text + " ."


def vocabulary(products: int = 2000, types: int = 48) -> list[str]:
    """Every word, split at white space, of pages, instructions and commands of a generated catalogue, in a fixed order.

    Covers human instructions, commands written with ``spaced: true``, searches and thoughts of the scripted shopper;
    neither the words of prompt templates nor the score on the last page.
    """
    from lit_treerl.envs.webshop.goals import PRICE_STEPS
    from lit_treerl.envs.webshop.pages import PAGE_WORDS, TOP

    words = [*PAGE_WORDS, "search[", "click[", "]", "<your", "keywords>", *map(str, range(1, 16))]
    words += [f"{count})" for count in range(TOP + 1)]
    words += [word for place in id_words(products) for word in place]
    words += [f"${price}.0" for price in PRICES]
    words += [f"{step:.2f}" for step in PRICE_STEPS if step <= PRICES[-1] + 40]
    texts = [*OPENERS, *BRANDS, *THOUGHTS.values(), "by sold by the shop , .", "that is and with to"]
    texts += [", and price lower than dollars"]
    for department, kind in type_table(types):
        texts += [kind, *department.attributes]
        texts += [text for name, values in department.options for text in (name, *values)]
    words += [word for text in texts for word in text.split()]
    return [word for word in dict.fromkeys(words) if word != "{value}"]
