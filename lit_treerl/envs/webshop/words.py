"""The words of generated catalogues: departments, product types, attributes and options.

No word serves two product types, and no attribute is close enough to another to pass for it (a test holds both), so a
product of another type earns nothing and every attribute has to be there.
"""

from __future__ import annotations

from dataclasses import dataclass

COLORS = ("red", "blue", "green", "black", "white", "grey", "pink", "brown")


@dataclass(frozen=True)
class Department:
    """Product types that share attributes and options.

    Attributes:
        name: first part of the category path.
        types: what is sold; the type is the query and the end of the title.
        attributes: adjectives that a product may have.
        options: choices by name; a product offers some values of some of them.
    """

    name: str
    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


DEPARTMENTS = (
    Department(
        "clothing",
        _list("sweater, rain jacket, evening dress, polo shirt, jeans, leggings"),
        _list("soft, warm, stretchy, breathable, washable, slim, padded, hooded"),
        (("color", COLORS), ("size", _list("small, medium, large, petite"))),
    ),
    Department(
        "kitchen",
        _list("frying pan, coffee mug, water bottle, cutting board, mixing bowl, bread knife"),
        _list("stackable, insulated, unbreakable, nonstick, rustproof, heatproof, ergonomic, dishwasher safe"),
        (("color", COLORS), ("material", _list("steel, glass, bamboo, ceramic"))),
    ),
    Department(
        "shoes",
        _list("running shoes, ankle boots, sandals, house slippers, sneakers, high heels"),
        _list("cushioned, waterproof, nonslip, flexible, lined, laced, durable, supportive"),
        (
            ("color", COLORS),
            ("length", _list("six, seven, eight, nine, ten")),
            ("width", _list("narrow, regular, wide")),
        ),
    ),
    Department(
        "grocery",
        _list("herbal tea, potato chips, chocolate bar, granola, protein cookies, pancake syrup"),
        _list("organic, vegan, sugarfree, glutenfree, kosher, salted, crunchy, natural"),
        (("flavor", _list("vanilla, lemon, cinnamon, mint")), ("pack", _list("single, double, family"))),
    ),
    Department(
        "furniture",
        _list("table lamp, bookshelf, office chair, bedside cabinet, sofa cover, floor rug"),
        _list("foldable, sturdy, adjustable, modern, rustic, portable, stainproof, compact"),
        (("color", COLORS), ("finish", _list("oak, walnut, maple, bare"))),
    ),
    Department(
        "beauty",
        _list("face cream, shampoo, body lotion, lip balm, nail polish, hand soap"),
        _list("fragrant, hypoallergenic, moisturizing, soothing, crueltyfree, oilfree, gentle, longlasting"),
        (("scent", _list("rose, lavender, coconut, citrus")), ("volume", _list("mini, standard, jumbo"))),
    ),
    Department(
        "electronics",
        _list("phone charger, radio speaker, usb cable, laptop stand, desktop keyboard, earbuds"),
        _list("fast, wireless, rechargeable, silent, backlit, shockproof, universal, detachable"),
        (("color", COLORS), ("edition", _list("basic, plus, premium"))),
    ),
    Department(
        "toys",
        _list("puzzle, teddy bear, model train, card game, building blocks, kite"),
        _list("educational, colorful, wooden, musical, magnetic, plush, nontoxic, collectible"),
        (("theme", _list("space, farm, ocean, castle")), ("age", _list("toddler, child, teen"))),
    ),
)
BRANDS = _list("nordal, velmar, ostrin, kelvor, bramble, tarsio, ondira, pelmet")
PRICES = tuple(5 * i for i in range(1, 25))  # dollars
MAX_TYPES = sum(len(department.types) for department in DEPARTMENTS)

OPENERS = ("i need", "find me", "i want", "please get me")
"""How an instruction begins."""

THOUGHTS = {
    "search": "look for it",
    "open": "this may fit",
    "features": "check the features",
    "return": "go on with this one",
    "option": "choose {value}",
    "buy": "all is chosen",
    "reject": "something is missing",
    "next": "see more",
    "settle": "take the best so far",
}
"""What the scripted shopper thinks."""


def type_table(types: int) -> list[tuple[Department, str]]:
    """The first ``types`` product types, department by department.

    Raises:
        ValueError: when there are not so many.
    """
    table = [(department, kind) for department in DEPARTMENTS for kind in department.types]
    if not 1 <= types <= len(table):
        raise ValueError(f"types must be between 1 and {len(table)}, got {types}")
    return table[:types]
