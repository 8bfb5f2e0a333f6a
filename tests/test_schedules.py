"""Schedules: first and last values, overshoot, and the adaptive rule's thresholds."""

import itertools

import pytest

from ppo.schedules import adaptive_kl, linear


def test_linear_over_ten_iterations():
    """The first at the full value, the last at a tenth of it; half-way at a half."""
    rates = [linear(1e-3, env_steps=100 * i, total_timesteps=1000) for i in range(10)]
    assert rates[0] == 1e-3
    assert rates[5] == pytest.approx(5e-4)
    assert rates[-1] == pytest.approx(1e-4)
    steps = [a - b for a, b in itertools.pairwise(rates)]
    assert steps == pytest.approx([1e-4] * 9)


@pytest.mark.parametrize("env_steps", [1000, 1001, 10**9])
def test_linear_never_passes_its_end(env_steps):
    assert linear(1e-3, env_steps=env_steps, total_timesteps=1000) == 0.0


def adapted(kl, learning_rate=3e-4):
    return adaptive_kl(learning_rate, approx_kl=kl, desired_kl=0.01, minimum=1e-5, maximum=1e-2)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.03, 2e-4),
        (0.0201, 2e-4),
        (0.02, 3e-4),
        (0.01, 3e-4),
        (0.005, 3e-4),
        (0.0049, 4.5e-4),
        (0.0, 4.5e-4),
    ],
)
def test_adaptive_rate_moves_outside_half_and_twice_the_desired_kl(kl, expected):
    assert adapted(kl) == pytest.approx(expected)


@pytest.mark.parametrize(("kl", "bound"), [(1.0, 1e-5), (0.0, 1e-2)])
def test_adaptive_rate_stays_within_its_bounds(kl, bound):
    rate = 3e-4
    for _ in range(50):
        rate = adapted(kl, rate)
        assert 1e-5 <= rate <= 1e-2
    assert rate == bound


@pytest.mark.parametrize(("rate", "bound"), [(1e-7, 1e-5), (1.0, 1e-2)])
def test_adaptive_rate_returns_within_its_bounds_when_it_need_not_move(rate, bound):
    assert adapted(0.01, rate) == bound


def test_adaptive_rate_comes_back():
    assert adapted(0.0, adapted(1.0)) == pytest.approx(3e-4)
