"""What one iteration collects, and the rows of it that are learned from."""

from dataclasses import dataclass, fields
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Rollout:
    """T vector steps of N environments, time-major. Nothing in it is ever folded or edited.

    Attributes:
        observations: as the network saw them, float32 [T, N, D].
        next_observations: the state each row really reached, before any reset, normalised like
            every other input of the network, float32 [T, N, D].
        actions: as sampled, unclipped, [T, N, A].
        log_probs: log pi_old(a|s), [T, N].
        rewards: the environment's, untouched, [T, N].
        learner_rewards: scaled where reward normalisation is on, [T, N].
        values: V(s_t) of the snapshot that collected, [T, N].
        next_values: V of `next_observations`, by the same snapshot, [T, N].
        terminated: the task itself ended at this row, bool [T, N].
        truncated: something outside the task ended the episode at this row, bool [T, N].
        valid: somebody acted in this row; False for the reset steps of NEXT_STEP, bool [T, N].
    """

    observations: Tensor
    next_observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    learner_rewards: Tensor
    values: Tensor
    next_values: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor

    def __post_init__(self) -> None:
        shape = self.rewards.shape
        for field in fields(self):
            tensor: Tensor = getattr(self, field.name)
            if tensor.shape[:2] != shape:
                raise ValueError(
                    f"{field.name} is {list(tensor.shape)} in a rollout of {list(shape)}"
                )

    @property
    def n_valid(self) -> int:
        """M, the number of rows in which somebody acted."""
        return int(self.valid.sum())


class Batch(NamedTuple):
    """Rows to learn from, in any order: [M, ...]; a minibatch has the same shape, [B, ...]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    @property
    def size(self) -> int:
        """M."""
        return self.log_probs.shape[0]

    def rows(self, index: Tensor) -> "Batch":
        """The rows that `index` (int64) names, in its order."""
        return Batch(*(tensor[index] for tensor in self))


def flatten_valid(rollout: Rollout, advantages: Tensor, returns: Tensor) -> Batch:
    """The rows in which somebody acted, with their advantages and targets [T, N] -> [M, ...]."""
    columns = (
        rollout.observations,
        rollout.actions,
        rollout.log_probs,
        rollout.values,
        advantages,
        returns,
    )
    if bool(rollout.valid.all()):
        return Batch(*(column.flatten(0, 1) for column in columns))
    return Batch(*(column[rollout.valid] for column in columns))
