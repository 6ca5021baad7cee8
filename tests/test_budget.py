import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.trees.budget import Outlook, TaskBelief, UniformBudget
from lit_treerl.trees.critic_guided import CriticGuidedBudget
from lit_treerl.trees.difficulty import by_difficulty
from lit_treerl.trees.task import Task

P = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
BELIEF = st.builds(
    TaskBelief,
    count=st.one_of(st.just(0.0), st.floats(0.1, 40)),
    mean=st.floats(-0.2, 1),
    variance=st.none() | st.floats(0, 0.3),
    value=st.none() | st.floats(-0.5, 1.5),
    tokens=st.none() | st.floats(1, 900),
)
SETTINGS = st.fixed_dictionaries(
    {
        "most": st.floats(1, 6),
        "uniform_share": st.floats(0, 0.9),
        "prior_weight": st.floats(0, 5),
        "epsilon": st.floats(0, 0.2),
        "sharpness": st.floats(0.5, 4),
        "spread": st.sampled_from(["bernoulli", "variance"]),
    }
)


def named(count: int) -> list[Task]:
    return [Task(f"task-{i}", "test", "?") for i in range(count)]


def valued(p: list[float], **common) -> Outlook:
    """What a trusted critic says."""
    return Outlook([TaskBelief(value=value, **common) for value in p], explained_variance=0.5)


def test_uniform_budget_ignores_what_is_believed():
    assert UniformBudget().allocate(named(3), 4) == [4, 4, 4]
    assert UniformBudget().allocate(named(2), 4, valued([0.0, 0.5])) == [4, 4]
    assert UniformBudget().allocate([], 4) == []
    assert (UniformBudget.uses_outlook, CriticGuidedBudget.uses_outlook) == (False, True)


def test_hand_computed_allocation():
    # weights .5, .4, .3, 0: 12 above the floor are 5, 4, 3, 0
    budget = CriticGuidedBudget(uniform_share=0, epsilon=0)
    assert budget.allocate(named(4), 4, valued([0.5, 0.2, 0.9, 1.0])) == [6, 5, 4, 1]
    assert budget.predicted == [0.5, 0.2, 0.9, 1.0]
    # half of the 12 evenly: 1.5 + 2.5, 1.5 + 2, 1.5 + 1.5, 1.5 -> 4, 3.5, 3, 1.5, one of the two halves up
    half = CriticGuidedBudget(uniform_share=0.5, epsilon=0).allocate(named(4), 4, valued([0.5, 0.2, 0.9, 1.0]))
    assert half in ([5, 5, 4, 2], [5, 4, 4, 3])
    # epsilon .1 of weights .6, .1: 6 above the floor are 5.14, .86
    assert CriticGuidedBudget(uniform_share=0, epsilon=0.1).allocate(named(2), 4, valued([0.5, 0.0])) == [6, 2]
    # sharpness 2 of weights .25, .16, .09, 0: 6, 3.84, 2.16
    sharp = CriticGuidedBudget(uniform_share=0, epsilon=0, sharpness=2)
    assert sharp.allocate(named(4), 4, valued([0.5, 0.2, 0.9, 1.0])) == [7, 5, 3, 1]
    # the weight of p = 1/2 stays 1/2, so that epsilon keeps its meaning: 6 above the floor as .6 to .1
    even = CriticGuidedBudget(uniform_share=0, epsilon=0.1, sharpness=8)
    assert even.allocate(named(2), 4, valued([0.5, 0.0])) == [6, 2]


def test_history_and_critic_are_weighed():
    beliefs = [TaskBelief(count=6, mean=0.5, value=0.9), TaskBelief(count=0, mean=0.4, value=-3.0)]
    budget = CriticGuidedBudget()
    budget.allocate(named(2), 4, Outlook(beliefs, 0.0))
    assert budget.predicted == [pytest.approx(0.6), 0.0]
    budget = CriticGuidedBudget(reward_range=(-1, 1), prior_weight=6)
    budget.allocate(named(2), 4, Outlook(beliefs, 0.0))
    assert budget.predicted == [pytest.approx(0.85), 0.0]


def test_without_a_critic_histories_are_shrunk_towards_their_common_mean():
    beliefs = [TaskBelief(count=3, mean=1.0), TaskBelief(count=1, mean=0.2), TaskBelief(mean=0.9)]
    budget = CriticGuidedBudget()
    budget.allocate(named(3), 4, Outlook(beliefs))
    assert budget.predicted is not None
    assert budget.predicted[:2] == pytest.approx([(3 + 2 * 0.8) / 5, (0.2 + 2 * 0.8) / 3])
    assert math.isnan(budget.predicted[2])
    assert sum(row.tasks for row in by_difficulty([1, 2, 3], budget.predicted)) == 2


