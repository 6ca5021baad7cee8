import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.algorithms.estimates import clipped, kl_k3, mean_metrics, probability_ratio
from lit_treerl.algorithms.losses import (
    LossConfig,
    clipped_surrogate,
    importance_weights,
    policy_loss,
    supervised_loss,
)
from lit_treerl.modeling.pack import Pack

PLAIN = LossConfig(importance_cap=None)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def surrogate(ratio: float, positive: float = 0.0, negative: float = 0.0, **settings) -> tuple[float, float]:
    """Value, and gradient by the log-prob, of one token's objective."""
    new = f64(math.log(ratio)).requires_grad_()
    value = clipped_surrogate(new, f64(0), f64(positive), f64(negative), **settings).sum()
    value.backward()
    assert new.grad is not None
    return float(value.detach()), float(new.grad)


@pytest.mark.parametrize(
    ("ratio", "positive", "negative", "value", "gradient"),
    [
        (1.1, 2, 0, 2.2, 2.2),  # inside
        (1.5, 2, 0, 2.6, 0),  # clipped at 1.3
        (0.2, 2, 0, 0.4, 0.4),  # falling is never clipped where the advantage is positive
        (0.9, 0, -2, -1.8, -1.8),
        (0.5, 0, -2, -1.6, 0),  # clipped at 0.8
        (2.0, 0, -2, -4.0, -4.0),
        (5.0, 0, -2, -6.0, 0),  # dual clip at 3
        (1.5, 2, -1, 2.6 - 1.5, -1.5),  # leaves that disagree
    ],
)
def test_clipped_surrogate_by_hand(ratio, positive, negative, value, gradient):
    found = surrogate(ratio, positive, negative, clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    assert found == pytest.approx((value, gradient))


def test_without_dual_clip_the_ratio_is_open_above():
    assert surrogate(5.0, 0, -2, dual_clip=None) == pytest.approx((-10, -10))


def test_importance_weights_multiply_and_are_capped_and_detached():
    old, sampler = f64(-1.0, -1.0).requires_grad_(), f64(-1.0 - math.log(1.5), -9.0)
    weights = importance_weights(old, sampler, cap=2.0)
    assert weights.tolist() == pytest.approx([1.5, 2.0])
    assert not weights.requires_grad
    assert surrogate(1.1, 2, 0, importance=f64(1.5)) == pytest.approx((3.3, 3.3))


@given(
    st.floats(-3, 3),
    st.lists(st.floats(-2, 2), min_size=1, max_size=6),
    st.floats(0.05, 0.9),
    st.floats(0.05, 0.9),
    st.one_of(st.none(), st.floats(1.1, 5)),
)
def test_one_pair_of_numbers_equals_the_sum_over_leaves(log_ratio, advantages, low, high, dual):
    r = math.exp(log_ratio)
    expected = 0.0
    for a in advantages:  # PPO as written in the papers, leaf by leaf
        value = min(r * a, max(min(r, 1 + high), 1 - low) * a)
        expected += max(value, dual * a) if dual is not None and a < 0 else value
    pair = sum(a for a in advantages if a > 0), sum(a for a in advantages if a < 0)
    found = surrogate(r, *pair, clip_low=low, clip_high=high, dual_clip=dual)[0]
    assert found == pytest.approx(expected, abs=1e-9)


def test_log_ratios_are_clamped():
    ratio = probability_ratio(f64(0, -900), f64(-900, 0))
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    assert float(kl_k3(f64(-900), f64(0))) == pytest.approx(math.exp(20) - 21)


def test_kl_k3_by_hand_and_unbiased():
    assert kl_k3(f64(-1.0, -2.0), f64(-1.0, -2.0 + math.log(2))).tolist() == pytest.approx([0, 2 - math.log(2) - 1])
    p, q = f64(0.2, 0.3, 0.5), f64(0.5, 0.25, 0.25)
    assert float((p * kl_k3(p.log(), q.log())).sum()) == pytest.approx(float((p * (p / q).log()).sum()))


def test_clipped_counts_only_pushes_out_of_the_region():
    new = f64(1.5, 1.5, 0.5, 0.5, 1.0).log()
    found = clipped(new, f64(0, 0, 0, 0, 0), f64(1, 0, 1, 0, 1), f64(0, -1, 0, -1, -1), clip_low=0.2, clip_high=0.2)
    assert found.tolist() == [True, False, False, True, False]


# ---- a whole pack ----


def pack(**changes) -> Pack:
    """prompt, prompt, action, action, observation, action."""
    action = torch.tensor([False, False, True, True, False, True])
    base = Pack(
        ids=torch.arange(6),
        parent=torch.arange(-1, 5),
        position=torch.arange(6),
        segment=torch.tensor([0, 0, 1, 1, 1, 2]),
        segment_parent=torch.tensor([-1, 0, 1]),
        action=action,
        sampler_logprobs=f64(0, 0, -1.0, -2.0, 0, -0.5),
        positive=f64(0, 0, 0.5, 0.5, 0, 0),
        negative=f64(0, 0, -0.25, -0.25, 0, -0.75),
        weight=f64(0, 0, 0.6, 0.6, 0, 0.3),
    )
    return replace(base, **changes)


LOGPROBS = f64(0, 0, -1.1, -1.9, 0, -0.7)
ENTROPY = f64(0, 0, 1.0, 2.0, 0, 3.0)


def test_first_step_loss_is_minus_the_credit_and_its_gradient_the_policy_gradient():
    logprobs = LOGPROBS.clone().requires_grad_()
    loss, metrics = policy_loss(pack(), logprobs, ENTROPY, PLAIN)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-(0.25 + 0.25 - 0.75))
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0, 0, -0.25, -0.25, 0, 0.75])
    assert float(metrics["approx_kl"]) == 0
    assert float(metrics["clip_fraction"]) == 0


