"""The shop's pages: what each one shows, what can be clicked, and where a click leads. Pages are immutable values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from lit_treerl.envs.command_protocol import defused
from lit_treerl.envs.webshop.goals import Goal
from lit_treerl.envs.webshop.products import Product
from lit_treerl.envs.webshop.reward import purchase_reward
from lit_treerl.envs.webshop.shop import MOST_HITS, Shop

SEP = " [SEP] "
PER_PAGE, TOP = 10, MOST_HITS
BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
DETAILS = ("Description", "Features", "Reviews")
_WORDS = (
    "WebShop [SEP] Instruction: Search Back to Search Page (Total results: < Prev Next > Price: Rating: N.A. "
    "Description Features Reviews Buy Now back to search prev next buy now description features reviews"
)
PAGE_WORDS = tuple(_WORDS.split())
"""Words of the pages themselves."""

Kind = Literal["index", "results", "item", "details", "done"]


@dataclass(frozen=True)
class Page:
    """Where the shopper is.

    Attributes:
        kind: which page.
        number: of the results page, from 1.
        hits: places of the products that the last search found.
        product: place of the product that is looked at, or -1.
        chosen: (option name, value) in the order of choice.
        details: which details page.
        reward: of the purchase, once ``done``.
    """

    kind: Kind = "index"
    number: int = 1
    hits: tuple[int, ...] = ()
    product: int = -1
    chosen: tuple[tuple[str, str], ...] = ()
    details: str = ""
    reward: float = 0.0


@lru_cache(100_000)
def label(text: str) -> str:
    """A clickable's name as commands give it: lower case, white space squeezed, tags defused as they are shown."""
    return " ".join(defused(text).lower().split())


def clickables(shop: Shop, page: Page, per_page: int = PER_PAGE) -> list[str]:
    """Labels of all that can be clicked, in order; no two are equal."""
    if page.kind in ("index", "done"):
        return []
    texts = [BACK]
    if page.kind == "results":
        texts += [PREVIOUS] * (page.number > 1) + [NEXT]
        texts += [shop.products[place].asin for place in _shown(page, per_page)]
    else:
        texts.append(PREVIOUS)
        if page.kind == "item":
            texts += [*DETAILS, BUY]
            texts += [value for _, values in shop.products[page.product].options for value in values]
    return [name for name in dict.fromkeys(map(label, texts)) if name]


def search(shop: Shop, keywords: str) -> Page:
    """The first results page for ``keywords``, whichever page one comes from."""
    return Page("results", hits=shop.search(keywords))


def click(shop: Shop, goal: Goal, page: Page, name: str, per_page: int = PER_PAGE) -> Page | None:
    """Where clicking a label leads; None where there is no such label."""
    if name not in clickables(shop, page, per_page):
        return None
    if name == label(BACK):
        return Page()
    if page.kind == "results":
        if name in (label(PREVIOUS), label(NEXT)):
            return replace(page, number=page.number + (1 if name == label(NEXT) else -1))
        place = next(place for place in _shown(page, per_page) if label(shop.products[place].asin) == name)
        return replace(page, kind="item", product=place, chosen=())
    if name == label(PREVIOUS):
        if page.kind == "details":
            return replace(page, kind="item", details="")
        return replace(page, kind="results", product=-1, chosen=())
    return _click_on_item(shop, goal, page, name)


def _click_on_item(shop: Shop, goal: Goal, page: Page, name: str) -> Page:
    product = shop.products[page.product]
    if name == label(BUY):
        return replace(page, kind="done", reward=purchase_reward(product, goal, dict(page.chosen), shop.nouns))
    for details in DETAILS:
        if name == label(details):
            return replace(page, kind="details", details=details)
    # a value that two options offer belongs to the last of them, as upstream
    choices = [(option, value) for option, values in product.options for value in values if label(value) == name]
    option, value = choices[-1]
    return replace(page, chosen=tuple(({**dict(page.chosen), option: value}).items()))


def page_text(shop: Shop, page: Page, task: str = "", per_page: int = PER_PAGE) -> str:
    """What a page shows, parts joined by :data:`SEP`.

    Args:
        shop: the shop.
        page: the page.
        task: the instruction, where pages are to repeat it.
        per_page: results on a page.
    """
    if page.kind == "done":
        parts = ["Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(page.reward)]
        return SEP.join(parts)
    head = ["Instruction:", task] if task else []
    if page.kind == "index":
        return SEP.join(["WebShop", *head, "Search"])
    head.append(BACK)
    if page.kind == "results":
        head += [f"Page {page.number} (Total results: {len(page.hits)})", *[PREVIOUS] * (page.number > 1), NEXT]
        for place in _shown(page, per_page):
            product = shop.products[place]
            head += [product.asin, product.name.strip(), product.tag]
        return SEP.join(head)
    return SEP.join([*head, PREVIOUS, *_about(shop.products[page.product], page)])


def _about(product: Product, page: Page) -> list[str]:
    if page.kind == "item":
        parts = [part.strip() for name, values in product.options for part in (name, *values)]
        return [*parts, product.name.strip(), f"Price: {product.tag}", "Rating: N.A.", *DETAILS, BUY]
    if page.details == "Description":
        return [product.description.strip()] if product.description else []
    return [bullet.strip() for bullet in product.bullets] if page.details == "Features" else []


def _shown(page: Page, per_page: int) -> tuple[int, ...]:
    return page.hits[(page.number - 1) * per_page : page.number * per_page]
