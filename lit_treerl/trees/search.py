"""Search: where a tree grows next. Tree-GRPO's M-N-L search; with no expansions it is plain chain sampling."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from lit_treerl.trees.tree import ROOT, Status, Tree

Draw = Literal["uniform", "entropy"]


@dataclass(frozen=True)
class TreeSearch:
    """Tree-GRPO's search (arXiv 2509.21240): M chains a task, then L rounds of N forks in each tree.

    A fork continues at a drawn node with a new chain down to its own leaf, so a task yields M(LN + 1) leaves.

    Args:
        trees: M, independent chains a task starts with, each the seed of one tree.
        expansions: N, forks in each tree and round; 0 samples chains only.
        rounds: L; nodes of earlier rounds can be drawn in later ones.
        draw: ``uniform``, as published, or ``entropy``: the nodes first whose next actions were least certain.
        replacement: draw a node more than once in a round, as published; without, every candidate comes once
            before any comes twice. ``entropy`` always goes round.
        include_root: the root can be drawn, which gives a fresh chain, as published. Without it the first
            action is never contrasted inside a tree.
        keep_leaves: random leaves of each tree that are learned from, all when null.

    Raises:
        ValueError: where a setting is out of range.
    """

    trees: int = 2
    expansions: int = 2
    rounds: int = 1
    draw: Draw = "uniform"
    replacement: bool = True
    include_root: bool = True
    keep_leaves: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("trees", 1), ("expansions", 0), ("rounds", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"search.{name} must be at least {least}, got {getattr(self, name)}")
        if self.draw not in ("uniform", "entropy"):
            raise ValueError(f"search.draw must be 'uniform' or 'entropy', got {self.draw!r}")
        if self.keep_leaves is not None and not 1 <= self.keep_leaves <= self.leaves_per_tree:
            raise ValueError(
                f"search.keep_leaves must be null or in 1..{self.leaves_per_tree} (rounds * expansions + 1 leaves "
                f"grow in each tree), got {self.keep_leaves}"
            )

    @property
    def leaves_per_tree(self) -> int:
        """LN + 1."""
        return self.rounds * self.expansions + 1

    @property
    def leaves_per_task(self) -> int:
        """M(LN + 1), before pruning."""
        return self.trees * self.leaves_per_tree

    def expected_chains(self, mean_turns: float) -> float:
        """Expected cost of a task in chains of ``mean_turns`` turns: M(1 + LN(1/2 + 1/(2T))).

        A fork at a node of depth d costs T - d of T turns and d is uniform in 0..T-1 (1..T-1 without the root, so
        1/2 of a chain). Exact for one round of equally long chains; from the second round on an upper bound,
        because the forks already made put more of the candidates deep in the tree. The paper's 1 + LN/2 is the
        limit of long episodes.

        Raises:
            ValueError: for fewer than one turn.
        """
        if mean_turns < 1:
            raise ValueError(f"a chain has at least 1 turn, got mean_turns = {mean_turns}")
        fork = 0.5 + 0.5 / mean_turns if self.include_root or mean_turns == 1 else 0.5
        return self.trees * (1 + self.rounds * self.expansions * fork)

    def leaves_per_chain(self, mean_turns: float) -> float:
        """Leaves obtained for the cost of one chain."""
        return self.leaves_per_task / self.expected_chains(mean_turns)

    def draw_nodes(self, tree: Tree, n: int, rng: random.Random) -> list[int]:
        """Nodes at which ``tree`` forks next, ``n`` of them; the root where nothing else can be drawn."""
        found = candidates(tree, include_root=self.include_root) or [ROOT]
        if self.draw == "entropy":
            return draw_by_entropy(tree, found, n)
        return draw_uniform(found, n, rng, replacement=self.replacement)

    def prune(self, tree: Tree, rng: random.Random) -> None:
        """Keep ``keep_leaves`` random leaves of a grown tree: sets ``tree.kept_leaves`` where leaves go."""
        leaves = tree.training_leaves()
        if self.keep_leaves is not None and len(leaves) > self.keep_leaves:
            tree.kept_leaves = sorted(rng.sample(leaves, self.keep_leaves))


def candidates(tree: Tree, *, include_root: bool = True) -> list[int]:
    """The root and every node that has a child, by index; never one whose episode is over or failed."""
    inner = set(tree.parent) | {ROOT}
    first = ROOT if include_root else ROOT + 1
    return [node for node in range(first, len(tree)) if node in inner and tree.status[node] is Status.OPEN]


def draw_uniform(nodes: list[int], n: int, rng: random.Random, *, replacement: bool = True) -> list[int]:
    """``n`` of ``nodes``, uniformly; without replacement a new shuffle begins when all have been drawn."""
    if replacement:
        return [rng.choice(nodes) for _ in range(n)]
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += rng.sample(nodes, min(len(nodes), n - len(drawn)))
    return drawn


def draw_by_entropy(tree: Tree, nodes: list[int], n: int) -> list[int]:
    """``n`` of ``nodes``, those first whose children's mean action entropy is highest, ties by index, going round."""
    children = tree.children()

    def uncertainty(node: int) -> float:
        entropies = [tree.mean_action_entropy(child) for child in children[node] if tree.logprobs[child]]
        return sum(entropies) / len(entropies) if entropies else 0.0

    ranked = sorted(nodes, key=lambda node: (-uncertainty(node), node))
    return [ranked[i % len(ranked)] for i in range(n)]
