"""Acting in the environments, and keeping what really happened, row by row."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppo.acting import ActingPolicy
from ppo.agent import Agent
from ppo.envs import EnvBatch, EnvStep
from ppo.finite import check_finite, check_policy
from ppo.rollout import Rollout
from ppo.statistics import EpisodeAccumulators, EpisodeSummary
from ppo.stopwatch import Stopwatch
from ppo.verify import Witness, check_rollout


@dataclass(frozen=True)
class Collected:
    """A rollout, the env steps that it cost, and the episodes that ended in it."""

    rollout: Rollout
    env_steps: int
    episodes: list[EpisodeSummary]


@dataclass
class _Columns:
    """A rollout while it grows: one [N, ...] entry a vector step."""

    observations: list[NDArray[Any]] = field(default_factory=list)
    actions: list[NDArray[Any]] = field(default_factory=list)
    rewards: list[NDArray[Any]] = field(default_factory=list)
    terminated: list[NDArray[Any]] = field(default_factory=list)
    truncated: list[NDArray[Any]] = field(default_factory=list)
    valid: list[NDArray[Any]] = field(default_factory=list)
    arrivals: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def next_observations(self) -> NDArray[np.float32]:
        """Normalised states that the rows reached, [T, N, D].

        A row that goes on reached what the network saw next. A row that ended, and every row of
        the last vector step, reached a state that the network never acted in: `arrivals` has it.
        """
        reached = np.empty((len(self.observations), *self.observations[0].shape), np.float32)
        for t, seen in enumerate(self.observations[1:]):  # none, where one vector step is all
            reached[t] = seen
        for t, arrived in self.arrivals.items():
            closes = self.terminated[t] | self.truncated[t]
            if t == len(self.observations) - 1:
                closes = np.ones_like(closes)
            reached[t, closes] = arrived[closes]
        return reached


class RolloutCollector:
    """Steps a batch of environments with an agent.

    It owns where the environments stand: the observation shown now, whether the next row is a
    reset step, and the episodes' accumulators. The agent's normalisers learn while it collects;
    its networks do not move.

    Args:
        envs: the environments; `reset` must be called before `collect`.
        generator: of the actions' noise.
        env_steps: done before, in all environments together.
        verify: hold every rollout against the contract (`ppo.check_rollout`).
        stopwatch: is switched to what is being done.
    """

    def __init__(
        self,
        envs: EnvBatch,
        *,
        generator: torch.Generator,
        env_steps: int = 0,
        verify: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._stopwatch = stopwatch or Stopwatch("collecting")
        self.envs = envs
        self.generator = generator
        self.env_steps = env_steps
        self._verify = verify
        self._accumulators = EpisodeAccumulators.of_size(envs.n_envs)
        self._observations: NDArray[Any] = np.zeros((envs.n_envs, envs.observation_size))
        self._acting = np.ones(envs.n_envs, dtype=np.bool_)

    def reset(self, seeds: list[int]) -> None:
        """Start every environment; seeds are given here and never again."""
        self._observations = self.envs.reset(seeds)
        self._acting = np.ones(self.envs.n_envs, dtype=np.bool_)
        self._accumulators = EpisodeAccumulators.of_size(self.envs.n_envs)
        check_finite("observation", self._observations, env_step=self.env_steps)

    def state(self) -> dict[str, Any] | None:
        """Where the environments and their episodes stand; None where these cannot say."""
        envs = self.envs.state()
        return None if envs is None else {"envs": envs, "episodes": self._accumulators.state()}

    def load_state(self, state: dict[str, Any] | None) -> bool:
        """Go on from what `state` gave; False where that cannot be, and `reset` must be called."""
        observations = None if state is None else self.envs.load_state(state["envs"])
        if state is None or observations is None:
            return False
        self._observations = observations
        self._acting = np.ones(self.envs.n_envs, dtype=np.bool_)
        self._accumulators = EpisodeAccumulators.from_state(state["episodes"])
        return True

    def collect(self, agent: Agent, n_steps: int, *, env_step_budget: int) -> Collected:
        """Up to `n_steps` vector steps; fewer where the budget, in env steps, is reached first.

        Raises:
            NonFiniteError: if an environment returns a number that is not finite; the message
                names the environment, the env step and the quantity.
            EnvironmentFault: if an environment fails or dies.
            ContractError: if `verify` is on and a row breaks the contract.
        """
        columns = _Columns()
        episodes: list[EpisodeSummary] = []
        witness = Witness(agent) if self._verify else None
        start = self.env_steps
        policy = agent.acting_policy()
        noise = agent.head.noise((n_steps, self.envs.n_envs), self.generator)
        for t in range(n_steps):
            self._see(agent)
            if witness:
                witness.before_acting()
            step = self._act(agent, policy, noise[t], columns)
            last = t == n_steps - 1 or self.env_steps - start >= env_step_budget
            ended = step.terminated | step.truncated
            any_ended = ended.any()
            if last or any_ended:
                columns.arrivals[t] = agent.normalize(step.reached)
            if witness:
                witness.saw_step(step, ended | last)
            self._accumulators.add(step)
            if any_ended:
                episodes += self._accumulators.summaries(step, ended, self.env_steps)
                self._accumulators.clear(ended)
            self._observations = step.observations
            self._acting = ~ended if self.envs.inserts_reset_steps else self._acting
            if last:
                break
        self._stopwatch.switch("estimating")
        rollout = _assemble(agent, columns, self._learner_rewards(agent, columns))
        if witness:
            check_rollout(rollout, witness.reached())
        return Collected(rollout, self.env_steps - start, episodes)

    def _see(self, agent: Agent) -> None:
        """Take the observations that will be acted on into the statistics."""
        self._stopwatch.switch("normalising")
        if agent.observation_normalizer is not None:
            acting = self._acting
            shown = self._observations if acting.all() else self._observations[acting]
            agent.observation_normalizer.update(shown)

    def _act(
        self, agent: Agent, policy: ActingPolicy, noise: NDArray[np.float32], columns: _Columns
    ) -> EnvStep:
        seen = agent.normalize(self._observations)
        self._stopwatch.switch("acting")
        outputs = policy.outputs(seen)
        check_policy(outputs, env_step=self.env_steps)
        actions = policy.actions(outputs, noise)
        sent = agent.head.to_env(actions)
        self._stopwatch.switch("stepping")
        step = self.envs.step(sent)
        self._stopwatch.switch("collecting")
        self.env_steps += int(np.count_nonzero(step.acted))
        check_finite("reward", step.rewards, env_step=self.env_steps)
        check_finite("observation", step.reached, env_step=self.env_steps)
        if step.observations is not step.reached:
            check_finite("observation", step.observations, env_step=self.env_steps)
        columns.observations.append(seen)
        columns.actions.append(actions)
        columns.rewards.append(step.rewards)
        columns.terminated.append(step.terminated)
        columns.truncated.append(step.truncated)
        columns.valid.append(step.acted)
        return step

    def _learner_rewards(self, agent: Agent, columns: _Columns) -> NDArray[np.float64]:
        """Rewards as they are learned from, [T, N]; nothing that acts has to know them."""
        rewards, normalizer = np.stack(columns.rewards), agent.reward_normalizer
        if normalizer is None:
            return rewards
        ended = np.stack(columns.terminated) | np.stack(columns.truncated)
        discounted = self._accumulators.discount(rewards, ended, normalizer.gamma)
        return normalizer(rewards, discounted, np.stack(columns.valid))


def _assemble(agent: Agent, columns: _Columns, learner_rewards: NDArray[np.float64]) -> Rollout:
    """Everything the networks have to say about the rows, in one batch: they have not moved."""
    device = agent.device

    def tensor(rows: list[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.stack(rows)).to(device)

    observations = tensor(columns.observations)
    next_observations = torch.from_numpy(columns.next_observations()).to(device)
    actions = tensor(columns.actions)
    with torch.no_grad():
        policy, values = agent.networks(observations.flatten(0, 1))
        log_probs = policy.log_prob(actions.flatten(0, 1))
        next_values = agent.networks.value(next_observations.flatten(0, 1))
    shape = observations.shape[:2]
    return Rollout(
        observations=observations,
        next_observations=next_observations,
        actions=actions,
        log_probs=log_probs.view(shape),
        rewards=tensor(columns.rewards).float(),
        learner_rewards=torch.from_numpy(learner_rewards).to(device).float(),
        values=values.view(shape),
        next_values=next_values.view(shape),
        terminated=tensor(columns.terminated),
        truncated=tensor(columns.truncated),
        valid=tensor(columns.valid),
    )
