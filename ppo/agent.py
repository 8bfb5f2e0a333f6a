"""Actor, critic, normalisers and action head as one thing: saved, loaded and used whole."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppo.acting import ActingPolicy
from ppo.config import Config, from_mapping
from ppo.distributions import (
    CategoricalHead,
    Distribution,
    GaussianHead,
    Head,
    make_head,
)
from ppo.errors import CheckpointError
from ppo.networks import Activation, mlp
from ppo.normalize import ObservationNormalizer, RewardNormalizer, RunningMoments
from ppo.seeding import Stream, torch_generator
from ppo.storage import damage_named, read_checkpoint

POLICY_OUTPUT_GAIN = 0.01
VALUE_OUTPUT_GAIN = 1.0


class ActorCritic(nn.Module):
    """Two separate networks, and the state-independent log standard deviation of the policy.

    Calling it with observations [B, D] gives (distribution over actions, values [B]).
    """

    def __init__(
        self,
        observation_size: int,
        head: Head,
        *,
        hidden_sizes: tuple[int, ...],
        activation: Activation,
        log_std_init: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.head = head
        self.actor = mlp(
            (observation_size, *hidden_sizes, head.n_outputs),
            activation=activation,
            output_gain=POLICY_OUTPUT_GAIN,
            generator=generator,
        )
        self.critic = mlp(
            (observation_size, *hidden_sizes, 1),
            activation=activation,
            output_gain=VALUE_OUTPUT_GAIN,
            generator=generator,
        )
        n_log_std = head.n_outputs if head.has_log_std else 0
        self.log_std = nn.Parameter(torch.full((n_log_std,), float(log_std_init)))

    def policy(self, observations: Tensor) -> Distribution:
        """The distribution over actions at observations [B, D]."""
        return self.head.distribution(self.actor(observations), self.log_std)

    def value(self, observations: Tensor) -> Tensor:
        """V of observations [..., D], shaped [...]."""
        values: Tensor = self.critic(observations).squeeze(-1)
        return values

    def forward(self, observations: Tensor) -> tuple[Distribution, Tensor]:
        """Both at once, which is what one gradient step needs."""
        return self.policy(observations), self.value(observations)


@dataclass
class Agent:
    """Everything that acts: what is saved, loaded, evaluated and exported is always all of it.

    Attributes:
        networks: actor and critic.
        observation_normalizer: None where observations are used as they are.
        reward_normalizer: None where rewards are used as they are; acting never needs it.
        observation_size: D.
        device: where the networks are.
    """

    networks: ActorCritic
    observation_normalizer: ObservationNormalizer | None
    reward_normalizer: RewardNormalizer | None
    observation_size: int
    device: torch.device

    @classmethod
    def create(
        cls,
        config: Config,
        *,
        observation_size: int,
        action_space: gymnasium.Space[Any],
        device: torch.device,
    ) -> "Agent":
        """A fresh agent for a task, drawn from the run's seed."""
        return cls._assemble(config, observation_size, make_head(action_space), device)

    @classmethod
    def _assemble(
        cls, config: Config, observation_size: int, head: Head, device: torch.device
    ) -> "Agent":
        networks = ActorCritic(
            observation_size,
            head,
            hidden_sizes=config.policy.hidden_sizes,
            activation=config.policy.activation,
            log_std_init=config.policy.log_std_init,
            generator=torch_generator(config.seed, Stream.INITIALISATION),
        )
        clip = config.normalize.clip
        return cls(
            networks=networks.to(device),
            observation_normalizer=ObservationNormalizer(
                RunningMoments.of_size(observation_size), clip
            )
            if config.normalize.observations
            else None,
            reward_normalizer=RewardNormalizer(
                RunningMoments.of_size(1), clip, gamma=config.ppo.gamma
            )
            if config.normalize.rewards
            else None,
            observation_size=observation_size,
            device=device,
        )

    @property
    def head(self) -> Head:
        """What the policy network's outputs mean."""
        return self.networks.head

    def acting_policy(self) -> ActingPolicy:
        """The policy as it stands now, for acting."""
        return ActingPolicy(self.networks.actor, self.networks.log_std, self.head)

    def normalize(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Observations [..., D] as the networks take them, with frozen statistics."""
        if self.observation_normalizer is None:
            return observations.astype(np.float32)
        return self.observation_normalizer(observations)

    def predict(self, observations: NDArray[Any], deterministic: bool = True) -> NDArray[Any]:
        """Actions that `env.step` takes, for one observation or a batch of them.

        Args:
            observations: as `ppo.envs.make_env` gives them, one or a batch with a leading
                dimension. For tasks whose observation is a vector of floats, that is what the
                environment itself returns. Not normalised: that is done here.
            deterministic: the mode of the distribution; otherwise a sample, from PyTorch's global
                generator.

        Raises:
            ValueError: if the observations have another size than the agent was trained on.
        """
        raw = np.asarray(observations)
        size = self.observation_size
        batched = raw.size != size or (raw.ndim > 1 and raw.shape[0] == 1)
        if raw.size == 0 or raw.size != (len(raw) if batched and raw.ndim else 1) * size:
            raise ValueError(
                f"this agent takes observations of {size} numbers, one or a batch of them;"
                f" got shape {list(raw.shape)}"
            )
        policy = self.acting_policy()
        outputs = policy.outputs(self.normalize(raw.reshape(-1, size)))
        noise = None if deterministic else self.head.noise((len(outputs),), torch.default_generator)
        actions = self.head.to_env(policy.actions(outputs, noise))
        return actions if batched else actions[0]

    def state(self) -> dict[str, Any]:
        """All of it, as tensors and plain Python (copies)."""
        return {
            "observation_size": self.observation_size,
            "head": _head_state(self.head),
            "networks": {
                name: tensor.detach().cpu().clone()
                for name, tensor in self.networks.state_dict().items()
            },
            "observation_moments": _moments_state(self.observation_normalizer),
            "reward_moments": _moments_state(self.reward_normalizer),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], config: Config, device: torch.device) -> "Agent":
        """The agent that `state` was taken of; `config` is the one that it was made with."""
        agent = cls._assemble(
            config, int(state["observation_size"]), _head_from_state(state["head"]), device
        )
        agent.networks.load_state_dict(state["networks"])
        _load_moments(agent.observation_normalizer, state["observation_moments"])
        _load_moments(agent.reward_normalizer, state["reward_moments"])
        return agent

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> "Agent":
        """The agent in a checkpoint, or the last one in a run's folder.

        Raises:
            CheckpointError: if there is none, or it cannot be read.
        """
        path = Path(path)
        file = path / "checkpoints" / "last.pt" if path.is_dir() else path
        stored = read_checkpoint(file)
        with damage_named(str(file)):
            return cls.from_state(
                stored["agent"],
                from_mapping(stored["config"], source=str(file)),
                torch.device(device),
            )


def _moments_state(
    normalizer: ObservationNormalizer | RewardNormalizer | None,
) -> dict[str, Any] | None:
    if normalizer is None:
        return None
    moments = normalizer.moments
    return {
        "mean": torch.from_numpy(moments.mean.copy()),
        "variance": torch.from_numpy(moments.variance.copy()),
        "count": moments.count,
    }


def _load_moments(
    normalizer: ObservationNormalizer | RewardNormalizer | None, state: dict[str, Any] | None
) -> None:
    if (normalizer is None) != (state is None):
        raise CheckpointError("the checkpoint's statistics do not fit its normalize settings")
    if normalizer is None or state is None:
        return
    normalizer.moments.mean = state["mean"].numpy().copy()
    normalizer.moments.variance = state["variance"].numpy().copy()
    normalizer.moments.count = int(state["count"])
    if isinstance(normalizer, ObservationNormalizer):
        normalizer.refresh()


def _head_state(head: Head) -> dict[str, Any]:
    if isinstance(head, GaussianHead):
        return {
            "kind": head.kind,
            "low": torch.from_numpy(head.low.copy()),
            "high": torch.from_numpy(head.high.copy()),
            "dtype": head.dtype,
        }
    return {
        "kind": head.kind,
        "sizes": list(head.sizes),
        "start": torch.from_numpy(head.start.copy()),
        "shape": list(head.shape),
        "dtype": head.dtype,
    }


def _head_from_state(state: dict[str, Any]) -> Head:
    if state["kind"] == "gaussian":
        return GaussianHead(state["low"].numpy(), state["high"].numpy(), state["dtype"])
    return CategoricalHead(
        tuple(state["sizes"]), state["start"].numpy(), tuple(state["shape"]), state["dtype"]
    )
