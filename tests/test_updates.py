"""From trees to the packs of optimizer steps."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.algorithms.grpo import GRPO
from lit_treerl.algorithms.losses import LossConfig
from lit_treerl.update_stats import UpdateStats
from lit_treerl.updates import UpdateConfig, mini_batches, plan_packs
from tree_cases import chain_tree, group

GROUPS = [group(chain_tree(0.0, 1.0, task_id=str(i)), task_id=str(i)) for i in range(5)]
SILENT = group(chain_tree(1.0, 1.0, task_id="s"), task_id="s")


def plan(groups, seed=0, loss=LossConfig(), **settings):
    return plan_packs(groups, GRPO(normalisation="none")(groups), UpdateConfig(**settings), loss, random.Random(seed))


@given(st.lists(st.integers(), max_size=20), st.integers(1, 9))
def test_mini_batches_part_the_order_evenly(order, count):
    runs = mini_batches(order, count)
    assert [x for run in runs for x in run] == order
    assert len(runs) == min(count, len(order))
    sizes = [len(run) for run in runs]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_every_pass_takes_every_task_once_in_a_new_order():
    packs = plan(GROUPS, mini_batches=2, inner_epochs=3)
    assert [len(pack) for pack in packs] == [12, 8] * 3  # 3 and 2 tasks of 4 unique tokens
    assert all(pack.step_end for pack in packs)
    assert all(float(pack.weight.sum()) == pytest.approx(1.0) for pack in packs)  # each step is normalised by itself


def test_each_step_weighs_its_tokens_alike_whatever_its_packs():
    whole, split = plan(GROUPS, mini_batches=1), plan(GROUPS, mini_batches=1, max_tokens_per_pack=4)
    assert (len(whole), len(split)) == (1, 5)
    assert [pack.step_end for pack in split] == [False] * 4 + [True]
    assert torch.equal(whole[0].weight, torch.cat([pack.weight for pack in split]))
    assert sorted(whole[0].weight.tolist()) == pytest.approx([0.0] * 10 + [0.1] * 10)


def test_silent_tasks_are_left_out_of_the_forward_only_where_that_is_exact():
    kept = plan([*GROUPS, SILENT], mini_batches=1)
    assert len(kept[0]) == 20
    assert float(kept[0].weight.sum()) == pytest.approx(10 / 12)  # but count in the average
    dropped = plan([*GROUPS, SILENT], mini_batches=1, zero_signal_groups="drop")
    assert float(dropped[0].weight.sum()) == pytest.approx(1.0)
    with_kl = plan([*GROUPS, SILENT], mini_batches=1, loss=LossConfig(kl_coef=0.1))
    assert len(with_kl[0]) == 24


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mini_batches": 0}, "model.update.mini_batches must be at least 1, got 0"),
        ({"inner_epochs": 0}, "model.update.inner_epochs must be at least 1"),
        ({"max_tokens_per_pack": 0}, "model.update.max_tokens_per_pack must be at least 1"),
        ({"aggregation": "fixed_length"}, "model.update.fixed_length goes with aggregation 'fixed_length'"),
        ({"fixed_length": 9}, "model.update.fixed_length goes with aggregation 'fixed_length'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        UpdateConfig(**settings)


def sums(tokens: float, entropy: float, gap_max: float) -> dict[str, torch.Tensor]:
    values = {"tokens": tokens, "entropy": entropy, "sampler_gap_max": gap_max}
    return {name: torch.tensor(value) for name, value in values.items()}


def test_update_stats_weigh_packs_by_their_tokens_and_steps_alike():
    stats = UpdateStats()
    stats.begin(zero_signal_groups=3)
    stats.actor.add(torch.tensor(1.0), sums(10, 20.0, 0.5))
    stats.actor.add(torch.tensor(2.0), sums(30, 10.0, 0.2))
    stats.actor.add_step(4.0)
    stats.actor.add(torch.tensor(-1.0), sums(10, 20.0, 0.1))
    stats.actor.add_step(2.0)
    values = stats.values()
    assert values["train/entropy"] == pytest.approx(50 / 50)
    assert values["train/sampler_gap_max"] == pytest.approx(0.5)
    assert values["train/loss_actor"] == pytest.approx((3.0 - 1.0) / 2)  # losses of a step's packs add
    assert values["train/grad_norm_actor"] == pytest.approx(3.0)
    assert values["rollout/zero_signal_groups"] == 3
    assert values["train/kl"] == 0.0  # no reference, no divergence measured
    stats.begin()
    assert stats.values()["train/loss_actor"] == 0.0
    assert stats.values()["rollout/zero_signal_groups"] == 0


def test_a_skipped_step_is_counted_and_kept_out_of_the_mean_norm():
    stats = UpdateStats()
    for norm in (1.0, None, 3.0):
        stats.actor.add(torch.tensor(0.5), sums(1, 1.0, 0.0))
        stats.actor.add_step(norm)
    values = stats.values()
    assert (values["train/skipped_steps"], values["train/grad_norm_actor"]) == (1, 2.0)
    stats.critic.add_step(None)
    assert stats.values()["train/skipped_steps"] == 2  # of actor and critic together


def test_the_critics_steps_are_counted_apart():
    stats = UpdateStats()
    stats.actor.add(torch.tensor(5.0), sums(1, 1.0, 0.0))
    stats.actor.add_step(7.0)
    assert stats.critic_values() == {"train/loss_critic": 0.0, "train/grad_norm_critic": 0.0, "train/value_mean": 0.0}
    for loss, tokens, value in ((0.5, 1.0, 0.2), (0.25, 3.0, 1.8)):
        stats.critic.add(torch.tensor(loss), {"tokens": torch.tensor(tokens), "value": torch.tensor(value)})
    stats.critic.add_step(3.0)
    found = stats.critic_values()
    assert found["train/loss_critic"] == pytest.approx(0.75)
    assert found["train/grad_norm_critic"] == 3.0
    assert found["train/value_mean"] == pytest.approx(2.0 / 4)  # over all values, not over packs
    assert stats.values()["train/loss_actor"] == 5.0
    stats.begin()
    assert stats.critic_values()["train/loss_critic"] == 0.0
