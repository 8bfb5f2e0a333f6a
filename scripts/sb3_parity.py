"""The same numbers through Stable-Baselines3 and through this project."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from ppo.agent import ActorCritic
from ppo.config import Config
from ppo.gae import compute_gae
from ppo.networks import ACTIVATIONS
from ppo.parameters import ParameterLayout, flatten_parameters, learning_rate_vector
from ppo.rollout import Batch, Rollout
from ppo.update import (
    ADAM_BETAS,
    Coefficients,
    EpochFunction,
    Hyperparameters,
    OptimizerState,
    UpdateMetrics,
    make_step,
    one_by_one,
    update,
)

# Both libraries sum float32 numbers, in different orders.
TOLERANCE = 1e-4
# A loss that is 0 but for rounding has no size to be relative to.
SMALL = 1e-6


@dataclass(frozen=True)
class Difference:
    """How far two columns of numbers are from each other.

    Attributes:
        quantity: what they are.
        absolute: the largest difference.
        relative: that, relative to the largest number of Stable-Baselines3's.
    """

    quantity: str
    absolute: float
    relative: float

    @property
    def agrees(self) -> bool:
        """Equal, up to float32's rounding."""
        return self.relative <= TOLERANCE or self.absolute <= SMALL

    @classmethod
    def of(cls, quantity: str, ours: Tensor, theirs: Tensor) -> "Difference":
        """Compare two tensors of one shape."""
        if ours.shape != theirs.shape:
            raise ValueError(f"{quantity}: {list(ours.shape)} against {list(theirs.shape)}")
        apart = float((ours.double() - theirs.double()).abs().max())
        scale = max(float(theirs.double().abs().max()), 1e-6)
        return cls(quantity, apart, apart / scale)


# --- estimating ---


