"""The policy in NumPy against the networks in PyTorch, which learn."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ppo.acting import ActingPolicy
from ppo.agent import ActorCritic
from ppo.distributions import make_head
from ppo.networks import ACTIVATIONS

BOX, CHOICES = spaces.Box(-1.0, 1.0, (3,)), spaces.MultiDiscrete([2, 5])


def networks_for(space, activation="tanh", hidden_sizes=(16, 8)):
    networks = ActorCritic(
        4,
        make_head(space),
        hidden_sizes=hidden_sizes,
        activation=activation,
        log_std_init=-0.5,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator()))
    return networks


def acting(networks):
    return ActingPolicy(networks.actor, networks.log_std, networks.head)


def observations(n=50, scale=3.0):
    return (scale * np.random.default_rng(0).normal(size=(n, 4))).astype(np.float32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("space", [BOX, CHOICES], ids=["box", "choices"])
def test_outputs_are_those_of_the_network_that_learns(space, activation):
    networks = networks_for(space, activation)
    seen = observations()
    with torch.no_grad():
        expected = networks.actor(torch.from_numpy(seen)).numpy()
    outputs = acting(networks).outputs(seen)
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_inputs_warn_of_nothing(activation):
    networks = networks_for(BOX, activation)
    assert np.isfinite(acting(networks).outputs(observations(scale=1e4))).all()


def test_a_network_without_hidden_layers_acts():
    networks = networks_for(BOX, hidden_sizes=())
    seen = observations()
    with torch.no_grad():
        expected = networks.actor(torch.from_numpy(seen)).numpy()
    np.testing.assert_allclose(acting(networks).outputs(seen), expected, rtol=1e-5, atol=1e-6)


def test_the_inputs_stay_as_they_were():
    seen = observations()
    before = seen.copy()
    acting(networks_for(BOX)).outputs(seen)
    np.testing.assert_array_equal(seen, before)


@pytest.mark.parametrize("space", [BOX, CHOICES], ids=["box", "choices"])
def test_samples_have_the_probabilities_that_are_learned_from(space):
    """The mean surprise of what is acted is the entropy of what is learned from."""
    networks = networks_for(space)
    policy, head = acting(networks), networks.head
    outputs = policy.outputs(np.repeat(observations(1), 20_000, axis=0))
    noise = head.noise((20_000,), torch.Generator().manual_seed(1))
    actions = torch.from_numpy(policy.actions(outputs, noise))
    with torch.no_grad():
        distribution = head.distribution(torch.from_numpy(outputs), networks.log_std)
        surprise = -distribution.log_prob(actions).mean()
        assert float(surprise) == pytest.approx(float(distribution.entropy()[0]), abs=0.03)


@pytest.mark.parametrize("space", [BOX, CHOICES], ids=["box", "choices"])
def test_noise_drawn_at_once_is_noise_of_every_row(space):
    head = make_head(space)
    noise = head.noise((6, 2), torch.Generator().manual_seed(3))
    assert noise.shape == (6, 2, head.n_outputs)
    assert np.unique(noise).size == noise.size
    again = head.noise((6, 2), torch.Generator().manual_seed(3))
    np.testing.assert_array_equal(noise, again)
