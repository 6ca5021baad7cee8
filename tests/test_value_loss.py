"""The critic's loss by hand, its clip, what may not reach it, and explained variance."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_treerl.algorithms.estimates import mean_metrics
from lit_treerl.algorithms.value_loss import ValueLossConfig, explained_variance, predicted_returns, value_loss

NAN = float("nan")


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


VALUES, TARGETS, WEIGHTS = f64(0.5, -1.0, 2.0), f64(1.0, 1.0, 1.5), f64(0.5, 0.25, 0.25)


def loss_and_gradient(values: torch.Tensor, *rest: torch.Tensor | None, **settings) -> tuple[float, list[float]]:
    values = values.clone().requires_grad_()
    loss, _ = value_loss(values, *rest, config=ValueLossConfig(**settings))  # type: ignore[arg-type, misc]
    loss.backward()
    assert values.grad is not None
    return float(loss.detach()), values.grad.tolist()


def test_mse_by_hand():
    loss, gradient = loss_and_gradient(VALUES, TARGETS, WEIGHTS)
    assert loss == pytest.approx(0.5 * (0.5 * 0.25 + 0.25 * 4 + 0.25 * 0.25))
    assert gradient == pytest.approx([0.5 * -0.5, 0.25 * -2, 0.25 * 0.5])


def test_huber_is_linear_beyond_an_error_of_one():
    loss, gradient = loss_and_gradient(VALUES, TARGETS, WEIGHTS, kind="huber")
    assert loss == pytest.approx(0.5 * 0.125 + 0.25 * 1.5 + 0.25 * 0.125)
    assert gradient == pytest.approx([-0.25, -0.25, 0.125])


def test_bce_takes_logits_and_returns_clipped_to_0_and_1():
    loss, gradient = loss_and_gradient(f64(0.0, 2.0, -3.0), f64(0.25, 1.7, -0.2), WEIGHTS, kind="bce")
    p = [1 / (1 + math.exp(-x)) for x in (0.0, 2.0, -3.0)]
    expected = 0.5 * math.log(2) - 0.25 * math.log(p[1]) - 0.25 * math.log(1 - p[2])
    assert loss == pytest.approx(expected)
    assert gradient == pytest.approx([0.5 * (p[0] - 0.25), 0.25 * (p[1] - 1), 0.25 * p[2]])
    assert predicted_returns(f64(0.0, 2.0), "bce").tolist() == pytest.approx(p[:2])
    assert predicted_returns(VALUES, "mse") is VALUES


@pytest.mark.parametrize(
    ("value", "old", "loss", "gradient"),
    [
        (0.5, 0.4, 0.125, -0.5),  # within 0.2 of the old one
        (0.9, 0.4, 0.08, 0.0),  # moved 0.5 towards the target: held at 0.6, whose loss is larger
        (1.5, 0.4, 0.125, 0.5),  # overshot: the own loss is larger than that at 0.6, 0.08
        (0.1, 0.9, 0.405, -0.9),  # moved away: the own loss is larger than that at 0.7, and pulls back
    ],
)
def test_the_clip_takes_the_larger_loss(value, old, loss, gradient):
    found = loss_and_gradient(f64(value), f64(1.0), f64(1.0), f64(old), clip=0.2)
    assert found == (pytest.approx(loss), pytest.approx([gradient]))


@given(
    st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 1), st.floats(0.05, 2), st.sampled_from(["mse", "huber", "bce"])
)
def test_clipping_never_lowers_the_loss_and_a_wide_clip_is_none(value, old, target, clip, kind):
    args = f64(value), f64(target), f64(1.0)
    plain = loss_and_gradient(*args, kind=kind)[0]
    assert loss_and_gradient(*args, f64(old), kind=kind, clip=clip)[0] >= plain - 1e-12
    assert loss_and_gradient(*args, f64(old), kind=kind, clip=99.0)[0] == pytest.approx(plain)


def test_parts_of_a_step_add_in_loss_and_in_sums():
    whole, sums = value_loss(VALUES, TARGETS, WEIGHTS, VALUES - 0.3, ValueLossConfig(clip=0.2))
    parts = [
        value_loss(VALUES[some], TARGETS[some], WEIGHTS[some], VALUES[some] - 0.3, ValueLossConfig(clip=0.2))
        for some in (slice(0, 1), slice(1, 3))
    ]
    assert float(sum(loss for loss, _ in parts)) == pytest.approx(float(whole))
    assert mean_metrics([s for _, s in parts]) == pytest.approx(mean_metrics([sums]))
    assert mean_metrics([sums]) == pytest.approx(
        # the third one moved away from its target, and is not held
        {"tokens": 3, "value": 0.5, "target": 3.5 / 3, "value_error": 1.0, "value_clip_fraction": 2 / 3}
    )


@pytest.mark.parametrize("kind", ["mse", "huber", "bce"])
@pytest.mark.parametrize("placeholder", [NAN, math.inf, -math.inf, 1e300])
def test_nothing_of_what_has_no_weight_or_no_target_gets_in(kind, placeholder):
    values, old = f64(0.5, placeholder, -1.0, placeholder), f64(0.4, placeholder, -1.0, placeholder)
    targets, weights = f64(1.0, NAN, 0.0, placeholder), f64(0.5, 0.0, 0.5, 0.0)
    clean = loss_and_gradient(values[[0, 2]], targets[[0, 2]], weights[[0, 2]], old[[0, 2]], kind=kind, clip=0.2)
    loss, gradient = loss_and_gradient(values, targets, weights, old, kind=kind, clip=0.2)
    assert (loss, [gradient[0], gradient[2]]) == clean
    assert (gradient[1], gradient[3]) == (0, 0)
    assert loss_and_gradient(values, targets, f64(0.5, 7.0, 0.5, 0.0), kind=kind)[1][1] == 0  # a nan target
    nothing, sums = value_loss(values.clone().requires_grad_(), targets, torch.zeros_like(weights))
    nothing.backward()
    assert (float(nothing.detach()), float(sums["tokens"])) == (0, 0)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"clip is 0\.2, but there are no old values"):
        value_loss(VALUES, TARGETS, WEIGHTS, config=ValueLossConfig(clip=0.2))
    with pytest.raises(ValueError, match=r"targets of shape \(2,\) for values of shape \(3,\)"):
        value_loss(VALUES, TARGETS[:2], WEIGHTS)
    with pytest.raises(ValueError, match="kind must be one of 'mse', 'bce', 'huber', got 'mae'"):
        ValueLossConfig(kind="mae")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip must be null or above 0"):
        ValueLossConfig(clip=0.0)


# ---- explained variance ----


def test_explained_variance_by_hand():
    targets = f64(0, 1, 2, 3)  # variance 1.25
    assert explained_variance(targets, targets) == 1
    assert explained_variance(targets + 5, targets) == pytest.approx(1)  # a constant error varies not
    assert explained_variance(f64(1, 1, 1, 1), targets) == 0
    assert explained_variance(-targets, targets) == pytest.approx(1 - 4)
    assert explained_variance(f64(0, 1, 1, 2), targets) == pytest.approx(1 - 0.25 / 1.25)


def test_explained_variance_weighs_and_leaves_out_what_has_no_target():
    values, targets = f64(0, 1, NAN, 5, 1), f64(0, 2, NAN, NAN, 2)
    assert explained_variance(values, targets) == pytest.approx(explained_variance(f64(0, 1, 1), f64(0, 2, 2)))
    assert explained_variance(f64(0, 1), f64(0, 2), f64(1, 2)) == pytest.approx(
        explained_variance(f64(0, 1, 1), f64(0, 2, 2))
    )
    assert explained_variance(f64(0, 1, 9), f64(0, 2, 3), f64(1, 2, 0)) == pytest.approx(
        explained_variance(f64(0, 1, 1), f64(0, 2, 2))
    )
    assert explained_variance(torch.zeros(2), torch.tensor([0.0, 1.0])) == 0  # float32 may come too


@pytest.mark.parametrize("targets", [[], [1.0], [0.3, 0.1 + 0.2, 0.3], [0, 0, 0], [NAN, NAN], [1.0, NAN]])
def test_explained_variance_of_what_does_not_vary_is_nan(targets):
    assert math.isnan(explained_variance(torch.zeros(len(targets)), f64(*targets)))
