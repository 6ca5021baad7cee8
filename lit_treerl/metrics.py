"""Episode metrics with torchmetrics: sums and counts per data source, so that uneven ranks stay exact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

ALL = "all"


class EpisodeMetrics(Metric):
    """Means of episode numbers (EM, F1, success rate, turns, ...) per data source and over all episodes.

    State is a sum and a count for every (source, number), reduced over ranks by addition: the result does not
    depend on how episodes were shared out. NaN values are left out of their mean.

    Args:
        sources: names of the data sources, the same on all ranks.
        names: names of the numbers.
    """

    total: Tensor
    count: Tensor
    full_state_update = False

    def __init__(self, sources: Sequence[str], names: Sequence[str]) -> None:
        super().__init__()
        self.sources, self.names = list(dict.fromkeys(sources)), list(names)
        shape = (len(self.sources), len(self.names))
        self.add_state("total", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, episodes: Iterable[tuple[str, Mapping[str, float]]]) -> None:
        """Add episodes given as (data source, number by name).

        Raises:
            KeyError: for a data source that was not announced.
        """
        for source, numbers in episodes:
            if source not in self.sources:
                raise KeyError(f"data source {source!r} was not announced; known are {self.sources}")
            row = self.sources.index(source)
            for column, name in enumerate(self.names):
                if not math.isnan(value := numbers[name]):
                    self.total[row, column] += value
                    self.count[row, column] += 1

    def compute(self) -> dict[str, dict[str, float]]:
        """``{source: {name: mean}}`` for every source with episodes, then ``all`` over all episodes."""
        out = {
            source: self._means(self.total[row], self.count[row])
            for row, source in enumerate(self.sources)
            if self.count[row].any()
        }
        out[ALL] = self._means(self.total.sum(0), self.count.sum(0))
        return out

    def _means(self, total: Tensor, count: Tensor) -> dict[str, float]:
        means = (total / count).tolist()
        out: dict[str, float] = {n: mean for n, mean in zip(self.names, means, strict=True) if not math.isnan(mean)}
        out["episodes"] = int(count.max())
        return out
