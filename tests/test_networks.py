"""Multilayer perceptrons: layers, initialisation and where their randomness comes from."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ppo.networks import mlp


def network(sizes=(5, 8, 6, 3), activation="tanh", output_gain=0.01, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return mlp(sizes, activation=activation, output_gain=output_gain, generator=generator)


def linear_layers(module):
    return [layer for layer in module if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize(
    ("activation", "kind"),
    [("tanh", nn.Tanh), ("relu", nn.ReLU), ("elu", nn.ELU), ("silu", nn.SiLU)],
)
def test_layers_alternate_and_end_in_a_linear_one(activation, kind):
    kinds = [type(layer) for layer in network(activation=activation)]
    assert kinds == [nn.Linear, kind, nn.Linear, kind, nn.Linear]


def test_layers_have_the_sizes_given():
    shapes = [tuple(layer.weight.shape) for layer in linear_layers(network())]
    assert shapes == [(8, 5), (6, 8), (3, 6)]


def test_no_hidden_layer_is_one_linear_map():
    (layer,) = network((4, 2))
    assert tuple(layer.weight.shape) == (2, 4)


def gram(weight):
    """Of whichever side, rows or columns, is the shorter: it can be orthogonal."""
    tall = weight if weight.shape[0] >= weight.shape[1] else weight.T
    return tall.T @ tall


@pytest.mark.parametrize("output_gain", [0.01, 1.0])
def test_weights_are_orthogonal_with_their_gain(output_gain):
    *hidden, last = linear_layers(network(output_gain=output_gain))
    for layer in hidden:
        product = gram(layer.weight)
        torch.testing.assert_close(product, 2.0 * torch.eye(len(product)), atol=1e-5, rtol=0)
    product = gram(last.weight) / output_gain**2
    torch.testing.assert_close(product, torch.eye(len(product)), atol=1e-4, rtol=0)


def test_biases_are_zero():
    assert all(torch.equal(b.bias, torch.zeros_like(b.bias)) for b in linear_layers(network()))


def test_a_small_output_gain_starts_near_zero():
    observations = torch.randn(100, 5, generator=torch.Generator().manual_seed(1))
    small, full = (network(output_gain=gain)(observations).detach() for gain in (0.01, 1.0))
    assert float(small.abs().max()) < 0.05
    assert float(full.abs().max()) > 0.5


def test_forward_pass_by_matrices():
    module = network(output_gain=1.0)
    observations = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    first, second, third = (layer.weight.detach().numpy() for layer in linear_layers(module))
    expected = np.tanh(np.tanh(observations @ first.T) @ second.T) @ third.T
    outputs = module(torch.from_numpy(observations)).detach().numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_parameters_learn_and_are_float32():
    for parameter in network().parameters():
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32
        assert parameter.device.type == "cpu"


def test_same_generator_same_weights():
    first, again, other = (network(seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if key.endswith("weight")]
    assert not any(torch.equal(first[key], other[key]) for key in weights)


def test_layers_of_equal_size_differ():
    first, second, _ = linear_layers(network((6, 6, 6, 1)))
    assert not torch.allclose(first.weight, second.weight)


def test_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = network().state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    again = network().state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_activations_keep_their_scale_in_depth():
    """A gain of sqrt(2) keeps the second moment of a ReLU network through 10 layers."""
    module = network((64,) * 11, activation="relu", output_gain=math.sqrt(2.0))
    inputs = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    ratio = float(module(inputs).detach().square().mean() / inputs.square().mean())
    assert 0.3 < ratio < 4.0
