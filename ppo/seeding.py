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


_STREAM_BITS = 7


def _sequence(seed: int, stream: Stream, attempt: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed, spawn_key=(int(stream), attempt))


def env_seeds(seed: int, stream: Stream, n_envs: int, *, attempt: int = 0) -> list[int]:
    """One seed per environment, to be given on the first reset only.

    Streams are hashed, not counted up from the seed: no environment of one run equals one of
    the run with the next seed. `attempt` counts the times that a run was resumed, so that
    environments whose state cannot be restored start on seeds not used before.
    """
    # The lowest bits name the stream, so that no two streams of a run share a seed; within a
    # stream, a word that hashes to a seed already drawn is passed over.
    words = _sequence(seed, stream, attempt).generate_state(2 * n_envs + 64, dtype=np.uint32)
    seeds = dict.fromkeys((int(word) & ~_STREAM_BITS) | int(stream) for word in words)
    return list(seeds)[:n_envs]


def torch_generator(seed: int, stream: Stream) -> torch.Generator:
    """A generator for one stream, on the CPU, so that a seed means the same on every device."""
    word = _sequence(seed, stream, 0).generate_state(1, dtype=np.uint64)[0]
    # manual_seed takes a signed 64-bit integer.
    return torch.Generator().manual_seed(int(word >> np.uint64(1)))
