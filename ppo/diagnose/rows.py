"""Rows of trajectories, one environment after the other, and the two gates of each."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ppo.gae import compute_gae

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """R rows, those of an environment in time order and side by side; [R] each.

    The last row of every environment is closed by one of its flags, so that no chain can run
    into another environment.

    Attributes:
        env: of the row.
        episode: of the row, counted within its environment.
        step: env step of the row within its environment.
        env_rewards: the environment's.
        rewards: the learner's, which the advantages are made of.
        values: V(s_t).
        next_values: V of the state that the row reached, before any reset.
        terminated: the task itself ended at this row.
        truncated: something outside of the task ended the episode.
        cut: the collector stopped while the episode went on.
        advantages: that came with the rows; None where none did.
        targets: value targets that came with them; None where none did.
    """

    env: Integers
    episode: Integers
    step: Integers
    env_rewards: Floats
    rewards: Floats
    values: Floats
    next_values: Floats
    terminated: Flags
    truncated: Flags
    cut: Flags
    advantages: Floats | None = None
    targets: Floats | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def bootstraps(self) -> Flags:
        """The first gate: the state that was reached has a future."""
        return ~self.terminated

    @property
    def continues(self) -> Flags:
        """The second gate: the next row is that future."""
        return ~(self.terminated | self.truncated | self.cut)

    @property
    def successor_values(self) -> Floats:
        """V(s) of the row below in memory, whatever it belongs to; 0 below the last."""
        return np.append(self.values[1:], 0.0)

    def close_environments(self) -> "Rows":
        """The same, with the last row of every environment cut where nothing else closed it."""
        last = np.append(self.env[1:] != self.env[:-1], True)
        return replace(self, cut=self.cut | (last & self.continues))


class Estimate(NamedTuple):
    """Advantages and value targets of all rows, [R] each."""

    advantages: Floats
    targets: Floats


def estimate(rows: Rows, *, gamma: float, gae_lambda: float) -> Estimate:
    """What the trainer's own estimator makes of the rows, in float64.

    Raises:
        ValueError: as `ppo.gae.compute_gae`.
    """

    def column(values: Floats | Flags) -> torch.Tensor:
        return torch.from_numpy(values[:, None].copy())

    advantages, targets = compute_gae(
        column(rows.rewards),
        column(rows.values),
        column(np.where(rows.terminated, 0.0, rows.next_values)),
        column(rows.terminated),
        column(rows.truncated),
        gamma=gamma,
        gae_lambda=gae_lambda,
        cut=column(rows.cut),
    )
    return Estimate(advantages[:, 0].numpy(), targets[:, 0].numpy())


def backward_sums(terms: Floats, decay: NDArray[np.floating[Any]]) -> Floats:
    """The solution of x_t = terms_t + decay_t * x_{t+1}, row by row from the end, [R]."""
    sums = np.empty_like(terms)
    following = 0.0
    for t in reversed(range(len(terms))):
        following = sums[t] = terms[t] + decay[t] * following
    return sums
