"""Whether trees and trajectories come to the same: losses, values, and the gradient of every parameter."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path

import torch
from torch import Tensor

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05}
"""Largest gap allowed, by data type; rounding alone made 1e-6 and .02 of it in the 5m model on a CPU."""


def gap(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected; 0 where both are zero, infinite where only that is."""
    if found.shape != expected.shape:
        raise ValueError(f"shapes {tuple(found.shape)} and {tuple(expected.shape)} cannot be compared")
    norm = torch.linalg.vector_norm
    apart, whole = float(norm(found.float() - expected.float())), float(norm(expected.float()))
    return apart / whole if whole else (float("inf") if apart else 0.0)


def gaps(tree: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, float]:
    """The gap of every tensor by its name.

    Raises:
        ValueError: where one of them has tensors that the other lacks.
    """
    if other := tree.keys() ^ rows.keys():
        raise ValueError(f"only one of trees and trajectories has {', '.join(sorted(other))}")
    return {name: gap(tree[name], rows[name]) for name in rows}


def gaps_of_files(tree: Path, rows: Path) -> dict[str, float]:
    """:func:`gaps` of what two runs have saved; tensors are read one by one."""
    return gaps(*(torch.load(path, mmap=True) for path in (tree, rows)))


def worst(found: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """The largest gap, and whose it is, of every kind: the part of a name before the colon."""
    out: dict[str, tuple[float, str]] = {}
    for name, size in found.items():
        kind, _, part = name.partition(": ")
        if kind in out and isnan(out[kind][0]):  # the worst of all
            continue
        if kind not in out or isnan(size) or size > out[kind][0]:
            out[kind] = (size, part)
    return out


def too_far(found: Mapping[str, float], tolerance: float) -> list[str]:
    """Lines on the kinds whose largest gap is above ``tolerance``, or nan."""
    return [
        f"{kind}{part and f' of {part}'}: trees differ from trajectories by {size:.1e}, more than {tolerance:.1e}"
        for kind, (size, part) in worst(found).items()
        if not size <= tolerance
    ]
