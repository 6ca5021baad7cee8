"""Products, as the rows of WebShop's released files describe them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_treerl.trees.seeding import derive_seed

PRODUCTS_FILE, ATTRIBUTES_FILE, HUMAN_FILE = "items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"
NO_PRICE = 100.0  # dollars, where none is given
NO_ATTRIBUTES = ("DUMMY_ATTR",)  # stands for the attributes of a product that has none, as upstream
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")


@dataclass(frozen=True)
class Instruction:
    """What somebody asked for when shown a product.

    Attributes:
        text: the request.
        attributes: what the product must have.
        options: values to choose, or (name, value) pairs.
    """

    text: str
    attributes: tuple[str, ...]
    options: tuple[str | tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Product:
    """One product.

    Attributes:
        asin: identifier, at most 10 characters.
        name: title.
        category: department.
        query: the search that it was found by.
        product_category: path of categories, joined by U+203A.
        description: long text.
        bullets: feature texts.
        tag: the price as shown: one, or a range.
        price: the price in dollars; drawn once from a range.
        options: choices by name, in order.
        attributes: what it is said to have.
        synthetic: the templated instruction, if any.
        human: instructions by people.
    """

    asin: str
    name: str
    category: str
    query: str
    product_category: str
    description: str
    bullets: tuple[str, ...]
    tag: str
    price: float
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    synthetic: Instruction | None = None
    human: tuple[Instruction, ...] = ()


def read_products(
    rows: Sequence[Any], attributes: Mapping[str, Any], human: Mapping[str, Any], limit: int | None = None
) -> list[Product]:
    """Products of the released files' contents, without those whose asin is too long or came before.

    Args:
        rows: of ``items_shuffle.json``.
        attributes: ``items_ins_v2.json``.
        human: ``items_human_ins.json``; may be empty.
        limit: look at the first so many rows; all when None.

    Raises:
        ValueError: naming file, product and field that is broken.
    """
    products: dict[str, Product] = {}
    for number, row in enumerate(rows[:limit], 1):
        where = f"{PRODUCTS_FILE}, product {number}"
        if not isinstance(row, Mapping):
            raise ValueError(f"{where}: must be an object, got {type(row).__name__}")
        asin = _text(row, "asin", where)
        if asin == "nan" or len(asin) > 10 or asin.lower() in products:
            continue
        products[asin.lower()] = _product(row, asin, f"{where} ({asin})", attributes.get(asin) or {}, human.get(asin))
    if not products:
        raise ValueError(f"{PRODUCTS_FILE}: has no product with an asin of at most 10 characters")
    return list(products.values())


def _product(row: Mapping[str, Any], asin: str, where: str, extra: Any, human: Any) -> Product:
    beside = f"{ATTRIBUTES_FILE}, {asin}"
    if not isinstance(extra, Mapping):
        raise ValueError(f"{beside}: must be an object, got {type(extra).__name__}")
    prices = _prices(row.get("pricing"), where)
    bullets = row.get("small_description") or []
    return Product(
        asin=asin,
        name=_text(row, "name", where),
        category=_text(row, "category", where),
        query=_text(row, "query", where).lower().strip(),
        product_category=_text(row, "product_category", where),
        description=_text(row, "full_description", where, optional=True),
        bullets=_texts([bullets] if isinstance(bullets, str) else bullets, where, "small_description"),
        tag=" to ".join(f"${price}" for price in prices),
        price=prices[0] if len(prices) == 1 else _draw(asin, *prices),
        options=_options(row.get("customization_options"), where),
        attributes=_texts(extra.get("attributes", list(NO_ATTRIBUTES)), beside, "attributes"),
        synthetic=_synthetic(extra, beside),
        human=_human(human, f"{HUMAN_FILE}, {asin}"),
    )


def _synthetic(extra: Mapping[str, Any], where: str) -> Instruction | None:
    if extra.get("instruction") is None:
        return None
    wanted = _texts(extra.get("instruction_attributes"), where, "instruction_attributes")
    return Instruction(_text(extra, "instruction", where), wanted)


def _draw(asin: str, low: float, high: float) -> float:
    return random.Random(derive_seed("webshop price", asin)).uniform(low, high)


def _prices(pricing: Any, where: str) -> list[float]:
    """One price or the two ends of a range."""
    if not pricing:
        return [NO_PRICE]
    numbers = _NUMBER.findall(pricing) if isinstance(pricing, str) else []
    if not numbers:
        raise ValueError(f"{where}: field 'pricing' must be as '$10.00' or '$10.00$25.50', got {pricing!r}")
    return [float(number.replace(",", "")) for number in numbers[:2]]


def _options(options: Any, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    where = f"{where}: field 'customization_options'"
    if not isinstance(options or {}, Mapping):
        raise ValueError(f"{where} must be an object of lists, got {type(options).__name__}")
    found: dict[str, tuple[str, ...]] = {}
    for name, choices in (options or {}).items():
        if choices is None:
            continue
        if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
            raise ValueError(f"{where}, {name!r}: must be a list of objects with 'value', or null")
        values = [_text(choice, "value", f"{where}, {name!r}") for choice in choices]
        found[name.lower()] = tuple(value.strip().replace("/", " | ").lower() for value in values)
    return tuple(found.items())


def _human(instructions: Any, where: str) -> tuple[Instruction, ...]:
    if not isinstance(instructions or [], list):
        raise ValueError(f"{where}: must be a list of instructions, got {type(instructions).__name__}")
    out = []
    for number, row in enumerate(instructions or [], 1):
        place = f"{where}, instruction {number}"
        if not isinstance(row, Mapping):
            raise ValueError(f"{place}: must be an object, got {type(row).__name__}")
        wanted = _texts(row.get("instruction_attributes"), place, "instruction_attributes")
        options = row.get("instruction_options") or []
        chosen = (
            tuple((str(name), str(value)) for name, value in options.items())
            if isinstance(options, Mapping)
            else _texts(options, place, "instruction_options")
        )
        out.append(Instruction(_text(row, "instruction", place), wanted, chosen))
    return tuple(out)


def _text(row: Mapping[str, Any], field: str, where: str, optional: bool = False) -> str:
    value = row.get(field)
    if value is None and (optional or field in row) and field != "asin":
        return ""
    if not isinstance(value, str):
        got = "is missing" if field not in row else f"must be a text, got {type(value).__name__}"
        raise ValueError(f"{where}: field {field!r} {got}")
    return value


def _texts(values: Any, where: str, field: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        got = "a list with other values" if isinstance(values, list) else type(values).__name__
        raise ValueError(f"{where}: field {field!r} must be a list of texts, got {got}")
    return tuple(values)