def test_an_unknown_task_takes_the_mean_weight():
    # weights .5, 0 and their mean .25: 9 above the floor are 6, 0, 3
    budget = CriticGuidedBudget(uniform_share=0, epsilon=0)
    outlook = Outlook([TaskBelief(value=0.5), TaskBelief(value=1.0), TaskBelief()], 0.2)
    assert budget.allocate(named(3), 4, outlook) == [7, 1, 4]


def test_the_variance_replaces_bernoullis():
    beliefs = [TaskBelief(count=1e9, mean=0.5, variance=v, value=0.5) for v in (0.16, 0.04)]
    settings = {"uniform_share": 0, "epsilon": 0}
    assert CriticGuidedBudget(**settings).allocate(named(2), 4, Outlook(beliefs, 0.2)) == [4, 4]
    assert CriticGuidedBudget(**settings, spread="variance").allocate(named(2), 4, Outlook(beliefs, 0.2)) == [5, 3]


@pytest.mark.parametrize(
    "outlook",
    [
        None,
        Outlook([TaskBelief(), TaskBelief()], 0.9),
        Outlook([TaskBelief(count=9, mean=0.5, value=0.5), TaskBelief(value=0.0)], -1e-6),
        Outlook([TaskBelief(count=9, mean=0.5, value=0.5), TaskBelief(value=0.0)], -math.inf),
        Outlook([TaskBelief(value=0.5), TaskBelief(value=0.0)], None),
        Outlook([TaskBelief(value=0.5), TaskBelief(value=0.0)], math.nan),
    ],
)
@pytest.mark.parametrize("unit", ["rollouts", "tokens"])
def test_falls_back_to_uniform(outlook, unit):
    budget = CriticGuidedBudget(unit=unit)
    budget.allocate(named(2), 4, valued([0.5, 0.0]))
    assert budget.predicted == [0.5, 0.0]
    assert budget.allocate(named(2), 4, outlook) == [4, 4]
    assert budget.predicted is None


def test_an_unmeasured_critic_is_not_asked():
    budget = CriticGuidedBudget()
    beliefs = [TaskBelief(count=8, mean=0.5, value=0.0), TaskBelief(count=8, mean=0.5, value=1.0)]
    budget.allocate(named(2), 4, Outlook(beliefs, None))
    assert budget.predicted == [0.5, 0.5]
    budget.allocate(named(2), 4, Outlook(beliefs, 0.0))
    assert budget.predicted == [0.4, 0.6]


def test_range_from_the_floor_to_the_cap():
    # 6 of the 72 above the floor stay uniform, 1/4 each; of the 66 others two tasks would get 66 * .52 / 1.48 = 23
    # each, and are cut; without uniform share and cap they get 1 + 72 * .52 / 1.48 = 26.3, the others 1.97
    p = [0.5, *[0.0, 1.0] * 11, 0.5 - 1e-12]
    counts = CriticGuidedBudget(uniform_share=1 / 12).allocate(named(24), 4, valued(p))
    assert counts[0] == counts[-1] == 16  # the cap: 4 times the mean
    assert sum(counts) == 96
    assert set(counts[1:-1]) <= {2, 3, 4}
    uncut = CriticGuidedBudget(uniform_share=0, most=24.0).allocate(named(24), 4, valued(p))
    assert uncut == [26, *[2] * 22, 26]
    tenth = CriticGuidedBudget(uniform_share=0, most=1.1).allocate(named(3), 10, valued([0.5, 0.5, 0.0]))
    assert tenth == [11, 11, 8]  # 1.1 * 10 is above 11 in floating point
    mixed = CriticGuidedBudget().allocate(named(12), 4, valued([0.5] * 4 + [0.0] * 4 + [1.0] * 4))
    # .15 * 36 / 12 = .45, then 30.6 * .52 / 2.24 = 7.10 and 30.6 * .02 / 2.24 = .27: 1 + 7.55 and 1 + .72
    assert mixed[:4].count(9) + mixed[:4].count(8) == 4
    assert set(mixed[4:]) <= {1, 2}


@given(st.lists(BELIEF, min_size=1, max_size=14), st.integers(1, 6), st.integers(1, 6), SETTINGS)
def test_total_is_exact_and_bounds_hold(beliefs, least, above, settings):
    trees = least + above - 1
    counts = CriticGuidedBudget(least=least, **settings).allocate(named(len(beliefs)), trees, Outlook(beliefs, 0.1))
    assert sum(counts) == len(beliefs) * trees
    assert min(counts) >= least
    assert max(counts) <= math.ceil(settings["most"] * trees)


@given(st.lists(P, min_size=2, max_size=14), st.integers(1, 6), SETTINGS)
def test_order_follows_p_times_one_minus_p(p, trees, settings):
    counts = CriticGuidedBudget(**settings).allocate(named(len(p)), trees, valued(p))
    spreads = [math.sqrt(q * (1 - q)) for q in p]
    for a, first in zip(spreads, counts, strict=True):
        assert all(first >= second for b, second in zip(spreads, counts, strict=True) if a > b + 1e-3)


