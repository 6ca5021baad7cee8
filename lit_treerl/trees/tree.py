"""The rollout tree: an arena in which a node is one whole agent step.

A node keeps only the tokens it adds: the action that the policy sampled, then the observation that the
environment answered with. ``parent[node] < node`` holds throughout, and node 0, the root, holds the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from lit_treerl.trees.task import Task

ROOT = 0
NO_PARENT = -1
ContextStyle = Literal["growing", "window"]


class Status(StrEnum):
    """How a node stands."""

    OPEN = "open"  # the episode goes on below it (or is still growing)
    TERMINAL = "terminal"  # the environment ended the episode here
    TRUNCATED = "truncated"  # cut by a limit of length; its reward is real
    FAILED = "failed"  # external trouble; never trained on


@dataclass
class Tree:
    """One tree of rollouts of one task, as a struct of lists indexed by node.

    Attributes:
        task_id: the task's id.
        index: which of the task's trees this is.
        context: ``growing`` (a node's context is its whole path) or ``window`` (the tokens after a node's
            action are the whole, fresh prompt of the next turn, shared by its children).
        parent: the parent's index, ``NO_PARENT`` at the root.
        ids: tokens this node adds, the action's first, then the observation's.
        action_len: how many of ``ids`` the policy sampled (0 at the root).
        logprobs: the sampler's log-prob of each action token.
        version: version of the policy that sampled the action.
        action_key: canonical form of the executed action.
        reward: reward of this step.
        status: see :class:`Status`.
        natural: False where the search forced a fork: the action was drawn again at a chosen state.
        info: JSON-able facts from the environment (answer, tool calls, error).
        snapshot: the environment's state after the step, only while the tree grows.
        kept_leaves: leaves kept by pruning, None when nothing was pruned.
    """

    task_id: str
    index: int = 0
    context: ContextStyle = "growing"
    parent: list[int] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    action_len: list[int] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    action_key: list[str] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    status: list[Status] = field(default_factory=list)
    natural: list[bool] = field(default_factory=list)
    info: list[dict[str, Any]] = field(default_factory=list)
    snapshot: list[Any] = field(default_factory=list)
    kept_leaves: list[int] | None = None

    # ---- growing ----

    def add_root(self, prompt_ids: Sequence[int], snapshot: Any = None) -> int:
        """Put the prompt in as node 0."""
        if self.parent:
            raise ValueError(f"tree {self.index} of task {self.task_id!r} already has a root")
        self._append(NO_PARENT, list(prompt_ids), 0, [], -1, natural=True)
        self.snapshot[ROOT] = snapshot
        return ROOT

    def add_action(
        self, parent: int, ids: Sequence[int], logprobs: Sequence[float], version: int, *, natural: bool = True
    ) -> int:
        """Append a node that so far holds only its sampled action; returns its index."""
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} action tokens but {len(logprobs)} log-probs")
        if not 0 <= parent < len(self.parent):
            raise ValueError(f"parent {parent} is not one of the tree's {len(self.parent)} nodes")
        if self.status[parent] is not Status.OPEN:
            raise ValueError(f"node {parent} is {self.status[parent]}, nothing can follow it")
        return self._append(parent, list(ids), len(ids), list(logprobs), version, natural=natural)

    def observe(
        self,
        node: int,
        ids: Sequence[int] = (),
        *,
        action_key: str = "",
        reward: float = 0.0,
        status: Status = Status.OPEN,
        info: dict[str, Any] | None = None,
        snapshot: Any = None,
    ) -> None:
        """Write what the environment answered to ``node``'s action."""
        self.ids[node].extend(ids)
        self.action_key[node] = action_key
        self.reward[node] = float(reward)
        self.status[node] = status
        self.info[node] = dict(info or {})
        self.snapshot[node] = snapshot

    def drop_snapshots(self) -> None:
        """Forget the environment states, once the tree is grown."""
        self.snapshot = [None] * len(self.parent)

    def reorder(self, order: Sequence[int]) -> None:
        """Renumber the nodes so that old node ``order[i]`` becomes node ``i``.

        Raises:
            ValueError: where ``order`` is not a permutation that keeps parents first.
        """
        if sorted(order) != list(range(len(self))):
            raise ValueError(f"{list(order)} does not permute the tree's {len(self)} nodes")
        new = {old: i for i, old in enumerate(order)} | {NO_PARENT: NO_PARENT}
        for f in fields(self):
            if isinstance(getattr(self, f.name), list) and f.name != "kept_leaves":
                setattr(self, f.name, [getattr(self, f.name)[old] for old in order])
        self.parent = [new[parent] for parent in self.parent]
        if self.kept_leaves is not None:
            self.kept_leaves = sorted(new[leaf] for leaf in self.kept_leaves)
        self.check()

    # ---- derived ----

    def __len__(self) -> int:
        return len(self.parent)

    def children(self) -> list[list[int]]:
        """Children of every node, in order of creation."""
        out: list[list[int]] = [[] for _ in self.parent]
        for node, parent in enumerate(self.parent):
            if parent != NO_PARENT:
                out[parent].append(node)
        return out

    def leaves(self) -> list[int]:
        """Nodes without children, the root never among them."""
        inner = set(self.parent)
        return [node for node in range(1, len(self)) if node not in inner]

    def training_leaves(self) -> list[int]:
        """Leaves that may be learned from: kept by pruning and not failed."""
        kept = self.leaves() if self.kept_leaves is None else self.kept_leaves
        return [leaf for leaf in kept if self.status[leaf] is not Status.FAILED]

    def path(self, node: int) -> list[int]:
        """Nodes from the root to ``node``, both included."""
        out = []
        while node != NO_PARENT:
            out.append(node)
            node = self.parent[node]
        return out[::-1]

    def depth(self, node: int) -> int:
        """Number of agent steps on the path to ``node``; the root has depth 0."""
        return len(self.path(node)) - 1

    def context_ids(self, node: int) -> list[int]:
        """Token ids that the policy sees when it acts after ``node``."""
        if self.context == "window":
            return self.ids[node][self.action_len[node] :]
        return [token for step in self.path(node) for token in self.ids[step]]

    def leaf_return(self, leaf: int) -> float:
        """Undiscounted return of the episode that ends in ``leaf``."""
        return float(sum(self.reward[node] for node in self.path(leaf)))

    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled for the whole tree, each counted once."""
        return sum(self.action_len)

    def mean_action_entropy(self, node: int) -> float:
        """Entropy per token of ``node``'s action, estimated from its own sample as the mean of -log p, in nats."""
        logprobs = self.logprobs[node]
        return -sum(logprobs) / len(logprobs) if logprobs else 0.0

    # ---- storing ----

    def to_json(self) -> dict[str, Any]:
        """Plain containers, without snapshots."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "snapshot"}
        return out | {"status": [str(status) for status in self.status]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tree:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: where the lists do not agree or the parents are not in order.
        """
        known = {f.name for f in fields(cls)} - {"snapshot"}
        if unknown := sorted(set(data) - known):
            raise ValueError(f"unknown tree fields {unknown}; known are {sorted(known)}")
        tree = cls(**data)
        tree.status = [Status(status) for status in tree.status]
        tree.snapshot = [None] * len(tree.parent)
        tree.check()
        return tree

    def check(self) -> None:
        """Raise ValueError where the arena's invariants do not hold."""
        size = len(self.parent)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list) and f.name != "kept_leaves" and len(value) != size:
                raise ValueError(f"tree field {f.name!r} has {len(value)} entries for {size} nodes")
        for node, parent in enumerate(self.parent):
            if (parent != NO_PARENT) if node == ROOT else not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents come first and only the root has none")
            if len(self.logprobs[node]) != self.action_len[node] or self.action_len[node] > len(self.ids[node]):
                raise ValueError(
                    f"node {node}: {self.action_len[node]} action tokens, {len(self.ids[node])} ids, "
                    f"{len(self.logprobs[node])} log-probs"
                )

    def _append(
        self, parent: int, ids: list[int], action_len: int, logprobs: list[float], version: int, *, natural: bool
    ) -> int:
        self.parent.append(parent)
        self.ids.append(ids)
        self.action_len.append(action_len)
        self.logprobs.append(logprobs)
        self.version.append(version)
        self.action_key.append("")
        self.reward.append(0.0)
        self.status.append(Status.OPEN)
        self.natural.append(natural)
        self.info.append({})
        self.snapshot.append(None)
        return len(self.parent) - 1


@dataclass
class RolloutGroup:
    """All trees of one task from one iteration: what group-relative methods compare."""

    task: Task
    trees: list[Tree]

    def leaves(self) -> list[tuple[Tree, int]]:
        """(tree, leaf) of every leaf that may be learned from, in tree order."""
        return [(tree, leaf) for tree in self.trees for leaf in tree.training_leaves()]
