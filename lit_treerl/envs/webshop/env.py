"""The WebShop environment."""

from __future__ import annotations

import re
from typing import Any

from lit_treerl.envs.command_env import CommandEnvironment, Scene
from lit_treerl.envs.command_templates import ANSWER_FORM
from lit_treerl.envs.webshop.goals import Goal, GoalStyle
from lit_treerl.envs.webshop.pages import PER_PAGE, Page, click, clickables, label, page_text, search
from lit_treerl.envs.webshop.shop import Shop, ShopSettings, open_shop
from lit_treerl.trees.task import Task

_COMMAND = re.compile(r"(search|click)\[(.+)\]")
KEYWORDS = "<your keywords>"

SHOP_PROMPT = f"""\
You shop online for a customer who asks for this: {{task}}

Find a product with everything that is asked for, choose its options, then buy it. You buy once.

What happened before, the latest last:
{{history}}

This is step {{step}} of {{max_turns}} at most. The page shows:
{{observation}}

You can do (put words of your own between the brackets of search):
{{commands}}

{ANSWER_FORM}"""


class WebShop(CommandEnvironment):
    """A shop of pages: search, look, choose options, buy (arXiv 2207.01206).

    Commands are ``search[keywords]``, from any page, and ``click[name]`` of anything the page offers. Buying ends the
    episode with WebShop's reward as score, from 0 to 1; success is a score of 1. States are values, so a snapshot
    costs nothing. Results are ranked by BM25 where the original asks Lucene.

    Args:
        catalogue: folder with the released files ``items_shuffle.json``, ``items_ins_v2.json`` and
            ``items_human_ins.json``, or one made by ``lit-treerl make-shop``; null plays in a shop generated in memory.
            These six arguments have to be those of the tasks.
        products: generated products (null: 2,000), or the first so many of the files (null: all).
        seed: of a generated catalogue.
        types: product types of a generated catalogue, of 48; fewer make a smaller vocabulary.
        goals: ``human`` or ``synthetic``.
        nouns: how the nouns of titles are found: ``rules``, ``spacy``, or ``spacy:MODEL``.
        per_page: results on a page.
        repeat_task: every page repeats the instruction, as the original's pages do; the default prompt has it already.
        spaced: show commands as ``click[ buy now ]``, so that they split into words at white space; both forms are
            understood either way.
        max_turns: most turns of an episode.
        settings: further settings of worlds acted in by commands.
    """

    default_prompt = SHOP_PROMPT

    def __init__(
        self,
        catalogue: str | None = None,
        products: int | None = None,
        seed: int = 0,
        types: int = 48,
        goals: GoalStyle = "human",
        nouns: str = "rules",
        per_page: int = PER_PAGE,
        repeat_task: bool = False,
        spaced: bool = False,
        max_turns: int = 15,
        **settings: Any,
    ) -> None:
        super().__init__(max_turns=max_turns, **settings)
        if per_page < 1:
            raise ValueError(f"per_page must be at least 1, got {per_page}")
        self.shop_settings = ShopSettings(catalogue, products, seed, types, goals, nouns)
        self.per_page, self.repeat_task, self.spaced = per_page, repeat_task, spaced
        self._goal_now: Goal | None = None
        self._page = Page()

    def setup(self) -> None:
        """Open the shop and build its search."""
        self.shop.search("")

    @property
    def shop(self) -> Shop:
        """The shop, shared by all environments and tasks of this process with the same settings."""
        return open_shop(self.shop_settings)

    def _begin(self, task: Task) -> Scene:
        self._goal_now, self._page = self._find(task), Page()
        return self._scene("")

    def _execute(self, command: str) -> Scene:
        match = _COMMAND.match(command)
        name = label(match[2]) if match else ""
        if not name or self._page.kind == "done":
            return self._scene("")
        assert match is not None
        after = (
            search(self.shop, name)
            if match[1] == "search"
            else click(self.shop, self._wanted(), self._page, name, self.per_page)
        )
        if after is None:
            return self._scene("")
        self._page = after
        return self._scene(f"{match[1]}[{name}]")

    def _world(self) -> tuple[Goal | None, Page]:
        return self._goal_now, self._page

    def _return_to(self, world: tuple[Goal | None, Page]) -> None:
        self._goal_now, self._page = world

    def _scene(self, executed: str) -> Scene:
        page = self._page
        task = self._wanted().instruction if self.repeat_task else ""
        return Scene(
            text=page_text(self.shop, page, task, self.per_page),
            commands=self._offers(page),
            executed=executed,
            done=page.kind == "done",
            success=page.reward == 1.0,
            score=page.reward,
        )

    def _offers(self, page: Page) -> tuple[str, ...]:
        form = "{}[ {} ]" if self.spaced else "{}[{}]"
        if page.kind == "index":
            return (form.format("search", KEYWORDS),)
        return tuple(form.format("click", name) for name in clickables(self.shop, page, self.per_page))

    def _find(self, task: Task) -> Goal:
        """The goal a task stands for.

        Raises:
            ValueError: for a task that is none of this shop's.
        """
        goals, place = self.shop.goals, task.extra.get("goal_index")
        if not isinstance(place, int) or not 0 <= place < len(goals):
            raise ValueError(
                f"task {task.id!r}: extra.goal_index is {place!r}; it must be the place of one of {len(goals)} goals; "
                "tasks for WebShop come from WebShopTasks"
            )
        if task.extra.get("goal_hash", goals[place].hash) != goals[place].hash:
            raise ValueError(
                f"task {task.id!r}: is of another catalogue; give WebShop and WebShopTasks the same catalogue, "
                "products, seed, types and goals"
            )
        return goals[place]

    def _wanted(self) -> Goal:
        if self._goal_now is None:
            raise RuntimeError("WebShop.step was called before reset")
        return self._goal_now
