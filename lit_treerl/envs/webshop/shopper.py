"""A scripted shopper that acts on what pages show and the instruction alone; perfect, or noisy for demonstrations."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from lit_treerl.envs.command_env import Scene
from lit_treerl.envs.webshop.pages import SEP
from lit_treerl.envs.webshop.words import COLORS, DEPARTMENTS, OPENERS, THOUGHTS

_CAP = re.compile(r",? and price lower than ([\d.]+) dollars")
_PRICE = re.compile(r"\$([\d.]+)")
_NAMES = {name for department in DEPARTMENTS for name, _ in department.options}
_SMALL = "the an that is and with in of for to . , :"
_IDLE = {word for text in OPENERS for word in text.split()} | _NAMES | set(_SMALL.split())
_BUTTONS = {"back to search", "< prev", "next >", "description", "features", "reviews", "buy now"}
_SPARE = 6  # turns that are kept to buy: open, three options, buy, and one more


@dataclass(frozen=True)
class Noise:
    """How often the noisy shopper errs.

    Attributes:
        hasty: it buys without looking whether the features fit.
        wrong_item: it opens another product of the page.
        wrong_option: it chooses another value.
        skipped_option: it does not choose an option that was asked for.
        short_query: it searches for the product type alone.
        only_color: it does not choose an option that was asked for, other than a color; none is drawn where it is 0.
    """

    hasty: float = 0.5
    wrong_item: float = 0.15
    wrong_option: float = 0.1
    skipped_option: float = 0.1
    short_query: float = 0.2
    only_color: float = 0.0


PERFECT = Noise(0.0, 0.0, 0.0, 0.0, 0.0)


class _Row(NamedTuple):
    """A product on a results page; prices in dollars, one or a range."""

    name: str
    title: str
    low: float
    high: float


@dataclass
class _Look:
    """What has been seen of one product."""

    missing: set[str] = field(default_factory=set)
    features: bool = False
    chosen: set[str] = field(default_factory=set)


class Shopper:
    """Shops for one instruction of a generated catalogue; on others it does what it can.

    Args:
        instruction: the goal's text.
        noise: how it errs; not at all when None.
        rng: draws the errors.
        max_turns: of the environment; it buys the best product seen before they are used up.
        spaced: writes commands as ``click[ buy now ]``.
    """

    def __init__(
        self,
        instruction: str,
        noise: Noise | None = None,
        rng: random.Random | None = None,
        max_turns: int = 15,
        spaced: bool = False,
    ) -> None:
        self.noise, self.rng = noise or PERFECT, rng or random.Random(0)
        cap = _CAP.search(instruction)
        self.cap = float(cap[1]) if cap else float("inf")
        self.request = f" {_CAP.sub(' ', instruction).lower()} "
        self.words = {word for word in self.request.split() if word not in _IDLE}
        self.kind = max((k for d in DEPARTMENTS for k in d.types if f" {k} " in self.request), key=len, default="")
        self.left, self.form = max_turns, "{}[ {} ]" if spaced else "{}[{}]"
        self.looks: dict[str, _Look] = {}
        self.at, self.settled, self.searches, self.per_page = "", False, 0, 1

    def turn(self, scene: Scene) -> str:
        """The text of the next turn: a thought and a command, each one word apart from its tags."""
        thought, command = self.act(scene)
        return f"<think> {thought} </think> <action> {command} </action>"

    def act(self, scene: Scene) -> tuple[str, str]:
        """The next thought and command."""
        labels = [command.partition("[")[2].rstrip("]").strip() for command in scene.commands]
        self.left -= 1
        if "back to search" not in labels:
            return THOUGHTS["search"], self.form.format("search", self._query())
        if "next >" in labels:
            thought, name = self._on_results(scene.text, labels)
        elif "buy now" in labels:
            thought, name = self._on_item(scene.text, labels)
        else:
            look = self.looks[self.at]
            look.features = True
            look.missing -= set(scene.text.lower().split())
            thought, name = "return", "< prev"
        told = THOUGHTS[thought].format(value=name)
        return told, self.form.format("click", name)

    def _query(self) -> str:
        words = [word for word in self.request.split() if word in self.words]
        self.searches += 1
        short = self.searches > 1 or self._errs(self.noise.short_query)
        return self.kind if short and self.kind else " ".join(dict.fromkeys(words)) or "anything"

    def _on_results(self, text: str, labels: list[str]) -> tuple[str, str]:
        shown = _read_results(text, labels)
        self.per_page = max(self.per_page, len(shown))
        kin = [row for row in shown if row.low < self.cap and f" {self.kind}" in f" {row.title}"]
        fitting = [row.name for row in sorted(kin, key=lambda row: row.high > self.cap)]
        fresh = [name for name in fitting if name not in self.looks]
        if self.left < _SPARE or not shown or (not fresh and len(self.looks) > 0 and not self._more(text)):
            known = [name for name in fitting if name in self.looks] or fitting or [row.name for row in shown]
            if known:
                self.settled = True
                return self._open(min(known, key=self._missing), "settle")
            return "reject", "back to search"
        if not fresh:
            return "next", "next >"
        if self._errs(self.noise.wrong_item):
            return self._open(self.rng.choice(shown).name, "open")
        return self._open(fresh[0], "open")

    def _more(self, text: str) -> bool:
        """Whether another page of results follows this one."""
        page = re.search(r"Page (\d+) \(Total results: (\d+)\)", text)
        return page is not None and int(page[1]) * self.per_page < int(page[2])

    def _missing(self, name: str) -> int:
        return len(self.looks[name].missing) if name in self.looks else 0

    def _open(self, name: str, thought: str) -> tuple[str, str]:
        self.at = name
        return thought, name

    def _on_item(self, text: str, labels: list[str]) -> tuple[str, str]:
        values = [name for name in labels if name not in _BUTTONS]
        look = self.looks.get(self.at)
        if look is None:
            seen = set(text.lower().split())
            look = self.looks[self.at] = _Look(missing=self.words - seen)
            look.features = self._errs(self.noise.hasty)
            if look.features:
                look.missing = set()
        if look.missing and not self.settled:
            return ("reject", "< prev") if look.features or not self._hopeful(look) else ("features", "features")
        for value in values:
            if f" {value} " in self.request and value not in look.chosen:
                look.chosen.add(value)
                forgets = value not in COLORS and self._errs(self.noise.only_color)
                if not forgets and not self._errs(self.noise.skipped_option):
                    other = self._errs(self.noise.wrong_option)
                    return "option", self.rng.choice(values) if other else value
        return "buy", "buy now"

    def _hopeful(self, look: _Look) -> bool:
        """Whether what is missing may be among the features; an option value that is not offered will not be."""
        return not look.missing & _OPTION_WORDS

    def _errs(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance


_OPTION_WORDS = {
    word for department in DEPARTMENTS for _, values in department.options for value in values for word in value.split()
}


def _read_results(text: str, labels: list[str]) -> list[_Row]:
    """The products on a results page."""
    parts, found = text.split(SEP), set(labels) - _BUTTONS
    rows = []
    for place, part in enumerate(parts[:-2]):
        prices = [float(price) for price in _PRICE.findall(parts[place + 2])]
        if part.lower() in found and prices:
            rows.append(_Row(part.lower(), parts[place + 1].lower(), prices[0], prices[-1]))
    return rows
