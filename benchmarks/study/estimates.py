"""Means with 95% t-intervals over seeds, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# The .975 quantile of Student's t for 1 to 10 degrees of freedom.
T_TABLE = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139)
Z = 1.959963985  # that of the normal distribution


def t_quantile(freedom: int) -> float:
    """The .975 quantile of Student's t; beyond the table by its Cornish-Fisher expansion, good to 4 digits.

    Raises:
        ValueError: below 1 degree of freedom.
    """
    if freedom < 1:
        raise ValueError(f"Student's t has at least 1 degree of freedom, got {freedom}")
    if freedom <= len(T_TABLE):
        return T_TABLE[freedom - 1]
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the values.
        half: half the width of its 95% interval; None where there are fewer than two values.
        n: how many values.
    """

    mean: float
    half: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half is None else f" ± {self.half:.3f}")


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and t-interval.

    Raises:
        ValueError: without values.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    n = len(values)
    return Estimate(fmean(values), t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else None, n)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Mean difference over the seeds that both have; None where they share none."""
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return estimate(differences) if differences else None
