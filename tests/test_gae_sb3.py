"""Stable-Baselines3's rollout buffer as a second oracle, on the same data.

Its recursion knows one mask only. At a time limit its collector adds gamma * V(last observation)
to the reward, and then treats the row as terminated; the same numbers follow, so far as the two
libraries agree.
"""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from ppo.gae import compute_gae
from tests.oracles import random_trajectories


def sb3_estimate(rows, gamma, gae_lambda):
    """Advantages and returns of its buffer, filled as its collector fills it."""
    n_rows, n_envs = rows.rewards.shape
    box = spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(n_rows, box, box, "cpu", gae_lambda, gamma, n_envs)
    dones = (rows.terminated | rows.truncated).numpy()
    started = np.ones(n_envs, dtype=bool)
    time_limit = (rows.truncated & ~rows.terminated).double()
    rewards = rows.rewards + gamma * time_limit * rows.next_values
    nothing = np.zeros((n_envs, 1), dtype=np.float32)
    for t in range(n_rows):
        log_prob = torch.zeros(n_envs)
        buffer.add(nothing, nothing, rewards[t].numpy(), started, rows.values[t], log_prob)
        started = dones[t]
    buffer.compute_returns_and_advantage(rows.next_values[-1], dones[-1])
    return buffer.advantages, buffer.returns


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_same_numbers_as_the_rollout_buffer(gamma, gae_lambda):
    rows = random_trajectories(128, 8, seed=3, cuts=False)
    assert (rows.truncated & ~rows.terminated).sum() > 100
    assert (rows.truncated & rows.terminated).sum() > 100
    expected = sb3_estimate(rows, gamma, gae_lambda)
    numbers = [tensor.float() for tensor in rows.inputs[:3]]
    ours = compute_gae(
        *numbers, rows.terminated, rows.truncated, gamma=gamma, gae_lambda=gae_lambda
    )
    for mine, theirs in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last", ["goes on", "terminated", "truncated", "both"])
def test_same_numbers_whatever_happens_in_the_last_row(last):
    rows = random_trajectories(5, 4, seed=1, cuts=False)
    rows.terminated[-1] = last in ("terminated", "both")
    rows.truncated[-1] = last in ("truncated", "both")
    expected, _ = sb3_estimate(rows, 0.9, 0.8)
    ours, _ = compute_gae(*rows.inputs, gamma=0.9, gae_lambda=0.8)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_one_unbroken_fragment_is_the_plain_recursion():
    rows = random_trajectories(64, 3, seed=2, cuts=False)
    rows.terminated[:] = False
    rows.truncated[:] = False
    rows.next_values[:-1] = rows.values[1:]
    expected, _ = sb3_estimate(rows, 0.99, 0.95)
    ours, _ = compute_gae(*rows.inputs, gamma=0.99, gae_lambda=0.95)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-5)
