"""An environment that asks for worker processes; they import this file, so it is small."""

from __future__ import annotations

from typing import Any

from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.retrieval.base import Retriever


class SearchInProcesses(SearchQA):
    """The embedded world's environment in worker processes."""

    def __init__(self, retriever: Retriever | None = None, **options: Any) -> None:
        super().__init__(retriever, **options)
        self.runs_in = "processes"
