"""How hard a task is believed to be: predicted success, the spread of its return, and who got how much.

A reconstruction: of TreePPO only the abstract is public. It says that the critic's estimate of a task's difficulty
allocates the rollouts, more of them to moderately difficult tasks; the formulas are ours.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lit_treerl.trees.budget import TaskBelief

Spread = Literal["bernoulli", "variance"]


def predicted_success(
    belief: TaskBelief,
    prior_weight: float = 2.0,
    reward_range: tuple[float, float] = (0.0, 1.0),
    fallback: float | None = None,
) -> float | None:
    """Predicted success p in [0, 1] of a task, 0 hopeless and 1 certain; None where nothing is known of it.

    p = (n mean + k v) / (n + k): the value tree's mean return over n episodes, shrunk towards the critic's value v as
    by k further episodes. ``reward_range`` is then mapped to [0, 1] and what lies outside (a penalty below the worst
    outcome) is clipped.

    Args:
        belief: of the task.
        prior_weight: k.
        reward_range: returns that mean failure and success.
        fallback: stands in for v where there is no critic but there are episodes; without it their mean is taken
            as it is.
    """
    count, value = belief.count, belief.value
    if value is None and count == 0:
        return None
    if value is None:
        value = belief.mean if fallback is None else fallback
    total = count + prior_weight
    expected = (count * belief.mean + prior_weight * value) / total if total else value
    low, high = reward_range
    return min(1.0, max(0.0, (expected - low) / (high - low)))


def return_spread(
    belief: TaskBelief,
    p: float,
    prior_weight: float = 2.0,
    reward_range: tuple[float, float] = (0.0, 1.0),
    kind: Spread = "bernoulli",
) -> float:
    """Standard deviation of a task's return in units of ``reward_range``, in [0, 1/2].

    ``bernoulli``: sqrt(p (1 - p)), exact for a reward that is one end of the range or the other. ``variance``: for
    other rewards, sqrt((n variance + k p (1 - p)) / (n + k)): the value tree's variance over n episodes, shrunk
    towards the largest that a return with mean p can have; ``bernoulli`` where it is unknown.
    """
    spread = p * (1 - p)
    if kind == "variance" and belief.variance is not None and belief.count:
        low, high = reward_range
        seen = max(0.0, belief.variance) / (high - low) ** 2
        spread = (belief.count * seen + prior_weight * spread) / (belief.count + prior_weight)
    return min(0.5, math.sqrt(spread))


class DifficultyBin(NamedTuple):
    """Tasks whose predicted success lies in [low, high) and the mean of what they got, 0.0 where there are none."""

    low: float
    high: float
    tasks: int
    mean: float


def by_difficulty(counts: Sequence[int], p: Sequence[float], bins: int = 10) -> list[DifficultyBin]:
    """Mean count against predicted success, in ``bins`` equal bins of [0, 1]; the last one includes 1.

    Args:
        counts: trees of each task.
        p: predicted success of each; tasks with nan are left out.
        bins: their number.

    Raises:
        ValueError: where lengths differ, ``bins`` is below 1, or a p lies outside [0, 1].
    """
    if len(counts) != len(p) or bins < 1:
        raise ValueError(
            f"{len(counts)} counts, {len(p)} predictions and {bins} bins; needs as many of both, bins >= 1"
        )
    edges = [i / bins for i in range(bins + 1)]
    members: list[list[int]] = [[] for _ in range(bins)]
    for count, chance in zip(counts, p, strict=True):
        if math.isnan(chance):
            continue
        if not 0 <= chance <= 1:
            raise ValueError(f"predicted success must be in [0, 1], got {chance}")
        members[min(bisect_right(edges, chance), bins) - 1].append(count)
    return [
        DifficultyBin(low, high, len(found), sum(found) / len(found) if found else 0.0)
        for low, high, found in zip(edges, edges[1:], members, strict=False)
    ]
