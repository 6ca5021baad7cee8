import pytest

from lit_treerl.schedules import ScheduleConfig, schedule_factor


@pytest.mark.parametrize(
    ("config", "factors"),
    [
        (ScheduleConfig(), [1, 1, 1, 1, 1, 1]),
        (ScheduleConfig(warmup_steps=4), [0.25, 0.5, 0.75, 1, 1, 1]),
        (ScheduleConfig(decay="linear", decay_steps=4), [1, 0.75, 0.5, 0.25, 0, 0]),
        (ScheduleConfig(decay="cosine", decay_steps=4), [1, 0.8535534, 0.5, 0.1464466, 0, 0]),
        (ScheduleConfig(warmup_steps=2, decay="linear", decay_steps=4), [0.5, 1, 1, 0.5, 0, 0]),
    ],
)
def test_factors(config, factors):
    assert [schedule_factor(step, config) for step in range(6)] == pytest.approx(factors)


@pytest.mark.parametrize("steps", [None, 0, 3])
def test_a_decay_needs_an_end_after_the_warmup(steps):
    with pytest.raises(
        ValueError, match=f"decay 'linear' needs schedule.decay_steps above warmup_steps .3., got {steps}"
    ):
        ScheduleConfig(warmup_steps=3, decay="linear", decay_steps=steps)
