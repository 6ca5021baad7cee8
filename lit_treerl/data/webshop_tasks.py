"""WebShop's goals as a source of tasks."""

from __future__ import annotations

from collections import Counter

from lit_treerl.data.row_source import TaskSource
from lit_treerl.envs.webshop.goals import GoalStyle, Split, split_goals
from lit_treerl.envs.webshop.shop import Shop, ShopSettings, open_shop
from lit_treerl.trees.task import Task


class WebShopTasks(TaskSource):
    """Goals of WebShop, in the one shuffled order of the original: 500 test, 1,000 validation, the rest train.

    Every task's ``extra`` holds ``goal_index`` (place in that order), ``goal_hash`` (what is asked for; no two splits
    share one), ``conditions`` (attributes and options asked for) and ``rivals`` (products of the same query).

    Args:
        split: ``train``, ``validation`` or ``test``.
        limit: the first so many goals of the split; all when None.
        catalogue: as of the environment, like the next five: folder of the released files, or null.
        products: as of the environment.
        seed: as of the environment.
        types: as of the environment.
        goals: as of the environment.
        max_conditions: leave out goals that ask for more attributes and options than this.
    """

    def __init__(
        self,
        split: Split = "train",
        limit: int | None = None,
        catalogue: str | None = None,
        products: int | None = None,
        seed: int = 0,
        types: int = 48,
        goals: GoalStyle = "human",
        max_conditions: int | None = None,
    ) -> None:
        super().__init__()
        if limit is not None and limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1, or null for all goals of the split")
        self.split: Split = split
        self.limit, self.max_conditions = limit, max_conditions
        self.shop_settings = ShopSettings(catalogue, products, seed, types, goals)

    def load(self) -> list[Task]:
        """The goals of the split, always in the same order.

        Raises:
            FileNotFoundError: for a missing file of the catalogue.
            ValueError: for broken files, or where no goal is left.
        """
        shop = open_shop(self.shop_settings)
        rivals = Counter(product.query for product in shop.products)
        tasks = [_task(shop, place, rivals) for place in split_goals(shop.goals, self.split)]
        if self.max_conditions is not None:
            tasks = [task for task in tasks if task.extra["conditions"] <= self.max_conditions]
        if not tasks:
            raise ValueError(
                f"WebShop: split {self.split!r} of {len(shop.goals)} goals has none with max_conditions "
                f"{self.max_conditions}"
            )
        return tasks[: self.limit]


def _task(shop: Shop, place: int, rivals: Counter[str]) -> Task:
    goal = shop.goals[place]
    extra = {
        "goal_index": place,
        "goal_hash": goal.hash,
        "conditions": goal.conditions,
        "rivals": rivals[goal.query],
    }
    return Task(f"webshop-{place}-{goal.hash[:8]}", "webshop", goal.instruction, extra=extra)
