"""All parameters of the networks as one flat vector, and what is known of each entry."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ppo.agent import ActorCritic
from ppo.distributions import LOG_STD_MAX, LOG_STD_MIN


@dataclass(frozen=True)
class ParameterLayout:
    """Where each named parameter lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, networks: nn.Module) -> "ParameterLayout":
        """In the order of `named_parameters`."""
        named = list(networks.named_parameters())
        return cls(tuple(name for name, _ in named), tuple(value.shape for _, value in named))

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the vector [P], by name."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        return {
            name: part.view(shape)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }


def flatten_parameters(networks: nn.Module) -> Tensor:
    """All parameters as one new vector [P]."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in networks.parameters()])


def load_parameters(networks: nn.Module, flat: Tensor) -> None:
    """Write the vector [P] back into the networks."""
    named = dict(networks.named_parameters())
    with torch.no_grad():
        for name, value in ParameterLayout.of(networks).unflatten(flat).items():
            named[name].copy_(value)


def learning_rate_vector(networks: ActorCritic, *, actor: float, critic: float) -> Tensor:
    """The learning rate of every parameter, [P]."""
    of_critic = critic_mask(networks)
    return torch.where(
        of_critic, critic, torch.full(of_critic.shape, actor, device=of_critic.device)
    )


def critic_mask(networks: ActorCritic) -> Tensor:
    """Which parameters are the critic's, bool [P]; the others are the policy's."""
    parts = [
        torch.full((parameter.numel(),), name.startswith("critic."), device=parameter.device)
        for name, parameter in networks.named_parameters()
    ]
    return torch.cat(parts)


def parameter_bounds(networks: ActorCritic) -> tuple[Tensor, Tensor]:
    """Lowest and highest value of every parameter, [P] each, in the order of `parameters()`."""
    lows, highs = [], []
    for name, parameter in networks.named_parameters():
        bounded = name == "log_std"
        low, high = (LOG_STD_MIN, LOG_STD_MAX) if bounded else (-math.inf, math.inf)
        lows.append(torch.full((parameter.numel(),), low))
        highs.append(torch.full((parameter.numel(),), high))
    device = next(networks.parameters()).device
    return torch.cat(lows).to(device), torch.cat(highs).to(device)
