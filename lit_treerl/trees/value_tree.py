"""The Action-Prefix Value Tree (APVT) of TreePPO: our RECONSTRUCTION, since only the abstract is public.

Known from the abstract: trajectories that share ordered action prefixes are organised in one tree; the terminal
rewards of a prefix's different continuations are averaged as the empirical value target of that intermediate state;
the targets supervise critic warm-up; on-policy rollouts afterwards keep extending the tree. Ours are the keys, the
decay by policy version, the shrinkage towards the parent, the backup that forced forks do not bias, leaving one
episode out, and the bound on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from lit_treerl.trees.task import Task
from lit_treerl.trees.tree import RolloutGroup, Tree
from lit_treerl.trees.value_growth import Growth, check_rewards, counted_leaves
from lit_treerl.trees.value_keys import task_key
from lit_treerl.trees.value_memory import evict, from_tables, to_tables
from lit_treerl.trees.value_node import PrefixNode, Rules
from lit_treerl.trees.value_reading import Reading


@dataclass(frozen=True)
class TaskValue:
    """What is known of a task's return.

    Attributes:
        count: n at the root, the decayed number of first actions sampled.
        mean: mean return (discounted, as the tree is).
        variance: of the return of one episode.
    """

    count: float
    mean: float
    variance: float


class ValueTree:
    """Mean returns-to-go by task content and action prefix, over the whole run (reconstruction, see the module).

    A sample is one arena edge parent -> child: the policy acted AT the parent's state, whether the search forced it
    to act there again or not. With w_c the decayed samples of action c at prefix u, rbar_c their mean step reward and
    p_c the share of them whose episode went on,

        V(u) = sum_c w_c (rbar_c + discount * p_c * V(c)) / n(u),      n(u) = sum_c w_c,
        y(u) = (n(u) V(u) + k y(parent)) / (n(u) + k),                  trust a(u) = n(u) / (n(u) + k).

    Forks below c are samples at or below c and never change w_c, so forced forks do not bias V(u), as the plain mean
    over leaves would be. An episode that ends at c has nothing to come and counts in p_c; V(c) is the value of the
    states in which the policy goes on to act. Rewards at the arena's root are no action's and are left out. States
    that differ in what the key leaves out, such as thoughts, are pooled: one at which the search forks weighs more
    among those of its own prefix, though not above.

    Counted are the nodes on paths to leaves that did not fail. Truncated leaves count with their true reward, leaves
    that pruning left out do too (their rewards are real), and so does a leaf still open, as an end.

    The root's y(parent) is the prior: the mean of V over the roots of all tasks, each weighted by min(n, 1), so that
    a task counts once however often it was sampled and fades when its samples are old; or a number that the caller
    gives, such as the critic's value.

    Args:
        half_life: policy versions after which a sample counts half; null keeps all at full weight.
        shrinkage: k, samples that the belief about the parent's state is worth.
        discount: of the return, per step.
        max_nodes: most prefixes kept (ends of episodes included). Above it, those nobody came to for longest go
            first, from the leaves up, then the least visited, until a tenth is free; their sums are folded into
            the parent, so values that stay do not change. Roots and what the newest iteration touched go last.

    Raises:
        ValueError: where a setting is out of range.
    """

    def __init__(
        self,
        half_life: float | None = 8.0,
        shrinkage: float = 2.0,
        discount: float = 1.0,
        max_nodes: int = 200_000,
    ) -> None:
        _check("half_life", half_life is None or half_life > 0, "above 0, or null for no decay", half_life)
        _check("shrinkage", 0 < shrinkage < math.inf, "above 0 and finite", shrinkage)
        _check("discount", 0 < discount <= 1, "above 0 and at most 1", discount)
        _check("max_nodes", max_nodes >= 1, "at least 1", max_nodes)
        self.half_life, self.shrinkage, self.discount, self.max_nodes = half_life, shrinkage, discount, max_nodes
        self._rules = Rules(discount, half_life)
        self._become({}, 0, None)

    # ---- growing ----

    def add(self, groups: Sequence[RolloutGroup], version: int) -> None:
        """Add the trees of one iteration.

        Args:
            groups: the iteration's trees; their failed leaves are left out.
            version: of the policy that sampled them. Time goes by it: the newest version ever added is "now".

        Raises:
            ValueError: naming the task, where a reward is not finite; nothing is added then.
        """
        keys = [task_key(group.task) for group in groups]
        trees = [(group.task, key, tree) for group, key in zip(groups, keys, strict=True) for tree in group.trees]
        counts = [counted_leaves(tree) for _, _, tree in trees]
        for (task, _, tree), below in zip(trees, counts, strict=True):
            check_rewards(task, tree, below)
        growth = Growth(self._roots, self._rules)
        for (_, key, tree), below in zip(trees, counts, strict=True):
            growth.add(key, tree, below, int(version))
        self._grown(growth, int(version))

    def merge(self, other: ValueTree | Mapping[str, Any]) -> None:
        """Add what another tree (or its :meth:`state_dict`) was given: for trees of different episodes, as on ranks.

        The result is that of one tree given all episodes, whatever the order of merging. Merge each episode once:
        let every rank add an iteration to a fresh tree and merge these, not the same growing tree again and again.

        Raises:
            ValueError: where ``other`` was built with another half_life or discount, or is this very tree.
        """
        if other is self:
            raise ValueError("a value tree cannot be merged with itself: its episodes would count twice")
        state = other.state_dict() if isinstance(other, ValueTree) else other
        growth = Growth(self._roots, self._rules)
        growth.absorb(self._read(state))
        self._grown(growth, state["version"])

    def _grown(self, growth: Growth, version: int | None) -> None:
        growth.back_up()
        versions = [known for known in (self._version, version) if known is not None]
        self._become(self._roots, self._size + growth.created, max(versions, default=None))

    def _become(self, roots: dict[str, PrefixNode], size: int, version: int | None) -> None:
        """Take ``roots``, cut down to the bound, as of ``version``; readings begin anew."""
        self._roots, self._size, self._version = roots, size, version
        if size > self.max_nodes:
            self._size -= evict(roots, self.max_nodes, version or 0, self._rules)
        self._reading = Reading(roots, self._rules, self.shrinkage, version or 0)

    # ---- asking ----

    def beliefs(self, group: RolloutGroup, prior: float | None = None) -> list[tuple[list[float], list[float]]]:
        """For each tree of ``group``, (y, trust) of the states of its nodes; the group need not have been added.

        Where the episode ended (terminal, truncated) nothing is to come and nothing to learn: y = 0 and trust 0.
        A failed node has y = nan and trust 0. A prefix that was never sampled believes what its parent does, with
        trust 0; before anything was added that is nan.

        Args:
            group: trees of one task.
            prior: stands for the mean over tasks where given and not nan, such as the critic's value of the task.
        """
        root, above = self._root(group.task), _given(prior)
        above = self._reading.prior if above is None else above
        return [self._reading.beliefs(tree, root, above) for tree in group.trees]

    def leave_one_out(self, group: RolloutGroup, tree_index: int, leaf: int, prior: float | None = None) -> list[float]:
        """y of the nodes on the path to ``leaf``, as if its episode had not been added; for baselines.

        Taken out are the episode's own samples: the edges of its path that lead to no other counted leaf of the tree.
        Shared edges stay, they belong to other episodes too. This equals a tree that was built without the episode,
        as far as float64 tells a rest from the sum, and but for prefixes that at once did not fit ``max_nodes``.

        Args:
            group: a group that the last :meth:`add` was given.
            tree_index: which of its trees.
            leaf: one of the tree's leaves.
            prior: as in :meth:`beliefs`; else the mean over tasks, without the episode as well.

        Raises:
            ValueError: where ``leaf`` is none, or the last version added no episode there.
        """
        with _naming(group, tree_index, leaf) as tree:
            return self._reading.leave_one_out(tree, self._root(group.task), leaf, _given(prior))

    def others(self, group: RolloutGroup, tree_index: int, leaf: int) -> list[tuple[float, float]]:
        """(n, V) of the nodes on the path to ``leaf`` without its episode: what :meth:`leave_one_out` shrinks.

        n is 0 where no other episode was sampled from a state.

        Raises:
            ValueError: as there.
        """
        with _naming(group, tree_index, leaf) as tree:
            return self._reading.others(tree, self._root(group.task), leaf)

    def task_value(self, task: Task) -> TaskValue | None:
        """Count, mean and variance of the task's return, not shrunken; None where the task is unknown."""
        root = self._root(task)
        if root is None:
            return None
        return TaskValue(self._reading.samples(root), root.mean, max(0.0, root.square - root.mean * root.mean))

    def prior(self) -> float:
        """Mean of V over the tasks' roots, each weighted by min(n, 1); nan when no task is known."""
        return self._reading.prior

    def __len__(self) -> int:
        """Number of prefixes kept, ends of episodes and roots included."""
        return self._size

    def tasks(self) -> int:
        """Number of tasks known."""
        return len(self._roots)

    def visits_mean(self) -> float:
        """Mean of n over the prefixes at which an action was sampled, decayed to now; 0 when there are none."""
        return self._reading.visits_mean()

    def _root(self, task: Task) -> PrefixNode | None:
        return self._roots.get(task_key(task))

    # ---- storing ----

    def state_dict(self) -> dict[str, Any]:
        """Everything that was learned, as tensors and plain containers; exact."""
        return {"settings": asdict(self._rules), "version": self._version, "nodes": to_tables(self._roots)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what :meth:`state_dict` stored; more nodes than ``max_nodes`` are cut down to it.

        Raises:
            ValueError: where it was built with another half_life or discount, or is damaged; nothing changes then.
        """
        self._become(self._read(state), len(state["nodes"]["keys"]), state["version"])

    def _read(self, state: Mapping[str, Any]) -> dict[str, PrefixNode]:
        if missing := [key for key in ("settings", "version", "nodes") if key not in state]:
            raise ValueError(f"a value tree's state lacks {', '.join(missing)}")
        for key, mine in asdict(self._rules).items():
            if (theirs := state["settings"].get(key)) != mine:
                raise ValueError(f"model.value_tree.{key} is {mine}, but the stored tree was built with {theirs}")
        return from_tables(state["nodes"])


@contextmanager
def _naming(group: RolloutGroup, tree_index: int, leaf: int) -> Iterator[Tree]:
    """The tree; errors inside name the task and the leaf."""
    tree = group.trees[tree_index]
    if leaf not in tree.leaves():
        raise ValueError(f"task {group.task.id!r}: node {leaf} of tree {tree_index} is not a leaf")
    try:
        yield tree
    except ValueError as error:
        raise ValueError(f"task {group.task.id!r}, leaf {leaf} of tree {tree_index}: {error}") from None


def _check(key: str, good: bool, wanted: str, got: object) -> None:
    if not good:
        raise ValueError(f"model.value_tree.{key} must be {wanted}, got {got}")


def _given(prior: float | None) -> float | None:
    """``prior`` as a plain number, None where it is none."""
    return None if prior is None or math.isnan(prior) else float(prior)
