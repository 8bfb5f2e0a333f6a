"""Action distributions: what the network's outputs mean, and what the environment is sent.

A `Head` is made from an action space. It says how many outputs the policy network needs and turns
those outputs into a distribution, for learning, and into actions, for acting, which are stored
exactly as sampled; `to_env` turns stored actions into what `env.step` takes. All shapes are
[B, ...] over rows. Noise is drawn apart from the outputs that it is added to, so that a whole
rollout's can be drawn at once, and on the generator's device, so that a seed means the same
everywhere.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from ppo.errors import UserError

# A standard deviation within [0.0067, 7.4]. Below that, float32 rounding of the mean moves the
# log-probability of a stored action by more than the update does; above, actions are noise.
LOG_STD_MIN = -5.0
LOG_STD_MAX = 2.0

SHOWN_CHARACTERS = 120

Float32 = NDArray[np.float32]
Actions = NDArray[Any]

_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal distributions: mean [B, A] and a state-independent log_std [A]."""

    mean: Tensor
    log_std: Tensor

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-density of actions [B, A], summed over the action's dimensions: [B]."""
        if actions.shape != self.mean.shape:
            raise ValueError(f"actions are {list(actions.shape)}, means {list(self.mean.shape)}")
        z = (actions - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * (z * z + _LOG_2PI) - self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        """Differential entropy, [B]."""
        return (self.log_std + 0.5 * (1.0 + _LOG_2PI)).sum(-1).expand(self.mean.shape[0])


@dataclass(frozen=True)
class MultiCategorical:
    """K independent categorical distributions over concatenated logits [B, sum(sizes)]."""

    logits: Tensor
    sizes: tuple[int, ...]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of actions [B, K], summed over the K choices: [B]."""
        if actions.shape != (self.logits.shape[0], len(self.sizes)):
            raise ValueError(
                f"actions are {list(actions.shape)} for {len(self.sizes)} choices over logits"
                f" {list(self.logits.shape)}"
            )
        chosen = [
            log_p.gather(-1, actions[:, k : k + 1]).squeeze(-1)
            for k, log_p in enumerate(self._log_probs())
        ]
        return torch.stack(chosen).sum(0)

    def entropy(self) -> Tensor:
        """Entropy, summed over the K choices: [B]."""
        return torch.stack([-(log_p.exp() * log_p).sum(-1) for log_p in self._log_probs()]).sum(0)

    def _log_probs(self) -> list[Tensor]:
        return [part.log_softmax(-1) for part in torch.split(self.logits, list(self.sizes), dim=-1)]


Distribution = DiagonalGaussian | MultiCategorical


@dataclass(frozen=True)
class GaussianHead:
    """Box actions: sampled unbounded, clipped to the box on the way to the environment."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    dtype: str

    @property
    def n_outputs(self) -> int:
        """A, the number of action dimensions."""
        return self.low.size

    @property
    def has_log_std(self) -> bool:
        """Whether the distribution has a free standard deviation."""
        return True

    @property
    def kind(self) -> str:
        """The distribution's name, for messages and checkpoints."""
        return "gaussian"

    def distribution(self, outputs: Tensor, log_std: Tensor) -> DiagonalGaussian:
        """Outputs [B, A] are the mean."""
        return DiagonalGaussian(outputs, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))

    def noise(self, rows: tuple[int, ...], generator: torch.Generator) -> Float32:
        """What makes `actions` samples: standard normal, [*rows, A]."""
        shape = (*rows, self.n_outputs)
        return torch.randn(shape, generator=generator, device=generator.device).cpu().numpy()

    def std(self, log_std: Float32) -> Float32:
        """The standard deviation that `actions` takes, [A]."""
        std: Float32 = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
        return std

    def actions(self, outputs: Float32, std: Float32, noise: Float32 | None) -> Actions:
        """Actions as sampled, [B, A]: mean + std * noise; the mode where there is no noise."""
        return outputs if noise is None else outputs + std * noise

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """[..., A] as sampled -> [..., *shape] within bounds, in the dtype of the space."""
        shape = actions.shape[:-1] + self.low.shape
        # Twice as fast as np.clip on arrays this small.
        clipped = np.minimum(np.maximum(actions.reshape(shape), self.low), self.high)
        return np.asarray(clipped, dtype=self.dtype)


@dataclass(frozen=True)
class CategoricalHead:
    """Discrete and MultiDiscrete actions: stored from zero, sent with the space's own start."""

    sizes: tuple[int, ...]
    start: NDArray[np.int64]
    shape: tuple[int, ...]
    dtype: str = "int64"

    @property
    def n_outputs(self) -> int:
        """The number of logits."""
        return sum(self.sizes)

    @property
    def has_log_std(self) -> bool:
        """Whether the distribution has a free standard deviation."""
        return False

    @property
    def kind(self) -> str:
        """The distribution's name, for messages and checkpoints."""
        return "categorical"

    def distribution(self, outputs: Tensor, log_std: Tensor) -> MultiCategorical:  # noqa: ARG002
        """Outputs [B, n_outputs] are the logits."""
        return MultiCategorical(outputs, self.sizes)

    def noise(self, rows: tuple[int, ...], generator: torch.Generator) -> Float32:
        """What makes `actions` samples: standard Gumbel, [*rows, n_outputs]."""
        shape = (*rows, self.n_outputs)
        waiting = torch.empty(shape, device=generator.device).exponential_(generator=generator)
        return (-waiting.log()).cpu().numpy()

    def std(self, log_std: Float32) -> Float32:
        """Nothing: `log_std` is empty, and there is no such parameter."""
        return log_std

    def actions(
        self,
        outputs: Float32,
        std: Float32,  # noqa: ARG002
        noise: Float32 | None,
    ) -> Actions:
        """Actions as sampled, int64 [B, K], counted from zero; the mode where there is no noise.

        The largest of logit + Gumbel noise is distributed as the softmax of the logits.
        """
        scores = outputs if noise is None else outputs + noise
        ends = np.cumsum(self.sizes)[:-1]
        chosen = [part.argmax(axis=-1) for part in np.split(scores, ends, axis=-1)]
        return np.stack(chosen, axis=-1)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """[..., K] counted from zero -> [..., *shape] as the space counts."""
        counted = (actions + self.start).reshape(actions.shape[:-1] + self.shape)
        return np.asarray(counted, dtype=self.dtype)


Head = GaussianHead | CategoricalHead


def make_head(space: spaces.Space[Any]) -> Head:
    """The head for an action space.

    Raises:
        UserError: if the space is neither a Box of floats, nor Discrete, nor MultiDiscrete.
    """
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.low.size > 0:
        return GaussianHead(
            low=space.low.astype(np.float64),
            high=space.high.astype(np.float64),
            dtype=str(space.dtype),
        )
    if isinstance(space, spaces.Discrete):
        start = np.array([space.start], dtype=np.int64)
        return CategoricalHead((int(space.n),), start, (), str(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        start = np.asarray(space.start, dtype=np.int64).reshape(-1)
        return CategoricalHead(sizes, start, space.nvec.shape, str(space.dtype))
    shown = " ".join(str(space).split())
    raise UserError(
        f"action space {shown[:SHOWN_CHARACTERS]} is not supported; supported are Box of floats,"
        " Discrete and MultiDiscrete"
    )
