"""The advantage estimator contract: trees, and what is believed of their states, in; credit out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from lit_treerl.trees.tree import RolloutGroup


@dataclass(frozen=True)
class Beliefs:
    """What critic and value tree say of the states in ONE tree; what nobody was asked for is None.

    The state of a node is the situation after its observation, in which the next action is chosen.

    Attributes:
        value: [nodes] float64, the critic's value of each node's state; 0 where the episode ends there.
        token_value: per node, float64 [max(action_len - 1, 0)], the critic's value before each action token but the
            first (which is the parent's ``value``); for token-level methods.
        mean: [nodes] float64, the value tree's shrunken mean return-to-go of each node's state, this iteration's
            episodes included.
        trust: [nodes] float64 in [0, 1), the value tree's trust n / (n + k) in ``mean``.
        count: [nodes] float64, the n of it: the decayed number of samples behind ``mean``.
        prior: the value tree's mean return of the task from EARLIER iterations; where it never met the task, of all
            tasks (nan where it has met none).
        others: for each training leaf, (n, mean return-to-go) of the states on its path, root first, in the value tree
            without that leaf's own episode.
    """

    value: Tensor | None = None
    token_value: list[Tensor] | None = None
    mean: Tensor | None = None
    trust: Tensor | None = None
    count: Tensor | None = None
    prior: float | None = None
    others: list[list[tuple[float, float]]] | None = None


@dataclass(frozen=True)
class Credit:
    """What the steps of one tree earned.

    Attributes:
        leaves: [L] the tree's training leaves, as node indices.
        advantage: [nodes, L] float64, advantage of a node's action as seen from the episode that ends in each
            leaf; 0 where the node is not on the leaf's path.
        token_advantage: per node, float64 [action_len], where tokens of one action differ (token-level methods);
            ``advantage`` then holds their mean.
        target: [nodes] float64, what the critic should say of each node's state; nan where it has nothing to learn.
        target_weight: [nodes] float64, how much each of them counts; 0 with a nan.
        token_target: per node, float64 [max(action_len - 1, 0)], targets of ``Beliefs.token_value``, of weight 1; nan
            where there is nothing to learn.
    """

    leaves: list[int]
    advantage: Tensor
    token_advantage: list[Tensor] | None = None
    target: Tensor | None = None
    target_weight: Tensor | None = None
    token_target: list[Tensor] | None = None


class AdvantageEstimator(ABC):
    """Turns the groups of one iteration into credit.

    Attributes:
        uses_critic: needs ``Beliefs.value``.
        uses_value_tree: needs ``Beliefs.mean``, ``trust``, ``count`` and ``prior``.
        value_tree_optional: does without where there is no value tree, ``uses_value_tree`` being switched off then.
        uses_others: needs ``Beliefs.others``.
        token_level: needs ``Beliefs.token_value``.
    """

    uses_critic: bool = False
    uses_value_tree: bool = False
    value_tree_optional: bool = False
    uses_others: bool = False
    token_level: bool = False

    @abstractmethod
    def __call__(
        self, groups: Sequence[RolloutGroup], beliefs: Sequence[Sequence[Beliefs]] | None = None
    ) -> list[list[Credit]]:
        """Return one :class:`Credit` per tree, nested as ``groups`` and their trees are.

        Args:
            groups: the iteration's trees.
            beliefs: one per tree, nested likewise; estimators that need none ignore them.

        Raises:
            ValueError: naming the task, where a return is not finite.
        """

    def state_dict(self) -> dict[str, float]:
        """What must outlive a restart, as plain floats; nothing for most estimators."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take over what :meth:`state_dict` gave."""
