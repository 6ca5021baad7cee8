"""The embedded world as a search tool and as a source of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lit_treerl.data.sources import TaskSource
from lit_treerl.retrieval.bm25 import BM25Retriever
from lit_treerl.retrieval.index import PassageIndex
from lit_treerl.trees.task import Task


class EmbeddedRetriever(BM25Retriever):
    """BM25 over the passages of the embedded world; the index is built in memory in a fraction of a second.

    Args:
        seed: of the world; the same as that of the tasks.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(stopwords="none", backend="numpy")
        self.seed = seed

    def _open(self) -> PassageIndex:
        from lit_treerl.data.embedded.world import World

        self._rows = World(self.seed).corpus()
        return super()._open()


class EmbeddedTasks(TaskSource):
    """Questions over the embedded world; the splits have disjoint entities.

    Args:
        split: ``train``, ``validation`` or ``test``.
        n: how many questions.
        hops: numbers of facts to chain, taken in turn.
        seed: of the world and of the draw; the same as that of the retriever.
    """

    def __init__(
        self,
        split: Literal["train", "validation", "test"] = "train",
        n: int = 2000,
        hops: Sequence[int] = (2, 3, 4),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.split: Literal["train", "validation", "test"] = split
        self.n, self.hops, self.seed = n, tuple(hops), seed

    def load(self) -> list[Task]:
        """Draw the questions."""
        from lit_treerl.data.embedded.questions import embedded_tasks

        return embedded_tasks(self.split, self.n, hops=self.hops, seed=self.seed)
