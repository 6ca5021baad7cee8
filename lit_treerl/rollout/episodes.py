"""An episode as a row: what ``predict`` writes, supervised training reads, and metrics count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lit_treerl.rollout.stats import path_tokens
from lit_treerl.trees.tree import ROOT, RolloutGroup, Status, Tree

GRADES = ("em", "f1", "score")  # each where the environment gives it
EPISODE_NUMBERS = (*GRADES, "success_rate", "reward", "turns", "tool_calls", "tokens", "failed", "truncated")


def episode_row(group: RolloutGroup, tree: Tree, leaf: int) -> dict[str, Any]:
    """One finished episode as plain containers.

    Returns:
        ``id``, ``data_source``, ``question``, ``answers``, ``prompt`` (messages), ``turns`` (list of ``action``
        and ``observation`` texts, and of the ``prompt`` that came next where every turn has a fresh one), ``reward``,
        ``status``, ``info`` (the closing facts) and the numbers ``turns_taken``, ``tool_calls``, ``tokens`` (sampled).
    """
    path = tree.path(leaf)[1:]
    closing = {k: v for k, v in tree.info[leaf].items() if k not in ("action", "observation", "prompt")}
    return {
        "id": group.task.id,
        "data_source": group.task.data_source,
        "question": group.task.question,
        "answers": list(group.task.answers),
        "prompt": tree.info[ROOT].get("prompt", []),
        "turns": [_turn(tree.info[n]) for n in path],
        "reward": tree.leaf_return(leaf),
        "status": str(tree.status[leaf]),
        "info": closing,
        "turns_taken": len(path),
        "tool_calls": sum(int(tree.info[n].get("tool_calls", 0)) for n in path),
        "tokens": path_tokens(tree, leaf),
    }


def _turn(info: dict[str, Any]) -> dict[str, Any]:
    texts = {name: info.get(name, "") for name in ("action", "observation")}
    return texts | ({"prompt": info["prompt"]} if "prompt" in info else {})


def episodes(group: RolloutGroup) -> Iterator[dict[str, Any]]:
    """Rows of all leaves of a group, and one for every tree that failed before its first action."""
    for tree in group.trees:
        for leaf in tree.leaves() or [ROOT]:
            yield episode_row(group, tree, leaf)


def episode_numbers(row: dict[str, Any]) -> dict[str, float]:
    """The numbers that metrics average, keyed by :data:`EPISODE_NUMBERS`.

    An episode that failed through external trouble has NaN for all but ``failed``: it is kept out of averages. So has
    a grade that its environment does not give; an episode cut without any closing facts has 0.
    """
    failed = row["status"] == Status.FAILED
    info = row["info"]
    unknown = float("nan") if "success" in info else 0.0
    out = {name: float(info.get(name, unknown)) for name in GRADES}
    out |= {
        "success_rate": float(info.get("success", 0.0)),
        "reward": float(row["reward"]),
        "turns": float(row["turns_taken"]),
        "tool_calls": float(row["tool_calls"]),
        "tokens": float(row["tokens"]),
        "truncated": float(row["status"] == Status.TRUNCATED),
    }
    return {k: float("nan") for k in out} | {"failed": 1.0} if failed else out | {"failed": 0.0}
