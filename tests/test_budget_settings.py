import math

import pytest
from jsonargparse import ArgumentParser

from lit_treerl.trees.budget import Budget, Outlook, TaskBelief
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from lit_treerl.trees.task import Task

TWO = [Task("a", "test", "?"), Task("b", "test", "?")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least": 0}, "budget.least must be at least 1.*got 0"),
        ({"most": 0.9}, "budget.most must be at least 1.*got 0.9"),
        ({"most": math.nan}, "budget.most .*got nan"),
        ({"most": math.inf}, "budget.most .*got inf"),
        ({"uniform_share": 1.1}, r"budget.uniform_share must be in \[0, 1\], got 1.1"),
        ({"uniform_share": math.nan}, "budget.uniform_share"),
        ({"prior_weight": -1}, "budget.prior_weight must be at least 0, got -1"),
        ({"epsilon": -0.1}, "budget.epsilon must be at least 0, got -0.1"),
        ({"epsilon": math.inf}, "budget.epsilon"),
        ({"sharpness": 0}, "budget.sharpness must be above 0, got 0"),
        ({"spread": "iqr"}, "budget.spread must be 'bernoulli' or 'variance', got 'iqr'"),
        ({"unit": "turns"}, "budget.unit must be 'rollouts' or 'tokens', got 'turns'"),
        ({"reward_range": (1.0, 1.0)}, r"budget.reward_range .*got \(1.0, 1.0\)"),
        ({"reward_range": (0.0, math.inf)}, "budget.reward_range"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        CriticGuidedBudget(**settings)


def test_impossible_calls_are_named():
    with pytest.raises(ValueError, match=r"budget\.least is 3, more than the 2 of search\.trees"):
        CriticGuidedBudget(least=3).allocate(TWO, 2)
    with pytest.raises(ValueError, match="outlook of 1 tasks for 2"):
        CriticGuidedBudget().allocate(TWO, 2, Outlook([TaskBelief()]))
    assert CriticGuidedBudget().allocate([], 2, Outlook([], 0.5)) == []
    for belief, message in (
        ({"value": math.nan}, "TaskBelief.value must be finite, got nan"),
        ({"mean": math.inf}, "TaskBelief.mean must be finite"),
        ({"count": -1}, "TaskBelief.count must be at least 0, got -1"),
        ({"tokens": 0}, "TaskBelief.tokens must be above 0, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            TaskBelief(**belief)


def test_the_command_line_builds_it():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Budget, "budget")
    args = ["--budget=CriticGuidedBudget", "--budget.least=2", "--budget.unit=tokens", "--budget.reward_range=[-1,1]"]
    budget = parser.instantiate(parser.parse_args(args)).budget
    assert isinstance(budget, CriticGuidedBudget)
    assert (budget.least, budget.unit, budget.reward_range, budget.most) == (2, "tokens", (-1.0, 1.0), 4.0)
