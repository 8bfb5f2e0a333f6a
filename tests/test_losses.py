"""Loss terms against literal numbers, other libraries and their gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from stable_baselines3.common.utils import explained_variance as sb3_explained_variance

from ppo.losses import (
    approx_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    normalize_advantages,
    value_loss,
)
from tests.oracles import unhurried

tensor = torch.tensor

# Advantage normalisation


def test_normalised_advantages_by_hand():
    """Mean 3, and a standard deviation of 2 with n - 1 in it."""
    normalised = normalize_advantages(tensor([1.0, 3.0, 5.0]))
    assert normalised.tolist() == pytest.approx([-1, 0, 1], abs=1e-6)


def test_two_rows_tell_n_minus_one_from_n():
    half = math.sqrt(0.5)
    assert normalize_advantages(tensor([0.0, 8.0])).tolist() == pytest.approx([-half, half])


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=40, unique=True))
@unhurried
def test_normalised_advantages_equal_scipy(numbers):
    expected = stats.zscore(numbers, ddof=1)
    normalised = normalize_advantages(tensor(numbers, dtype=torch.float64)).numpy()
    spread = np.std(numbers, ddof=1)
    np.testing.assert_allclose(normalised, expected * spread / (spread + 1e-8), atol=1e-6)


def test_minibatches_and_rollout_are_normalised_differently():
    advantages = tensor([0.0, 2.0, 10.0, 14.0])
    half = math.sqrt(0.5)
    parts = [normalize_advantages(part) for part in advantages.split(2)]
    assert torch.cat(parts).tolist() == pytest.approx([-half, half, -half, half])
    # Mean 6.5 and a sum of squares of 131 for the whole.
    std = math.sqrt(131 / 3)
    whole = [-6.5 / std, -4.5 / std, 3.5 / std, 7.5 / std]
    assert normalize_advantages(advantages).tolist() == pytest.approx(whole)


def test_a_last_minibatch_of_one_row_is_zero():
    advantages = torch.randn(129, generator=torch.Generator().manual_seed(0))
    *full, last = (normalize_advantages(part) for part in advantages.split(64))
    assert last.tolist() == [0.0]
    assert all(float(part.std()) == pytest.approx(1.0, abs=1e-5) for part in full)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1800.1, 1e30, 1e-30])
@pytest.mark.parametrize("rows", [1, 2, 3, 64, 129])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_spread_are_exactly_zero(constant, rows, dtype):
    normalised = normalize_advantages(torch.full((rows,), constant, dtype=dtype))
    assert normalised.dtype == dtype
    assert normalised.tolist() == [0.0] * rows


def test_normalisation_forgets_offset_and_scale():
    advantages = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = normalize_advantages(1000.0 + 50.0 * advantages)
    torch.testing.assert_close(moved, normalize_advantages(advantages), atol=1e-6, rtol=0)


def test_advantages_whose_squares_overflow_give_no_nan():
    normalised = normalize_advantages(1e20 * tensor([1.0, -1.0, 1.0]))
    assert bool(torch.isfinite(normalised).all())


# Policy loss

# Ratio, advantage, surrogate at a clip range of 0.2, and whether the ratio gets a gradient.
SURROGATES = [
    (1.0, 2.0, 2.0, True),
    (1.1, 2.0, 2.2, True),
    (1.5, 2.0, 2.4, False),
    (0.5, 2.0, 1.0, True),
    (1.5, -2.0, -3.0, True),
    (0.5, -2.0, -1.6, False),
    (0.9, -2.0, -1.8, True),
]


@pytest.mark.parametrize(("ratio", "advantage", "surrogate", "moves"), SURROGATES)
def test_clipped_surrogate_of_one_row(ratio, advantage, surrogate, moves):
    ratios = tensor([ratio], requires_grad=True)
    loss = clipped_policy_loss(ratios, tensor([advantage]), clip_range=0.2)
    assert loss.item() == pytest.approx(-surrogate)
    loss.backward()
    assert ratios.grad.item() == pytest.approx(-advantage if moves else 0.0)


def test_policy_loss_is_the_mean_over_rows():
    ratios, advantages, surrogates, _ = (list(row) for row in zip(*SURROGATES, strict=True))
    loss = clipped_policy_loss(tensor(ratios), tensor(advantages), clip_range=0.2)
    assert loss.item() == pytest.approx(-sum(surrogates) / len(SURROGATES))


def test_clip_range_may_be_a_tensor():
    ratio, advantages = tensor([0.5, 1.0, 1.5, 1.5]), tensor([-1.0, 1.0, 1.0, -1.0])
    number = clipped_policy_loss(ratio, advantages, clip_range=0.3)
    assert torch.equal(clipped_policy_loss(ratio, advantages, clip_range=tensor(0.3)), number)
    assert number.item() == pytest.approx(-(-0.7 + 1.0 + 1.3 - 1.5) / 4)


# Value loss


def test_value_loss_has_no_one_half():
    assert value_loss(tensor([0.0, 1.0]), tensor([2.0, 1.0])).item() == pytest.approx(2.0)


def test_value_loss_of_exact_predictions_is_zero():
    values = tensor([[1.0], [2.0]]).squeeze(-1)
    assert value_loss(values, tensor([1.0, 2.0])).item() == 0.0


@pytest.mark.parametrize(
    ("value", "old", "expected"),
    [(3.0, 1.0, 1.5**2), (0.0, 1.0, 2.5**2), (1.3, 1.0, 1.7**2)],
    ids=["clipped above", "clipped below", "within"],
)
def test_value_loss_is_clipped_against_the_stored_value(value, old, expected):
    values = tensor([value], requires_grad=True)
    loss = value_loss(values, tensor([3.0]), old_values=tensor([old]), clip_range_vf=0.5)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    within = abs(value - old) < 0.5
    assert values.grad.item() == pytest.approx(2 * (value - 3.0) if within else 0.0)


def test_stored_values_do_not_matter_without_a_clip_range():
    values, returns = tensor([1.0, 5.0]), tensor([2.0, 2.0])
    loss = value_loss(values, returns, old_values=tensor([0.0, 0.0]))
    assert loss.item() == pytest.approx(5.0)


def test_value_clipping_without_stored_values_is_refused():
    with pytest.raises(ValueError, match="clip_range_vf needs old_values"):
        value_loss(tensor([1.0]), tensor([1.0]), clip_range_vf=0.2)


# Shapes

B, B1 = torch.ones(3), torch.ones(3, 1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: value_loss(B1, B), "values"),
        (lambda: value_loss(B, B1), "returns"),
        (lambda: value_loss(B, B[:1]), "returns"),
        (lambda: value_loss(B, B, old_values=B1, clip_range_vf=0.1), "old_values"),
        (lambda: clipped_policy_loss(B1, B, clip_range=0.2), "ratio"),
        (lambda: clipped_policy_loss(B, B1, clip_range=0.2), "advantages"),
        (lambda: normalize_advantages(B1), "advantages"),
        (lambda: normalize_advantages(B[:0]), "advantages"),
        (lambda: explained_variance(B1, B), "predictions"),
        (lambda: explained_variance(B, B[:2]), "targets"),
        (lambda: explained_variance(B[:0], B[:0]), "predictions"),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must be \[B\] like the others, with B >= 1"):
        call()


# Divergence and clip fraction


def test_approx_kl_by_hand():
    assert approx_kl(tensor([0.1, -0.1])).item() == pytest.approx(0.0050042, abs=1e-7)


def test_approx_kl_of_an_unchanged_policy_is_zero():
    assert approx_kl(torch.zeros(5)).item() == 0.0


def test_approx_kl_is_exact_where_every_action_is_seen():
    """Old policy uniform over four actions, each sampled once: the mean is the expectation."""
    old, new = np.full(4, 0.25), np.array([0.1, 0.2, 0.3, 0.4])
    estimate = approx_kl(torch.from_numpy(np.log(new / old))).item()
    assert estimate == pytest.approx(stats.entropy(old, new))
    assert estimate != pytest.approx(stats.entropy(new, old), rel=0.05)


@pytest.mark.parametrize("sign", [1, -1])
def test_approx_kl_is_never_negative(sign):
    """Near zero, ratio - 1 taken in float32 would cancel."""
    logratios = sign * torch.logspace(-12, 1, 2001)
    assert min(approx_kl(logratio).item() for logratio in logratios.split(1)) >= 0.0


def test_approx_kl_keeps_small_divergences():
    assert approx_kl(tensor([1e-3])).item() == pytest.approx(5.0017e-7, rel=1e-3)


def test_clip_fraction_counts_both_sides():
    ratio = tensor([0.5, 0.9, 1.0, 1.1, 1.5, 1.25, 0.7, 1.0])
    assert clip_fraction(ratio, clip_range=0.2).item() == pytest.approx(0.5)
    assert clip_fraction(ratio, clip_range=tensor(0.4)).item() == pytest.approx(0.25)


# Explained variance


def test_explained_variance_by_hand():
    predictions, targets = tensor([1.5, 2.0, 3.0, 3.5]), tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(predictions, targets) == pytest.approx(0.9)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1800.1])
@pytest.mark.parametrize("rows", [1, 2, 129])
def test_explained_variance_of_constant_targets_is_nan(constant, rows):
    predictions = torch.linspace(-1, 1, rows)
    assert math.isnan(explained_variance(predictions, torch.full((rows,), constant)))


def test_explained_variance_of_the_best_the_useless_and_the_harmful():
    targets = tensor([1.0, 2.0, 4.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(torch.full((3,), 7.0), targets) == pytest.approx(0.0)
    assert explained_variance(-targets, targets) == pytest.approx(-3.0)


def test_explained_variance_forgives_an_offset():
    targets = tensor([1.0, 2.0, 4.0])
    assert explained_variance(targets + 100, targets) == pytest.approx(1.0)


def test_explained_variance_equals_another_library():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        targets = torch.randn(50, generator=generator)
        predictions = 0.7 * targets + 0.3 * torch.randn(50, generator=generator)
        expected = sb3_explained_variance(predictions.double().numpy(), targets.double().numpy())
        assert explained_variance(predictions, targets) == pytest.approx(float(expected))


def test_explained_variance_does_not_cancel_at_a_large_offset():
    """Residuals that float32 can hold, on targets whose mean would swallow them."""
    targets = 1e6 + tensor([0.0, 1.0, 2.0, 3.0])
    predictions = targets + tensor([0.5, 0.0, 0.0, -0.5])
    assert explained_variance(predictions, targets) == pytest.approx(0.9)


def test_explained_variance_takes_predictions_with_a_gradient():
    predictions = tensor([1.0, 3.0], requires_grad=True)
    assert explained_variance(predictions, tensor([1.0, 3.0])) == 1.0
