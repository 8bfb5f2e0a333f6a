"""The contract, broken on purpose in one way at a time: estimators for experiments.

None of them can be reached from a configuration. Each is an `Estimator` that `ppo.train.train`
takes in the place of the contract's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ppo.agent import Agent
from ppo.estimation import Estimate, estimate
from ppo.gae import compute_gae, td_residuals
from ppo.rollout import Rollout


@dataclass(frozen=True)
class Discount:
    """Gamma and lambda of the estimator."""

    gamma: float
    gae_lambda: float

    def of(self, rollout: Rollout) -> Estimate:
        """By the contract."""
        return estimate(rollout, gamma=self.gamma, gae_lambda=self.gae_lambda)


BrokenEstimator = Callable[[Agent, Rollout, Discount], Estimate]


def correct(_agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """The contract."""
    return discount.of(rollout)


def truncation_as_termination(_agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """No bootstrap at a time limit."""
    wrong = discount.of(replace(rollout, terminated=rollout.terminated | rollout.truncated))
    return wrong._replace(rollout=rollout)


def chain_leaks(_agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """Every bootstrap is right, but the next episode's advantages are added to this one's."""
    delta = td_residuals(
        rollout.learner_rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        gamma=discount.gamma,
    )
    zeros, never = torch.zeros_like(delta), torch.zeros_like(rollout.terminated)

    def leaking(gae_lambda: float) -> Tensor:
        sums, _ = compute_gae(
            delta, zeros, zeros, never, never, gamma=discount.gamma, gae_lambda=gae_lambda
        )
        return sums

    advantages = leaking(discount.gae_lambda)
    return Estimate(rollout, advantages, advantages + rollout.values, leaking(1.0) + rollout.values)


def reset_bootstrap(_agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """A time limit bootstraps from the first state of the next episode."""
    # The last row's successor lies in the next rollout; it keeps the right value.
    successors = torch.cat((rollout.values[1:], rollout.next_values[-1:]))
    return _at_truncations(rollout, discount, successors)


def current_bootstrap(_agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """A time limit bootstraps from V(s_t), not from the state that was reached."""
    return _at_truncations(rollout, discount, rollout.values)


def raw_last_observation(agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """The last observation of an episode reaches the critic without normalisation.

    It is undone with the statistics at the end of the rollout, which are those of its step but for
    the steps between; where it was clipped, the clip stays.
    """
    normalizer = agent.observation_normalizer
    if normalizer is None:
        raise ValueError("without normalisation there is nothing to forget")
    moments, seen = normalizer.moments, rollout.next_observations
    mean = torch.from_numpy(moments.mean).to(seen)
    std = torch.from_numpy(moments.variance).to(seen).sqrt()
    with torch.no_grad():
        values = agent.networks.value(seen * std + mean)
    return _at_truncations(rollout, discount, values)


def target_without_bootstrap(agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """The advantage bootstraps at a time limit, the value target does not."""
    wrong = truncation_as_termination(agent, rollout, discount)
    return discount.of(rollout)._replace(returns=wrong.returns)


def advantage_without_bootstrap(agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """The value target bootstraps at a time limit, the advantage does not."""
    wrong = truncation_as_termination(agent, rollout, discount)
    return discount.of(rollout)._replace(advantages=wrong.advantages)


def phantom_rows(_agent: Agent, rollout: Rollout, discount: Discount) -> Estimate:
    """The reset rows of NEXT_STEP mode, in which nobody acted, are learned from."""
    return discount.of(replace(rollout, valid=torch.ones_like(rollout.valid)))


def _at_truncations(rollout: Rollout, discount: Discount, values: Tensor) -> Estimate:
    swapped = rollout.truncated & ~rollout.terminated
    next_values = torch.where(swapped, values, rollout.next_values)
    return discount.of(replace(rollout, next_values=next_values))._replace(rollout=rollout)
