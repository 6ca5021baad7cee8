"""Demonstrations for the warm start of WebShop's embedded policy: the noisy shopper in other shops."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from lit_treerl.data.episodes import EpisodeSource
from lit_treerl.data.webshop.policy import PAGES, SHOP
from lit_treerl.data.webshop_tasks import WebShopTasks
from lit_treerl.envs.webshop.demonstrations import shopping_episode
from lit_treerl.envs.webshop.env import WebShop
from lit_treerl.envs.webshop.goals import Split
from lit_treerl.envs.webshop.shopper import Noise, Shopper
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task

HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPLITS: tuple[Split, ...] = ("train", *HELD_OUT)


class WebShopDemonstrations(EpisodeSource):
    """The noisy shopper in generated shops that the tasks are not from, pages as the embedded policy knows them.

    No goal asks for the same as one of the validation or test goals of the shop of the tasks.

    Args:
        n: how many episodes.
        shops: seeds of the shops.
        seed: of goals and noise.
        held_out: seed of the shop whose validation and test goals are left out.
        noise: how the shopper errs.
        max_turns: of an episode.
    """

    def __init__(
        self,
        n: int = 30_000,
        shops: Sequence[int] = tuple(range(1000, 1006)),
        seed: int = 0,
        held_out: int = 0,
        noise: Noise | None = None,
        max_turns: int = 15,
    ) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        if not shops or held_out in shops:
            raise ValueError(f"shops must be seeds other than held_out ({held_out}), at least one; got {list(shops)}")
        self.n, self.shops, self.seed, self.held_out = n, tuple(shops), seed, held_out
        self.noise, self.max_turns = noise or RUSHED, max_turns

    def load(self) -> list[dict[str, Any]]:
        """All rows."""
        return list(self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows one after the other; see :func:`~lit_treerl.envs.webshop.demonstrations.shopping_episode`.

        The last observation, that of the purchase, is left out: no policy gets to see it.
        """
        rng = random.Random(derive_seed("webshop demonstrations", *self.shops, self.seed))
        places = [self._place(shop) for shop in self.shops]
        for _ in range(self.n):
            env, tasks = rng.choice(places)
            task = rng.choice(tasks)
            row = shopping_episode(env, task, Shopper(task.question, self.noise, rng, self.max_turns, spaced=True))
            row["turns"][-1]["observation"] = ""
            yield row | {"goal_hash": task.extra["goal_hash"]}

    def _place(self, shop: int) -> tuple[WebShop, list[Task]]:
        kept_back = {
            task.extra["goal_hash"]
            for split in HELD_OUT
            for task in WebShopTasks(split, seed=self.held_out, **SHOP).load()
        }
        tasks = [task for split in SPLITS for task in WebShopTasks(split, seed=shop, **SHOP).load()]
        env = WebShop(seed=shop, max_turns=self.max_turns, **SHOP, **PAGES)
        return env, [task for task in tasks if task.extra["goal_hash"] not in kept_back]


RUSHED = Noise(hasty=0.85, wrong_item=0.15, wrong_option=0.1, skipped_option=0.1, short_query=0.4, only_color=0.65)
"""Knows its way, but mostly chooses a color alone, looks at few features, and often searches too widely."""
