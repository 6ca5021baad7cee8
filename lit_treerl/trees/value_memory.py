"""How a value tree is kept within bounds, and how it is stored."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lit_treerl.trees.value_node import PrefixNode, Rules, walk

_INTS = ("touched", "version", "folded_version")
_FLOATS = tuple(f.name for f in fields(PrefixNode) if f.name not in (*_INTS, "children"))


def evict(roots: dict[str, PrefixNode], bound: int, version: int, rules: Rules) -> int:
    """Drop nodes without children until the tree is a tenth below ``bound``; returns how many were dropped.

    Dropped first is what no episode came to for the longest time, then what was visited least; roots (of which a
    task's mean is read an epoch later) only after every other old node, and nodes that were touched in ``version``
    only as far as ``bound`` demands. A dropped node's sums are folded into its parent, so that no value above it
    changes; a root that goes takes its task along. Ties are broken by keys, so the order of insertion is no matter.
    """
    nodes = _sorted_walk(roots)
    if len(nodes) <= bound:
        return 0

    def rank(i: int) -> tuple[bool, bool, int, float, int]:
        """Order in which nodes are dropped, the smallest first."""
        parent, _, node = nodes[i]
        visits = node.weight * rules.fade(version - node.touched)
        return node.touched >= version, parent < 0, node.touched, round(visits, 9), -i

    heap = [rank(i) for i, (_, _, node) in enumerate(nodes) if not node.children]
    heapq.heapify(heap)
    left, target = len(nodes), int(0.9 * bound)
    while heap and left > target:
        current, *_, minus_i = heapq.heappop(heap)
        if current and left <= bound:
            break
        parent, key, _ = nodes[-minus_i]
        left -= 1
        if parent < 0:
            del roots[key]
            continue
        above = nodes[parent][2]
        above.fold(key, rules)
        if not above.children:
            heapq.heappush(heap, rank(parent))
    return len(nodes) - left


def _sorted_walk(roots: dict[str, PrefixNode]) -> list[tuple[int, str, PrefixNode]]:
    """As :func:`walk`, but level by level and siblings by key."""
    nodes = [(-1, key, roots[key]) for key in sorted(roots)]
    for i, (_, _, node) in enumerate(nodes):  # the list grows while it is read
        nodes += [(i, key, node.children[key]) for key in sorted(node.children)]
    return nodes


def to_tables(roots: dict[str, PrefixNode]) -> dict[str, Any]:
    """All nodes as one list of keys and one tensor a column, parents first: ``torch.load(weights_only=True)`` reads it.

    A root's key is its task's, any other's its action's; ``parent`` is the row of the parent, -1 at a root.
    """
    import torch

    rows = list(walk(roots))
    tables: dict[str, Any] = {
        "keys": [key for _, key, _ in rows],
        "parent": torch.tensor([parent for parent, _, _ in rows], dtype=torch.int64),
    }
    for names, dtype in ((_INTS, torch.int64), (_FLOATS, torch.float64)):
        tables |= {name: torch.tensor([getattr(row[2], name) for row in rows], dtype=dtype) for name in names}
    return tables


def from_tables(tables: Mapping[str, Any]) -> dict[str, PrefixNode]:
    """Inverse of :func:`to_tables`, exactly; siblings keep their order.

    Raises:
        ValueError: where a column is missing, has another length than the keys, or parents do not come first.
    """
    columns = ("keys", "parent", *_INTS, *_FLOATS)
    if missing := [name for name in columns if name not in tables]:
        raise ValueError(f"a value tree's state lacks {', '.join(missing)}")
    keys = list(tables["keys"])
    data = {name: tables[name].tolist() for name in columns[1:]}
    for name, column in data.items():
        if len(column) != len(keys):
            raise ValueError(f"a value tree's state has {len(keys)} keys but {len(column)} entries of {name!r}")
    roots: dict[str, PrefixNode] = {}
    nodes: list[PrefixNode] = []
    for row, (key, parent) in enumerate(zip(keys, data["parent"], strict=True)):
        if not -1 <= parent < row:
            raise ValueError(f"row {row} of a value tree's state has parent {parent}; parents come first")
        nodes.append(PrefixNode(**{name: data[name][row] for name in (*_INTS, *_FLOATS)}))
        siblings = roots if parent < 0 else nodes[parent].children
        if key in siblings:
            raise ValueError(f"row {row} of a value tree's state repeats the key {key!r}")
        siblings[key] = nodes[-1]
    return roots
