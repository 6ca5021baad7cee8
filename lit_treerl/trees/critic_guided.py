"""The critic-guided budget: more trees where the outcome is least certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import fmean
from typing import Literal

from lit_treerl.trees.apportion import highest_averages, largest_remainder
from lit_treerl.trees.budget import Budget, Outlook, TaskBelief
from lit_treerl.trees.difficulty import Spread, predicted_success, return_spread
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Task


class CriticGuidedBudget(Budget):
    """Shares trees out by the spread of the return that critic and value tree predict: a reconstruction of TreePPO's.

    Only the abstract of TreePPO is public: the critic's estimate of a task's difficulty allocates the rollouts, more
    of them to moderately difficult tasks. The formulas are ours. A task's weight is (2 s)^sharpness / 2 + epsilon with
    the spread s = sqrt(p (1 - p)) and p of :func:`~lit_treerl.trees.difficulty.predicted_success`. Every task has the
    floor, ``uniform_share`` of the rest stays uniform, and the others follow the weights up to the cap, in whole
    trees of exactly the given total. A task of which nothing is known takes the mean weight of those known. Where the
    value tree knows a task and there is no critic to ask, the mean return of all the iteration's known episodes
    stands in for the critic's value.

    The allocation is uniform (and ``predicted`` None) while

    - there is no outlook, or nothing is known of any task;
    - the critic's explained variance is below 0: it predicts worse than a constant;
    - the explained variance is unknown (None, nan) and the value tree knows none of the tasks. With an unknown
      explained variance the critic's values are left out and the value tree guides alone.

    Equal remainders are rounded by a hash of the task's id and of the iteration's ids, so that the order of the tasks
    does not matter and no task wins every tie. Between two tasks of the same id and weight the earlier one wins.

    ``unit: tokens`` keeps the expected sampled tokens of the uniform allocation, ``trees_per_task`` times the sum of
    the tasks' expected tokens, instead of the number of trees, and divides the weight by sqrt(tokens), as the
    allocation of least variance under unequal costs does (Cochran, Sampling Techniques, section 5.5). It never goes
    above the limit, and what is left pays for no further tree below the cap. Expected tokens that are unknown are
    taken to be the mean of the known ones.

    Args:
        least: trees that every task gets; at most ``search.trees``.
        most: cap of a task's trees, as a multiple of the mean: ceil(most * search.trees).
        uniform_share: share of what is above the floor that is shared out evenly, for exploration.
        prior_weight: k, episodes that the critic's value counts for beside those of the value tree.
        epsilon: added to every spread, so that no task is certain for good.
        sharpness: 1 gives the least total variance of the tasks' means. sqrt(p (1 - p)) is flat in the middle,
            though, 0.4 at p = 0.2 and 0.5 at the top; 2, for p (1 - p), and more widen the range.
        spread: ``bernoulli``, sqrt(p (1 - p)), for rewards that are all or nothing, or ``variance``, from the value
            tree's variance of the return.
        unit: what the budget counts, ``rollouts`` or expected ``tokens``.
        reward_range: returns that mean failure and success.

    Attributes:
        predicted: p of each task in the last call, nan where nothing is known of it; None after a uniform one.

    Raises:
        ValueError: where a setting is out of range.
    """

    uses_outlook = True

    def __init__(
        self,
        least: int = 1,
        most: float = 4.0,
        uniform_share: float = 0.15,
        prior_weight: float = 2.0,
        epsilon: float = 0.02,
        sharpness: float = 1.0,
        spread: Spread = "bernoulli",
        unit: Literal["rollouts", "tokens"] = "rollouts",
        reward_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.least, self.most, self.uniform_share = least, most, uniform_share
        self.prior_weight, self.epsilon, self.sharpness = prior_weight, epsilon, sharpness
        self.spread: Spread = spread
        self.unit, self.reward_range = unit, reward_range
        self.predicted: list[float] | None = None
        self._check_settings()

    def allocate(self, tasks: Sequence[Task], trees_per_task: int, outlook: Outlook | None = None) -> list[int]:
        """Trees for each task; see the class for their total.

        Raises:
            ValueError: where the floor is above the mean, or the outlook is of another number of tasks.
        """
        if self.least > trees_per_task:
            raise ValueError(f"budget.least is {self.least}, more than the {trees_per_task} of search.trees")
        if outlook is not None and len(outlook.tasks) != len(tasks):
            raise ValueError(f"an outlook of {len(outlook.tasks)} tasks for {len(tasks)} tasks")
        self.predicted = self._predict(outlook) if outlook else None
        if outlook is None or self.predicted is None:
            return [trees_per_task] * len(tasks)
        most, ties = math.ceil(self.most * trees_per_task - 1e-9), tie_breaks(tasks)
        weights = self._weights(outlook.tasks, self.predicted)
        if self.unit == "rollouts":
            return largest_remainder(self._mixed(weights), len(tasks) * trees_per_task, self.least, most, ties)
        costs = expected_tokens(outlook.tasks)
        limit = trees_per_task * sum(map(Fraction, costs), Fraction(0))
        weights = [weight / math.sqrt(cost) for weight, cost in zip(weights, costs, strict=True)]
        return highest_averages(self._mixed(weights), costs, limit, self.least, most, ties)

    def _predict(self, outlook: Outlook) -> list[float] | None:
        beliefs, measured = outlook.tasks, outlook.explained_variance
        if measured is None or math.isnan(measured):
            beliefs = [replace(belief, value=None) for belief in beliefs]
        elif measured < 0:
            return None
        episodes = math.fsum(belief.count for belief in beliefs)
        mean = math.fsum(belief.count * belief.mean for belief in beliefs) / episodes if episodes else None
        found = [predicted_success(belief, self.prior_weight, self.reward_range, mean) for belief in beliefs]
        return None if all(p is None for p in found) else [math.nan if p is None else p for p in found]

    def _weights(self, beliefs: Sequence[TaskBelief], predicted: Sequence[float]) -> list[float]:
        """(2 spread) ** sharpness / 2 + epsilon of each task, the mean of the known ones where p is nan."""

        def weight(belief: TaskBelief, p: float) -> float:
            spread = return_spread(belief, p, self.prior_weight, self.reward_range, self.spread)
            return 0.5 * (2 * spread) ** self.sharpness + self.epsilon

        known = [None if math.isnan(p) else weight(belief, p) for belief, p in zip(beliefs, predicted, strict=True)]
        mean = fmean(found for found in known if found is not None)
        return [mean if found is None else found for found in known]

    def _mixed(self, weights: Sequence[float]) -> list[float]:
        """Shares of the weights, mixed with the uniform share."""
        whole, even = math.fsum(weights), 1 / len(weights)
        shares = [weight / whole if whole else even for weight in weights]
        return [self.uniform_share * even + (1 - self.uniform_share) * share for share in shares]

    def _check_settings(self) -> None:
        low, high = self.reward_range
        for name, good, right in (
            ("least", self.least >= 1, "at least 1: a task without a tree teaches nothing"),
            ("most", 1 <= self.most < math.inf, "at least 1, a multiple of the mean"),
            ("uniform_share", 0 <= self.uniform_share <= 1, "in [0, 1]"),
            ("prior_weight", 0 <= self.prior_weight < math.inf, "at least 0"),
            ("epsilon", 0 <= self.epsilon < math.inf, "at least 0"),
            ("sharpness", 0 < self.sharpness < math.inf, "above 0"),
            ("spread", self.spread in ("bernoulli", "variance"), "'bernoulli' or 'variance'"),
            ("unit", self.unit in ("rollouts", "tokens"), "'rollouts' or 'tokens'"),
            ("reward_range", -math.inf < low < high < math.inf, "two finite numbers, failure below success"),
        ):
            if not good:
                raise ValueError(f"budget.{name} must be {right}, got {getattr(self, name)!r}")


def tie_breaks(tasks: Sequence[Task]) -> list[int]:
    """A key for each task that depends on its id and on which tasks there are, not on their order."""
    occasion = derive_seed("ties", *sorted(task.id for task in tasks))
    return [derive_seed(occasion, task.id) for task in tasks]


def expected_tokens(beliefs: Sequence[TaskBelief]) -> list[float]:
    """Expected tokens of a rollout of each task; the mean of the known ones where unknown, 1 where all are."""
    known = [belief.tokens for belief in beliefs if belief.tokens is not None]
    mean = fmean(known) if known else 1.0
    return [mean if belief.tokens is None else belief.tokens for belief in beliefs]
