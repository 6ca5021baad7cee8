"""Goals of WebShop: what to buy, at most for how much, and which split each goal belongs to."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as combinations
from typing import Literal

from lit_treerl.envs.webshop.products import Instruction, Product
from lit_treerl.trees.seeding import derive_seed

GoalStyle = Literal["human", "synthetic"]
Split = Literal["train", "validation", "test"]

SHUFFLE_SEED = 233
TEST, VALIDATION = 500, 1000  # goals, first in the shuffled order
PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))  # dollars
NO_CAP = 1_000_000.0


@dataclass(frozen=True)
class Goal:
    """One thing to buy.

    Attributes:
        asin: a product that fulfils it.
        name: its title.
        query: its search.
        product_category: its path of categories.
        instruction: what the agent is told, with the price clause.
        attributes: to have.
        options: to choose, values or (name, value) pairs.
        price_cap: dollars; the price must not be higher.
        request: the instruction without the price clause.
    """

    asin: str
    name: str
    query: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str | tuple[str, str], ...]
    price_cap: float
    request: str

    @cached_property
    def hash(self) -> str:
        """What is asked for, whatever the price cap and the product: 16 hexadecimal digits."""
        asked = [self.request, sorted(self.attributes), sorted(map(str, self.options))]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    @property
    def conditions(self) -> int:
        """How many attributes and options are asked for."""
        return len(self.attributes) + len(self.options)


def all_goals(products: Sequence[Product], style: GoalStyle) -> list[Goal]:
    """Every goal in the one shuffled order that splits are taken from (seed 233, as upstream).

    Args:
        products: in the order of the files.
        style: ``human``: the instructions people wrote; ``synthetic``: one templated instruction a product, times all
            combinations of its options.

    Raises:
        ValueError: when there is none.
    """
    goals = [goal for product in products for goal in _HOW[style](product)]
    if not goals:
        raise ValueError(f"WebShop: the catalogue has no {style} goals; products: {len(products)}")
    random.Random(SHUFFLE_SEED).shuffle(goals)
    return goals


def split_goals(goals: Sequence[Goal], split: Split) -> list[int]:
    """Places of a split's goals: 0-499 test, 500-1499 validation, the rest train.

    With fewer than 3,000 goals the first sixth is test and the next third validation. A goal that asks for the same as
    one of an earlier split is left out, so no split holds what another holds.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split must be 'train', 'validation' or 'test', got {split!r}")
    test, validation = TEST, VALIDATION
    if len(goals) < 2 * (TEST + VALIDATION):
        test, validation = len(goals) // 6, len(goals) // 3
    ends = {"test": (0, test), "validation": (test, test + validation), "train": (test + validation, len(goals))}
    first, last = ends[split]
    earlier = {goal.hash for goal in goals[:first]}
    return [place for place in range(first, last) if goals[place].hash not in earlier]


def price_cap(price: float, rng: random.Random) -> float:
    """The larger of two of the first four tens above ``price``; :data:`NO_CAP` where there are not two.

    >>> price_cap(975.0, random.Random(0)), price_cap(985.0, random.Random(0))
    (990.0, 1000000.0)
    """
    above = [step for step in PRICE_STEPS if step > price][:4]
    return max(rng.sample(above, 2)) if len(above) > 1 else NO_CAP


def _human_goals(product: Product) -> Iterator[Goal]:
    for number, instruction in enumerate(product.human):
        if instruction.attributes:
            yield _goal(product, instruction, instruction.text.strip("."), number)


def _synthetic_goals(product: Product) -> Iterator[Goal]:
    if product.synthetic is None or not product.synthetic.attributes:
        return
    offered = sorted(product.options)
    for values in combinations(*(values for _, values in offered)):
        chosen = tuple(zip((name for name, _ in offered), values, strict=True))
        text = product.synthetic.text
        if chosen:
            text += " with " + ", and ".join(f"{name}: {value}" for name, value in chosen)
        yield _goal(product, Instruction(text, product.synthetic.attributes, chosen), text, 0)


_HOW = {"human": _human_goals, "synthetic": _synthetic_goals}


def _goal(product: Product, instruction: Instruction, request: str, number: int) -> Goal:
    cap = price_cap(product.price, random.Random(derive_seed("webshop price cap", product.asin, number)))
    return Goal(
        asin=product.asin,
        name=product.name,
        query=product.query,
        product_category=product.product_category,
        instruction=request + (f", and price lower than {cap:.2f} dollars" if cap < NO_CAP else ""),
        attributes=instruction.attributes,
        options=instruction.options,
        price_cap=cap,
        request=request,
    )
