"""Independent random streams from one seed.

Every consumer of randomness has a stream of its own, so that switching one on or off (an
evaluation, say) leaves every other one as it was.
"""

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Who draws. The numbers are part of what a seed means: never renumber."""

    INITIALISATION = 0
    ACTIONS = 1
    PERMUTATIONS = 2
    TRAINING_ENVS = 3
    EVALUATION_ENVS = 4
    EVALUATION_ACTIONS = 5
    SELECTION_ENVS = 6


def _sequence(seed: int, stream: Stream, attempt: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=(int(stream), attempt))


def env_seeds(seed: int, stream: Stream, n_envs: int, *, attempt: int = 0) -> list[int]:
    """One seed per environment, to be given on the first reset only.

    Streams are hashed, not counted up from the seed: no environment of one run equals one of
    the run with the next seed. `attempt` counts the times that a run was resumed, so that
    environments whose state cannot be restored start on seeds not used before.
    """
    words = _sequence(seed, stream, attempt).generate_state(n_envs, dtype=np.uint32)
    return [int(word) for word in words]


def torch_generator(
    seed: int, stream: Stream, *, attempt: int = 0, device: str | torch.device = "cpu"
) -> torch.Generator:
    """A generator for one stream."""
    word = _sequence(seed, stream, attempt).generate_state(1, dtype=np.uint64)[0]
    # manual_seed takes a signed 64-bit integer.
    return torch.Generator(device=device).manual_seed(int(word >> np.uint64(1)))