@given(st.lists(BELIEF, min_size=2, max_size=14), st.integers(1, 5), SETTINGS, st.booleans(), st.randoms())
def test_permuting_the_tasks_permutes_the_allocation(beliefs, trees, settings, by_tokens, rng: random.Random):
    budget = CriticGuidedBudget(**settings, unit="tokens" if by_tokens else "rollouts")
    tasks, order = named(len(beliefs)), list(range(len(beliefs)))
    rng.shuffle(order)
    counts = budget.allocate(tasks, trees, Outlook(beliefs, 0.1))
    again = budget.allocate([tasks[i] for i in order], trees, Outlook([beliefs[i] for i in order], 0.1))
    assert again == [counts[i] for i in order]


def test_no_task_wins_every_tie():
    won = set()
    for other in range(40):  # one of 3 trees above the floor goes to either
        tasks = [Task("a", "test", "?"), Task("b", "test", "?"), Task(f"c{other}", "test", "?")]
        counts = CriticGuidedBudget(uniform_share=0, epsilon=0).allocate(tasks, 2, valued([0.5, 0.5, 0.0]))
        assert counts in ([3, 2, 1], [2, 3, 1])
        won.add(tuple(counts[:2]))
    assert won == {(3, 2), (2, 3)}


def test_twins_differ_by_one_tree_and_the_earlier_has_it():
    twins = [Task("a", "test", "?"), Task("a", "test", "?"), Task("b", "test", "?")]
    assert CriticGuidedBudget(uniform_share=0, epsilon=0).allocate(twins, 2, valued([0.5, 0.5, 0.0])) == [3, 2, 1]


@given(st.lists(BELIEF, min_size=1, max_size=14), st.integers(1, 6), st.sampled_from(["rollouts", "tokens"]))
def test_an_all_uniform_share_is_uniform(beliefs, trees, unit):
    budget = CriticGuidedBudget(uniform_share=1, unit=unit)
    assert budget.allocate(named(len(beliefs)), trees, Outlook(beliefs, 0.1)) == [trees] * len(beliefs)


@given(P, st.integers(1, 9), st.integers(1, 6), SETTINGS, st.sampled_from(["rollouts", "tokens"]))
def test_equal_tasks_get_equal_numbers(p, size, trees, settings, unit):
    outlook = valued([p] * size, tokens=37.0)
    assert CriticGuidedBudget(**settings, unit=unit).allocate(named(size), trees, outlook) == [trees] * size


@given(
    st.lists(st.tuples(P, st.floats(0.5, 2000)), min_size=1, max_size=14),
    st.integers(1, 3),
    st.integers(1, 5),
    SETTINGS,
)
def test_expected_tokens_are_never_overspent(rows, least, above, settings):
    trees, costs = least + above - 1, [Fraction(tokens) for _, tokens in rows]
    outlook = Outlook([TaskBelief(value=p, tokens=tokens) for p, tokens in rows], 0.1)
    budget = CriticGuidedBudget(least=least, unit="tokens", **settings)
    counts = budget.allocate(named(len(rows)), trees, outlook)
    cap = math.ceil(settings["most"] * trees - 1e-9)
    rest = trees * sum(costs) - sum(n * cost for n, cost in zip(counts, costs, strict=True))
    assert rest >= 0
    assert all(least <= n <= cap for n in counts)
    assert all(rest < cost for n, cost in zip(counts, costs, strict=True) if n < cap)


def test_tokens_go_by_spread_over_the_root_of_their_cost():
    # equal spreads at 1 and 4 tokens: weights 2 : 1, averages 4 2 | 4/3 2/3 | 4/5; limit 3 * 5 = 15, floors 5.
    # 10 left: a 9, b 5, a 4, then a (.8) before b (2/3): 3; b is too dear; a 2, 1, 0
    budget = CriticGuidedBudget(uniform_share=0, epsilon=0, unit="tokens")
    outlook = Outlook([TaskBelief(value=0.5, tokens=1), TaskBelief(value=0.5, tokens=4)], 0.1)
    assert budget.allocate(named(2), 3, outlook) == [7, 2]
    # a task without an expectation costs the mean of the others, all cost 1 where nobody has one
    outlook = Outlook([TaskBelief(value=0.5, tokens=2), TaskBelief(value=0.0), TaskBelief(value=0.5, tokens=4)], 0.1)
    # weights .35, 0, .25; limit 2 * 9, floors 9, 9 left at 2, 3, 4: a 7 (.71), c 3 (.5), a 1 (.24)
    assert budget.allocate(named(3), 2, outlook) == [3, 1, 2]
    assert budget.allocate(named(3), 3, valued([0.5, 0.0, 1.0])) == [7, 1, 1]
