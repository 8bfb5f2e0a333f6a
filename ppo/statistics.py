"""Episode statistics: the environment's own rewards, summed over the rows that were acted in."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppo.envs import EnvStep
from ppo.episodes import Episode

EPISODE_WINDOW = 100


@dataclass
class EpisodeAccumulators:
    """What is known of each environment's episode so far, [N] each.

    Attributes:
        returns: sum of the environment's rewards.
        lengths: env steps.
        discounted: the discounted return accumulator of the reward normaliser, which is taken
            on by `discount`, a rollout at a time, and not by `add` and `clear`.
        terms: sums of the reward's terms, by name.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    discounted: NDArray[np.float64]
    terms: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def of_size(cls, n_envs: int) -> "EpisodeAccumulators":
        """All episodes about to start."""
        return cls(np.zeros(n_envs), np.zeros(n_envs, dtype=np.int64), np.zeros(n_envs))

    def add(self, step: EnvStep) -> None:
        """Take in one vector step; reset rows bring no reward and count for nothing."""
        self.returns += step.rewards
        self.lengths += step.acted
        for name, values in step.reward_terms.items():
            self.terms[name] = self.terms.get(name, 0.0) + values

    def discount(
        self, rewards: NDArray[np.float64], ended: NDArray[np.bool_], gamma: float
    ) -> NDArray[np.float64]:
        """Take a whole rollout, [T, N], into the discounted returns; these row by row, [T, N]."""
        returns = np.empty_like(rewards)
        decay = np.where(ended, 0.0, gamma)
        running = self.discounted * gamma
        for t, reward in enumerate(rewards):
            returns[t] = running + reward
            running = returns[t] * decay[t]
        self.discounted = np.where(ended[-1], 0.0, returns[-1])
        return returns

    def summaries(
        self, step: EnvStep, ended: NDArray[np.bool_], env_steps: int
    ) -> list["EpisodeSummary"]:
        """The episodes that ended in this vector step; terminated wins over truncated."""
        return [
            EpisodeSummary(
                Episode(
                    env_steps=env_steps,
                    env=int(env),
                    episode_return=float(self.returns[env]),
                    length=int(self.lengths[env]),
                    ended="terminated" if step.terminated[env] else "truncated",
                ),
                {name: float(values[env]) for name, values in self.terms.items()},
            )
            for env in np.flatnonzero(ended)
        ]

    def state(self) -> dict[str, Any]:
        """Copies, as arrays."""
        return {
            "returns": self.returns.copy(),
            "lengths": self.lengths.copy(),
            "discounted": self.discounted.copy(),
            "terms": {name: values.copy() for name, values in self.terms.items()},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "EpisodeAccumulators":
        """What `state` gave."""
        return cls(**state)

    def clear(self, ended: NDArray[np.bool_]) -> None:
        """Start again where an episode ended, whichever way."""
        for values in (self.returns, self.lengths, *self.terms.values()):
            values[ended] = 0


@dataclass(frozen=True)
class EpisodeSummary:
    """One finished episode, with the sums of its reward's terms."""

    episode: Episode
    terms: dict[str, float]


class RecentEpisodes:
    """The last hundred episodes, as SB3's rollout statistics have them."""

    def __init__(self) -> None:
        self._episodes: deque[EpisodeSummary] = deque(maxlen=EPISODE_WINDOW)

    def __len__(self) -> int:
        return len(self._episodes)

    def extend(self, episodes: list[EpisodeSummary]) -> None:
        """Take in the episodes that just ended."""
        self._episodes.extend(episodes)

    def metrics(self) -> dict[str, float]:
        """Means over the window; empty before any episode has ended."""
        if not self._episodes:
            return {}
        records = [summary.episode for summary in self._episodes]
        means = {
            "rollout/ep_rew_mean": [record.episode_return for record in records],
            "rollout/ep_len_mean": [float(record.length) for record in records],
            "rollout/terminated_share": [float(record.ended == "terminated") for record in records],
            "rollout/truncated_share": [float(record.ended == "truncated") for record in records],
        }
        for summary in self._episodes:
            for name, value in summary.terms.items():
                means.setdefault(f"rollout/{name}", []).append(value)
        return {tag: float(np.mean(values)) for tag, values in means.items()}

    def state(self) -> list[dict[str, Any]]:
        """Plain Python, for a checkpoint."""
        return [
            {
                "env_steps": summary.episode.env_steps,
                "env": summary.episode.env,
                "return": summary.episode.episode_return,
                "length": summary.episode.length,
                "ended": summary.episode.ended,
                "terms": dict(summary.terms),
            }
            for summary in self._episodes
        ]

    def load_state(self, state: list[dict[str, Any]]) -> None:
        """What `state` gave."""
        self._episodes.clear()
        for row in state:
            episode = Episode(
                row["env_steps"], row["env"], row["return"], row["length"], row["ended"]
            )
            self._episodes.append(EpisodeSummary(episode, dict(row["terms"])))
