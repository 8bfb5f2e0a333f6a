"""The policy at work: eight observations through two small layers are microseconds of arithmetic.

At this size PyTorch's dispatch costs ten times the arithmetic, and it is paid at every vector step.
So acting reads the networks' weights and computes in NumPy; everything that is learned from (the
log-probabilities, the values, the gradients) is PyTorch's.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import nn

from ppo.distributions import Actions, Float32, Head
from ppo.networks import ACTIVATIONS, Activation

_FUNCTIONS: dict[Activation, Callable[[Float32], Float32]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "silu": lambda x: x * expit(x),
}
_FUNCTION_OF = {ACTIVATIONS[name]: function for name, function in _FUNCTIONS.items()}


class ActingPolicy:
    """A policy as it stands now; make a new one once its networks have moved.

    Args:
        actor: linear layers with activations between them, as `ppo.networks.mlp` makes them.
        log_std: the policy's free parameter, [A], or empty.
        head: what the outputs mean.
    """

    def __init__(self, actor: nn.Sequential, log_std: torch.Tensor, head: Head) -> None:
        self._head = head
        self._std = head.std(log_std.detach().cpu().numpy())
        self._layers: list[Callable[[Float32], Float32]] = [_as_numpy(module) for module in actor]

    def outputs(self, observations: Float32) -> Float32:
        """The network's outputs at normalised observations, [B, D] -> [B, n_outputs].

        Parameters that have blown up give outputs that are not finite, which is for the caller to
        find.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            for layer in self._layers:
                observations = layer(observations)
        return observations

    def actions(self, outputs: Float32, noise: Float32 | None) -> Actions:
        """Actions as sampled, [B, A]; without noise, the mode of the distribution."""
        return self._head.actions(outputs, self._std, noise)


def _as_numpy(module: nn.Module) -> Callable[[Float32], Float32]:
    if not isinstance(module, nn.Linear):
        return _FUNCTION_OF[type(module)]
    # A copy in the order that it is read in, which makes the product half as dear.
    weight: NDArray[np.float32] = np.ascontiguousarray(module.weight.detach().cpu().numpy().T)
    bias: NDArray[np.float32] = module.bias.detach().cpu().numpy()

    def linear(inputs: Float32) -> Float32:
        outputs: Float32 = inputs @ weight
        outputs += bias
        return outputs

    return linear
