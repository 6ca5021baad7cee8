"""What all sources of tasks share: judging rows, limits, and ids that no two tasks share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lit_treerl.data.rows import task_from_row
from lit_treerl.trees.task import Task

_log = logging.getLogger(__name__)
_SHOWN = 10  # broken rows that are logged one by one


class TaskSource(ABC):
    """A list of tasks; ``broken`` counts the rows that :meth:`load` left out."""

    def __init__(self) -> None:
        self.broken = 0

    @abstractmethod
    def load(self) -> list[Task]:
        """Read the tasks, in a fixed order and with ids that no two share.

        Raises:
            ValueError: naming the source, when it is empty or too much of it is broken.
        """


class RowSource(TaskSource):
    """A source of rows, plain or in the form of Search-R1 (see :func:`lit_treerl.data.rows.task_from_row`).

    Args:
        name: of the source, for messages.
        data_source: for rows that do not name their own.
        limit: use the first so many good rows; all when None.
        max_broken: share of broken rows that is left out; more stops the run.
    """

    def __init__(self, name: str, data_source: str, limit: int | None, max_broken: float) -> None:
        super().__init__()
        if limit is not None and limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1, or null for all rows")
        if not 0 <= max_broken <= 1:
            raise ValueError(f"max_broken is {max_broken}; it must be a share between 0 and 1")
        self.name, self.data_source, self.limit, self.max_broken = name, data_source, limit, max_broken

    @abstractmethod
    def rows(self) -> Iterable[tuple[str, Any]]:
        """Every row with its place; a row that cannot even be read is the exception that says why."""

    def load(self) -> list[Task]:
        """Read the rows, report the broken ones and make the ids unique."""
        tasks: list[Task] = []
        complaints: list[str] = []
        for place, row in self.rows():
            try:
                if isinstance(row, Exception):
                    raise ValueError(str(row))
                tasks.append(task_from_row(row, self.data_source))
            except ValueError as error:
                complaints.append(f"{place}: {error}")
                if len(complaints) <= _SHOWN:
                    _log.warning("left out a broken row: %s", complaints[-1])
            if len(tasks) == self.limit:
                break
        self._judge(len(tasks), complaints)
        return _unique_ids(tasks)

    def _judge(self, good: int, complaints: list[str]) -> None:
        self.broken = len(complaints)
        if self.broken > _SHOWN:
            _log.warning(
                "%s: left out %d broken rows, %d of them not shown", self.name, self.broken, self.broken - _SHOWN
            )
        total = good + self.broken
        if self.broken > self.max_broken * total:
            first = "\n".join(complaints[:3])
            raise ValueError(
                f"{self.name}: {self.broken} of {total} rows are broken, more than max_broken ({self.max_broken:.1%}) "
                f"allows. The first:\n{first}"
            )
        if not good:
            raise ValueError(f"{self.name}: has no tasks")


def _unique_ids(tasks: list[Task]) -> list[Task]:
    """Number the second and later tasks of an id: ``x``, ``x#2``, ``x#3``."""
    seen: Counter[str] = Counter()
    taken = {task.id for task in tasks}
    out = []
    for task in tasks:
        seen[task.id] += 1
        name = task.id
        if seen[task.id] > 1:
            name = f"{task.id}#{seen[task.id]}"
            while name in taken:
                seen[task.id] += 1
                name = f"{task.id}#{seen[task.id]}"
            taken.add(name)
        out.append(task if name == task.id else replace(task, id=name))
    return out
