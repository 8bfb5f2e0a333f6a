"""Starting a run from another run's agent: what is kept, what starts anew, and what cannot be."""

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ppo.agent import Agent
from ppo.config import Config, from_mapping
from ppo.distributions import CategoricalHead, GaussianHead, Head
from ppo.errors import UserError
from ppo.rundir import RunDirectory
from ppo.storage import damage_named, read_checkpoint

Reset = Literal["critic", "normalizers", "reward-normalizer"]

_CRITIC = "the critic"
_OBSERVATIONS = "the statistics of observations"
_REWARDS = "the statistics of rewards"
_ALWAYS_NEW = ("optimiser", "counters", "schedules", "environments")


@dataclass(frozen=True)
class Ancestor:
    """The agent that a run starts from.

    Attributes:
        agent: of the other run.
        config: of the other run.
        file: the checkpoint that it came from.
        env_steps: that it had been trained for.
        resets: what is not taken over.
    """

    agent: Agent
    config: Config
    file: Path
    env_steps: int
    resets: frozenset[Reset]

    @classmethod
    def read(cls, source: str | Path, resets: Collection[Reset] = ()) -> "Ancestor":
        """The last agent of a run, or the one in a checkpoint.

        Args:
            source: a run's folder or a checkpoint file.
            resets: `critic` starts anew, `normalizers` forgets the statistics of observations and
                rewards, `reward-normalizer` those of rewards alone.

        Raises:
            UserError: if there is no such run or checkpoint, or it cannot be read.
        """
        path = Path(source)
        file = path if path.is_file() else RunDirectory.open(path).checkpoint("last")
        stored = read_checkpoint(file)
        with damage_named(str(file)):
            config = from_mapping(stored["config"], source=str(file))
            agent = Agent.from_state(stored["agent"], config, torch.device("cpu"))
            env_steps = int(stored["counters"]["env_steps"])
        return cls(agent, config, file, env_steps, frozenset(resets))

    def check_networks(self, config: Config) -> None:
        """Refuse what can be seen from the two configurations alone.

        Raises:
            UserError: if the networks have other shapes, or see observations otherwise; both named.
        """
        for key in ("hidden_sizes", "activation"):
            theirs, ours = getattr(self.config.policy, key), getattr(config.policy, key)
            if theirs != ours:
                raise self._unlike(f"policy.{key} {_plain(theirs)}", _plain(ours))
        theirs, ours = self.config.normalize.observations, config.normalize.observations
        if theirs != ours:
            raise self._unlike(f"normalize.observations {_plain(theirs)}", _plain(ours))

    def hand_down(self, agent: Agent, config: Config) -> str:
        """Give a fresh agent what it inherits; returns in words what is kept and what is not.

        Raises:
            UserError: if the spaces differ; both are named.
        """
        self._check_spaces(agent, config)
        keeps = self._keeps(agent)
        source, target = self.agent.networks, agent.networks
        target.actor.load_state_dict(source.actor.state_dict())
        target.log_std.data.copy_(source.log_std.data)
        if keeps[_CRITIC]:
            target.critic.load_state_dict(source.critic.state_dict())
        for name, theirs, ours in (
            (_OBSERVATIONS, self.agent.observation_normalizer, agent.observation_normalizer),
            (_REWARDS, self.agent.reward_normalizer, agent.reward_normalizer),
        ):
            if theirs is not None and ours is not None and keeps[name]:
                ours.moments = deepcopy(theirs.moments)
        if agent.observation_normalizer is not None:
            agent.observation_normalizer.refresh()
        kept = ["the policy", *(name for name, keep in keeps.items() if keep)]
        new = [*(name for name, keep in keeps.items() if not keep), *_ALWAYS_NEW]
        return (
            f"starts from {self.file} (env step {self.env_steps:,}); kept: {', '.join(kept)}; new:"
            f" {', '.join(new)}"
        )

    def _keeps(self, agent: Agent) -> dict[str, bool]:
        """Of what the fresh agent has beside its policy, what it inherits."""
        keeps = {_CRITIC: "critic" not in self.resets}
        if agent.observation_normalizer is not None:
            keeps[_OBSERVATIONS] = "normalizers" not in self.resets
        if agent.reward_normalizer is not None:
            there = self.agent.reward_normalizer is not None
            keeps[_REWARDS] = there and not self.resets & {"normalizers", "reward-normalizer"}
        return keeps

    def _check_spaces(self, agent: Agent, config: Config) -> None:
        theirs, ours = self.agent, agent
        if theirs.observation_size != ours.observation_size:
            raise self._unlike(
                f"observations of {theirs.observation_size} numbers",
                f"{ours.observation_size}, those of {config.env.id}",
            )
        if not _same_head(theirs.head, ours.head):
            raise self._unlike(
                f"the actions {_describe(theirs.head)}",
                f"{_describe(ours.head)}, those of {config.env.id}",
            )

    def _unlike(self, theirs: str, ours: str) -> UserError:
        return UserError(f"--from {self.file}: that agent has {theirs}, but this run has {ours}")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _same_head(one: Head, other: Head) -> bool:
    if isinstance(one, GaussianHead) and isinstance(other, GaussianHead):
        return np.array_equal(one.low, other.low) and np.array_equal(one.high, other.high)
    if isinstance(one, CategoricalHead) and isinstance(other, CategoricalHead):
        return one.sizes == other.sizes and np.array_equal(one.start, other.start)
    return False


def _describe(head: Head) -> str:
    if isinstance(head, GaussianHead):
        bounds = f"[{np.min(head.low):g}, {np.max(head.high):g}]"
        return f"Box of {head.n_outputs} in {bounds}"
    return f"choices of {list(head.sizes)} from {head.start.ravel().tolist()}"
