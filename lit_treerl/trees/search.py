"""Search: where a tree grows next. Tree-GRPO's M-N-L search; with no expansions it is plain chain sampling."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lit_treerl.trees.draws import candidates, draw_by_critic, draw_by_entropy, draw_by_gap, draw_uniform
from lit_treerl.trees.tree import ROOT, Tree

Draw = Literal["uniform", "entropy", "critic", "critic_gap"]


@dataclass(frozen=True)
class TreeSearch:
    """Tree-GRPO's search (arXiv 2509.21240): M chains a task, then L rounds of N forks in each tree.

    A fork continues at a drawn node with a new chain down to its own leaf, so a task yields M(LN + 1) leaves.

    Args:
        trees: M, independent chains a task starts with, each the seed of one tree.
        expansions: N, forks in each tree and round; 0 samples chains only.
        rounds: L; nodes of earlier rounds can be drawn in later ones.
        draw: ``uniform``, as published; ``entropy``: the nodes first whose next actions were least certain; beyond
            the papers, ours, ``critic``: those first of which the critic is least sure, by v (1 - v), and
            ``critic_gap``: those first where critic and value tree differ most.
        replacement: draw a node more than once in a round, as published; without, every candidate comes once
            before any comes twice. Draws other than ``uniform`` always go round.
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
        if self.draw not in get_args(Draw):
            raise ValueError(f"search.draw must be one of {', '.join(get_args(Draw))}, got {self.draw!r}")
        if self.keep_leaves is not None and not 1 <= self.keep_leaves <= self.leaves_per_tree:
            raise ValueError(
                f"search.keep_leaves must be null or in 1..{self.leaves_per_tree} (rounds * expansions + 1 leaves "
                f"grow in each tree), got {self.keep_leaves}"
            )

    @property
    def uses_values(self) -> bool:
        """``draw_nodes`` needs the critic's values."""
        return self.draw in ("critic", "critic_gap")

    @property
    def uses_means(self) -> bool:
        """``draw_nodes`` needs the value tree's means."""
        return self.draw == "critic_gap"

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

    def draw_nodes(
        self,
        tree: Tree,
        n: int,
        rng: random.Random,
        values: Sequence[float] | None = None,
        means: Sequence[float] | None = None,
    ) -> list[int]:
        """Nodes at which ``tree`` forks next, ``n`` of them; the root where nothing else can be drawn.

        Args:
            tree: that grows.
            n: forks; every draw makes exactly that many.
            rng: of the ``uniform`` draw.
            values: [nodes of the tree] the critic's values of their states, where ``uses_values``; nan where it was not
                asked, as where only failed episodes lead on.
            means: [nodes of the tree] the value tree's mean returns, where ``uses_means``; nan where it has none.

        Raises:
            ValueError: where the draw needs values or means that are missing, of another number, or infinite.
        """
        found = candidates(tree, include_root=self.include_root) or [ROOT]
        if self.draw == "entropy":
            return draw_by_entropy(tree, found, n)
        if self.draw == "critic":
            return draw_by_critic(found, n, self._known("values", values, tree))
        if self.draw == "critic_gap":
            return draw_by_gap(found, n, self._known("values", values, tree), self._known("means", means, tree))
        return draw_uniform(found, n, rng, replacement=self.replacement)

    def _known(self, name: str, given: Sequence[float] | None, tree: Tree) -> Sequence[float]:
        """``given``, once it is there, has an entry per node, and none is infinite."""
        if given is None or len(given) != len(tree):
            got = "none" if given is None else len(given)
            raise ValueError(f"search.draw {self.draw!r} needs {name} of all {len(tree)} nodes of the tree, got {got}")
        for node, number in enumerate(given):
            if math.isinf(number):
                raise ValueError(f"search.draw {self.draw!r} needs finite {name}, node {node} has {number}")
        return given

    def prune(self, tree: Tree, rng: random.Random) -> None:
        """Keep ``keep_leaves`` random leaves of a grown tree: sets ``tree.kept_leaves`` where leaves go."""
        leaves = tree.training_leaves()
        if self.keep_leaves is not None and len(leaves) > self.keep_leaves:
            tree.kept_leaves = sorted(rng.sample(leaves, self.keep_leaves))
