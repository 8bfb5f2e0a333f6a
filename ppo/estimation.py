"""From a rollout to what is learned from it: advantages and value targets, by the contract."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ppo.agent import Agent
from ppo.gae import bootstrap_weights, compute_gae
from ppo.losses import explained_variance
from ppo.rollout import Batch, Rollout, flatten_valid


class Estimate(NamedTuple):
    """Rows and what is thought of them, [T, N] each.

    Attributes:
        rollout: the rows.
        advantages: by GAE, before any normalisation.
        returns: the value targets, A + V.
        full_returns: the same for lambda = 1: rewards to the end of the fragment, and its
            bootstrapped value.
    """

    rollout: Rollout
    advantages: Tensor
    returns: Tensor
    full_returns: Tensor

    def batch(self) -> Batch:
        """The rows in which somebody acted, to learn from."""
        return flatten_valid(self.rollout, self.advantages, self.returns)


# The agent is the one that collected, before it learns from the rollout.
Estimator = Callable[[Agent, Rollout], Estimate]


def estimate(rollout: Rollout, *, gamma: float, gae_lambda: float) -> Estimate:
    """Advantages and targets of a rollout.

    Raises:
        ValueError: if a number is not finite or overflows; see `compute_gae`.
    """

    def gae(at_lambda: float) -> tuple[Tensor, Tensor]:
        return compute_gae(
            rollout.learner_rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            gamma=gamma,
            gae_lambda=at_lambda,
        )

    advantages, returns = gae(gae_lambda)
    return Estimate(rollout, advantages, returns, gae(1.0)[1])


def critic_metrics(estimated: Estimate, *, gamma: float) -> dict[str, float]:
    """How well the critic that collected explains what it collected."""
    rollout, valid = estimated.rollout, estimated.rollout.valid
    values = rollout.values[valid]
    weights = bootstrap_weights(rollout.terminated, rollout.truncated, gamma=gamma)
    return {
        "train/explained_variance": explained_variance(values, estimated.returns[valid]),
        "train/explained_variance_mc": explained_variance(values, estimated.full_returns[valid]),
        "train/bootstrap_weight": float(weights[valid].mean()),
    }
