"""Multilayer perceptrons with the initialisation that PPO is used to."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

Activation = Literal["tanh", "relu", "elu", "silu"]

ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}

HIDDEN_GAIN = math.sqrt(2.0)


def mlp(
    sizes: Sequence[int],
    *,
    activation: Activation,
    output_gain: float,
    generator: torch.Generator,
) -> nn.Sequential:
    """Linear layers of the given sizes with an activation between each two.

    Weights are orthogonal, scaled by sqrt(2) in hidden layers and by `output_gain` in the last;
    biases are zero (Engstrom et al. 2020, arXiv:2005.12729).
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes[:-1]):
        layers += [_linear(fan_in, fan_out, HIDDEN_GAIN, generator), ACTIVATIONS[activation]()]
    layers.append(_linear(sizes[-2], sizes[-1], output_gain, generator))
    return nn.Sequential(*layers)


def _linear(fan_in: int, fan_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    # Built without PyTorch's own initialisation, which would draw from the global generator.
    layer = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
