"""Running statistics of observations and rewards, in float64.

The maths is Welford's for batches (Chan, Golub and LeVeque 1979), which does not cancel where a
sum of squares would.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]

VARIANCE_EPSILON = 1e-8


@dataclass
class RunningMoments:
    """Mean and (population) variance of everything seen so far.

    Attributes:
        mean: [D].
        variance: [D]; ones until something has been seen.
        count: rows seen.
    """

    mean: Float64
    variance: Float64
    count: int = 0

    @classmethod
    def of_size(cls, size: int) -> "RunningMoments":
        """Nothing seen yet."""
        return cls(mean=np.zeros(size), variance=np.ones(size))

    def update(self, batch: NDArray[np.floating]) -> None:
        """Take in rows [n, D]; n may be 0."""
        n = batch.shape[0]
        if n == 0:
            return
        rows = batch.astype(np.float64, copy=False)
        batch_mean = rows.sum(axis=0) / n
        centred = rows - batch_mean
        batch_m2 = np.einsum("nd,nd->d", centred, centred)
        total = self.count + n
        shift = batch_mean - self.mean
        m2 = self.variance * self.count + batch_m2 + shift * shift * (self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.variance = m2 / total
        self.count = total


@dataclass
class ObservationNormalizer:
    """Centres and scales observations with the statistics of those acted on."""

    moments: RunningMoments
    clip: float

    def __post_init__(self) -> None:
        self.refresh()

    def update(self, observations: NDArray[np.floating]) -> None:
        """Take in the observations [n, D] of rows in which somebody is about to act."""
        self.moments.update(observations)
        self.refresh()

    def __call__(self, observations: NDArray[np.floating]) -> Float32:
        """Normalised and clipped to [-clip, clip], float32, in the shape [..., D] given."""
        scaled = (observations - self.moments.mean) * self._inverse_std
        # Twice as fast as np.clip on arrays this small.
        np.maximum(scaled, -self.clip, out=scaled)
        np.minimum(scaled, self.clip, out=scaled)
        return scaled.astype(np.float32)

    def refresh(self) -> None:
        """Derive the scale from the moments; after these were replaced, too."""
        self._inverse_std = 1.0 / np.sqrt(self.moments.variance + VARIANCE_EPSILON)


@dataclass
class RewardNormalizer:
    """Scales rewards by the standard deviation of the discounted return; never centres them."""

    moments: RunningMoments
    clip: float
    gamma: float

    def update(self, discounted_returns: Float64) -> None:
        """Take in the accumulators [n] of the rows that were acted in."""
        self.moments.update(discounted_returns[:, None])

    def __call__(self, rewards: Float64) -> Float64:
        """Scaled and clipped to [-clip, clip], in the shape given."""
        std = math.sqrt(float(self.moments.variance[0]) + VARIANCE_EPSILON)
        return np.minimum(np.maximum(rewards / std, -self.clip), self.clip)