def test_kl_and_entropy_take_the_total_leaf_weight():
    ref = LOGPROBS + math.log(2) * pack().action
    base = float(policy_loss(pack(), LOGPROBS, ENTROPY, PLAIN)[0])
    config = replace(PLAIN, kl_coef=0.1, entropy_coef=0.01)
    loss, metrics = policy_loss(pack(ref_logprobs=ref), LOGPROBS, ENTROPY, config)
    k3 = 1 - math.log(2)
    assert float(loss) - base == pytest.approx(0.1 * 1.5 * k3 - 0.01 * (0.6 * 1 + 0.6 * 2 + 0.3 * 3))
    assert float(metrics["kl"]) == pytest.approx(3 * k3)
    with pytest.raises(ValueError, match=r"kl_coef is 0\.1, but the pack has no reference"):
        policy_loss(pack(), LOGPROBS, ENTROPY, config)


def test_truncated_importance_weights_correct_the_samplers_gap():
    loss, _ = policy_loss(pack(), LOGPROBS, ENTROPY, LossConfig(importance_cap=1.05))
    weights = [math.exp(-0.1), 1.05, math.exp(-0.2)]
    assert float(loss) == pytest.approx(-(0.25 * weights[0] + 0.25 * weights[1] - 0.75 * weights[2]))


def test_metrics_give_exact_means_over_packs():
    old = f64(0, 0, -1.6, -1.9, 0, -0.2)  # ratios e^.5, 1, e^-.5: tokens 2 and 5 are pushed out
    first = policy_loss(pack(old_logprobs=old), LOGPROBS, ENTROPY, PLAIN)[1]
    short = pack(action=torch.tensor([False, False, True, False, False, False]))
    second = policy_loss(short, LOGPROBS, ENTROPY, PLAIN)[1]
    means = mean_metrics([first, second])
    assert means["tokens"] == 4
    assert means["entropy"] == pytest.approx((1 + 2 + 3 + 1) / 4)
    assert means["clip_fraction"] == pytest.approx(2 / 4)
    assert means["sampler_gap"] == pytest.approx((0.6 + 0.1 + 0.3 + 0.1) / 4)
    assert means["sampler_gap_max"] == pytest.approx(0.6)
    expected = [math.exp(0.5) - 0.5 - 1, math.exp(-0.5) + 0.5 - 1]
    assert means["approx_kl"] == pytest.approx(sum(expected) / 4)
    assert "kl" not in means
    assert mean_metrics([]) == {}
    assert not any(value.requires_grad for value in first.values())


@pytest.mark.parametrize("placeholder", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_placeholders_outside_the_actions_reach_neither_loss_nor_gradient(placeholder):
    action = pack().action
    config = LossConfig(kl_coef=0.1, entropy_coef=0.1)

    def poisoned(values: torch.Tensor) -> torch.Tensor:
        return torch.where(action, values, placeholder)

    def run(change) -> tuple[float, list[float], dict[str, float]]:
        logprobs = change(LOGPROBS).requires_grad_()
        dirty = pack(
            sampler_logprobs=change(pack().sampler_logprobs),
            old_logprobs=change(LOGPROBS - 0.3),
            ref_logprobs=change(LOGPROBS + 0.2),
        )
        loss, metrics = policy_loss(dirty, logprobs, change(ENTROPY), config)
        loss.backward()
        assert logprobs.grad is not None
        return float(loss.detach()), logprobs.grad.tolist(), {key: float(value) for key, value in metrics.items()}

    assert run(poisoned) == run(torch.clone)


def test_a_pack_without_actions_has_loss_zero_and_can_go_backward():
    logprobs = LOGPROBS.clone().requires_grad_()
    loss, metrics = policy_loss(pack(action=torch.zeros(6, dtype=torch.bool)), logprobs, ENTROPY, LossConfig())
    loss.backward()
    assert float(loss.detach()) == 0
    assert float(metrics["tokens"]) == float(metrics["sampler_gap_max"]) == 0


def test_supervised_loss_is_the_weighted_negative_log_likelihood():
    weighted = pack(weight=f64(0, 0, 0.5, 0.25, 0.25, 0))
    logprobs = f64(float("nan"), 0, -1, -2, -4, float("nan"))
    assert float(supervised_loss(weighted, logprobs)) == 0.5 + 0.5 + 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 0.0}, "clip_low must be in"),
        ({"clip_high": -0.1}, "clip_high above 0"),
        ({"dual_clip": 1.0}, "dual_clip must be null or above 1"),
        ({"kl_coef": -1.0}, "kl_coef must not be negative"),
        ({"log_ratio_clamp": 0.0}, "log_ratio_clamp must be above 0"),
        ({"importance_cap": 0.0}, "importance_cap must be null or above 0"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        LossConfig(**settings)


def test_only_credit_free_objectives_may_skip_tokens():
    assert LossConfig().skips_zero
    assert not LossConfig(kl_coef=0.1).skips_zero
    assert not LossConfig(entropy_coef=0.1).skips_zero