def sb3_estimate(rollout: Rollout, *, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """(advantages, returns) of Stable-Baselines3's buffer, filled as its collector fills it.

    It knows one mask. At a time limit its collector adds gamma * V(last observation) to the reward
    and then treats the row as terminated.
    """
    n_steps, n_envs = rollout.rewards.shape
    box = spaces.Box(-1.0, 1.0, (1,))
    buffer = RolloutBuffer(n_steps, box, box, "cpu", gae_lambda, gamma, n_envs)
    dones = (rollout.terminated | rollout.truncated).numpy()
    at_limit = (rollout.truncated & ~rollout.terminated).float()
    rewards = (rollout.learner_rewards + gamma * at_limit * rollout.next_values).numpy()
    starts, nothing = np.zeros(n_envs, dtype=np.bool_), np.zeros((n_envs, 1), dtype=np.float32)
    for t in range(n_steps):
        buffer.add(nothing, nothing, rewards[t], starts, rollout.values[t], rollout.log_probs[t])
        starts = dones[t]
    buffer.compute_returns_and_advantage(rollout.next_values[-1], dones[-1])
    return torch.from_numpy(buffer.advantages), torch.from_numpy(buffer.returns)


def compare_estimates(rollout: Rollout, *, gamma: float, gae_lambda: float) -> list[Difference]:
    """Advantages and targets of both, on the same rows."""
    ours = compute_gae(
        rollout.learner_rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    theirs = sb3_estimate(rollout, gamma=gamma, gae_lambda=gae_lambda)
    names = ("advantages", "targets")
    return [Difference.of(*each) for each in zip(names, ours, theirs, strict=True)]


# --- learning ---


@dataclass(frozen=True)
class Learned:
    """What an update left.

    Attributes:
        losses: its means, by Stable-Baselines3's tag.
        grad_norm: mean over its gradient steps, before the clip.
        parameters: afterwards, [P].
        exp_avg: Adam's first moment, [P].
        steps: gradient steps taken.
    """

    losses: dict[str, float]
    grad_norm: float
    parameters: Tensor
    exp_avg: Tensor
    steps: int


_TAGS = {
    "train/policy_gradient_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/entropy_loss": "entropy_loss",
    "train/approx_kl": "approx_kl",
    "train/clip_fraction": "clip_fraction",
}


def hyperparameters_of(config: Config, *, n_epochs: int) -> Hyperparameters:
    """Of an update with this config; a KL stop is compared apart from it."""
    return Hyperparameters(
        n_epochs=n_epochs,
        batch_size=config.ppo.batch_size,
        clip_range_vf=config.ppo.clip_range_vf,
        normalize_advantage=config.ppo.normalize_advantage,
        vf_coef=config.ppo.vf_coef,
        max_grad_norm=config.ppo.max_grad_norm,
        target_kl=None,
    )


def orders(rows: int, settings: Hyperparameters, seed: int) -> list[Tensor]:
    """The permutations that `ppo.update.update` draws from a generator with this seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(rows, generator=generator) for _ in range(settings.n_epochs)]


def learn_ours(
    networks: ActorCritic,
    batch: Batch,
    config: Config,
    settings: Hyperparameters,
    *,
    seed: int,
    epoch: EpochFunction | None = None,
) -> Learned:
    """The update of this project; it changes the networks."""
    rate = config.ppo.learning_rate
    coefficients = Coefficients(
        learning_rate_vector(networks, actor=rate, critic=rate),
        torch.tensor(config.ppo.clip_range),
        torch.tensor(config.ppo.ent_coef),
        torch.tensor(True),
    )
    step = make_step(networks, settings)
    optimizer, metrics = update(
        networks,
        OptimizerState.zeros(networks),
        batch,
        coefficients,
        epoch=epoch or one_by_one(step, batch_size=settings.batch_size),
        hyperparameters=settings,
        generator=torch.Generator().manual_seed(seed),
    )
    return Learned(
        _losses(metrics),
        metrics.grad_norm,
        flatten_parameters(networks),
        optimizer.exp_avg,
        metrics.n_updates,
    )


def _losses(metrics: UpdateMetrics) -> dict[str, float]:
    return {tag: getattr(metrics, name) for tag, name in _TAGS.items()}


class _Spaces(gymnasium.Env[Any, Any]):
    """Stable-Baselines3 wants an environment for its spaces."""

    def __init__(self, size: int, action_space: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,))
        self.action_space = action_space


def learn_theirs(
    networks: ActorCritic,
    action_space: spaces.Space[Any],
    batch: Batch,
    config: Config,
    settings: Hyperparameters,
    *,
    seed: int,
) -> Learned:
    """`PPO.train` of Stable-Baselines3 from the same weights, on the same minibatches."""
    size, hidden = batch.observations.shape[1], list(config.policy.hidden_sizes)
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: _Spaces(size, action_space)]),
        n_steps=2,
        batch_size=2,
        learning_rate=config.ppo.learning_rate,
        n_epochs=settings.n_epochs,
        clip_range=config.ppo.clip_range,
        clip_range_vf=settings.clip_range_vf,
        normalize_advantage=settings.normalize_advantage == "minibatch",
        ent_coef=config.ppo.ent_coef,
        vf_coef=settings.vf_coef,
        max_grad_norm=settings.max_grad_norm,
        target_kl=settings.target_kl,
        policy_kwargs={
            "net_arch": {"pi": hidden, "vf": hidden},
            "activation_fn": ACTIVATIONS[config.policy.activation],
        },
        device="cpu",
    )
    named = sb3_parameters(model.policy)
    mine = dict(networks.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(mine[name].reshape(parameter.shape))
    logger = Logger(folder=None, output_formats=[])
    model.set_logger(logger)
    permutations = iter(orders(batch.size, settings, seed))
    with _fed(model, batch, permutations, settings.batch_size), _watched() as norms:
        model.train()
    states = model.policy.optimizer.state
    logged = {tag: float(logger.name_to_value[tag]) for tag in _TAGS}
    return Learned(
        logged,
        float(np.mean(norms)),
        torch.cat([parameter.detach().reshape(-1) for parameter in named.values()]),
        torch.cat([states[parameter]["exp_avg"].reshape(-1) for parameter in named.values()]),
        len(norms),
    )


def sb3_parameters(policy: Any) -> dict[str, Tensor]:
    """Parameters of an `ActorCriticPolicy` under this project's names, in its order."""
    networks = {
        "actor": (*policy.mlp_extractor.policy_net, policy.action_net),
        "critic": (*policy.mlp_extractor.value_net, policy.value_net),
    }
    named = {"log_std": policy.log_std} if hasattr(policy, "log_std") else {}
    for network, layers in networks.items():
        for index, layer in enumerate(layers):
            if isinstance(layer, torch.nn.Linear):
                named[f"{network}.{index}.weight"] = layer.weight
                named[f"{network}.{index}.bias"] = layer.bias
    return named


@contextmanager
def _fed(
    model: PPO, batch: Batch, permutations: Iterator[Tensor], batch_size: int
) -> Iterator[None]:
    """Let the model's buffer give these rows, in these orders."""

    def get(_: int | None = None) -> Iterator[RolloutBufferSamples]:
        for index in torch.split(next(permutations), batch_size):
            rows = batch.rows(index)
            actions = rows.actions.flatten() if rows.actions.shape[1:] == (1,) else rows.actions
            yield RolloutBufferSamples(
                rows.observations,
                rows.actions if rows.actions.is_floating_point() else actions,
                rows.values,
                rows.log_probs,
                rows.advantages,
                rows.returns,
            )

    buffer = model.rollout_buffer
    buffer.values, buffer.returns = batch.values.numpy(), batch.returns.numpy()
    with mock.patch.object(buffer, "get", get):
        yield


@contextmanager
def _watched() -> Iterator[list[float]]:
    """The norm of every gradient, before it is clipped."""
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watching(*arguments: Any, **settings: Any) -> Tensor:
        norm = clip(*arguments, **settings)
        norms.append(float(norm))
        return norm

    with mock.patch.object(torch.nn.utils, "clip_grad_norm_", watching):
        yield norms


def compare_learning(ours: Learned, theirs: Learned, networks: ActorCritic) -> list[Difference]:
    """Losses, diagnostics, gradient and parameters of two updates from the same weights."""
    found = [
        Difference.of(tag, torch.tensor(ours.losses[tag]), torch.tensor(theirs.losses[tag]))
        for tag in _TAGS
    ]
    found.append(
        Difference.of(
            "gradient norm, before the clip",
            torch.tensor(ours.grad_norm),
            torch.tensor(theirs.grad_norm),
        )
    )
    if ours.steps == theirs.steps == 1:
        # Adam's first moment after one step is the clipped gradient, times 1 - beta1.
        scale = 1.0 - ADAM_BETAS[0]
        found.append(
            Difference.of("gradient, clipped", ours.exp_avg / scale, theirs.exp_avg / scale)
        )
    found += _by_network(ours.parameters, theirs.parameters, networks)
    return found


def _by_network(ours: Tensor, theirs: Tensor, networks: ActorCritic) -> Sequence[Difference]:
    layout = ParameterLayout.of(networks)
    mine, others = layout.unflatten(ours), layout.unflatten(theirs)
    parts: dict[str, list[str]] = {}
    for name in layout.names:
        if mine[name].numel():
            parts.setdefault(name.partition(".")[0], []).append(name)
    return [
        Difference.of(
            f"parameters: {part}",
            torch.cat([mine[name].reshape(-1) for name in names]),
            torch.cat([others[name].reshape(-1) for name in names]),
        )
        for part, names in parts.items()
    ]
