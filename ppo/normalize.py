"""Running statistics of observations and rewards, in float64.

The maths is Welford's for batches (Chan, Golub and LeVeque 1979), which does not cancel where a
sum of squares would.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Number = TypeVar("Number", float, Float64)

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
        batch_mean = np.add.reduce(rows, axis=0) / n
        centred = rows - batch_mean
        batch_m2 = np.einsum("nd,nd->d", centred, centred)
        self.mean, self.variance, self.count = merge_moments(
            self.mean, self.variance, self.count, batch_mean, batch_m2, n
        )


def merge_moments(
    mean: Number, variance: Number, count: int, new_mean: Number, new_m2: Number, n: int
) -> tuple[Number, Number, int]:
    """Moments of `count` rows and of n > 0 more together: (mean, variance, count + n).

    Args:
        mean: of the rows so far; so are `variance` and `count`.
        new_mean: of the further rows.
        new_m2: sum of the further rows' squared distances from their mean.
    """
    total = count + n
    shift = new_mean - mean
    m2 = variance * count + new_m2 + shift * shift * (count * n / total)
    return mean + shift * (n / total), m2 / total, total


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

    def __call__(
        self, rewards: Float64, discounted_returns: Float64, acted: NDArray[np.bool_]
    ) -> Float64:
        """Scaled and clipped to [-clip, clip]; all arguments and the result are [T, N].

        The statistics take in the discounted returns of one vector step after the other, those of
        the rows that were acted in, and what they are then scales the rewards of that step.
        """
        std = np.sqrt(self._variances(discounted_returns, acted) + VARIANCE_EPSILON)
        return np.clip(rewards / std[:, None], -self.clip, self.clip)

    def _variances(self, discounted_returns: Float64, acted: NDArray[np.bool_]) -> Float64:
        """Variance of all returns up to and including each vector step, [T]."""
        counts = acted.sum(axis=1)
        means = np.where(acted, discounted_returns, 0.0).sum(axis=1) / np.maximum(counts, 1)
        centred = np.where(acted, discounted_returns - means[:, None], 0.0)
        squares = np.einsum("tn,tn->t", centred, centred)
        # In plain numbers: arrays of one would cost ten times as much.
        steps = zip(counts.tolist(), means.tolist(), squares.tolist(), strict=True)
        (mean,), (variance,) = self.moments.mean.tolist(), self.moments.variance.tolist()
        count, variances = self.moments.count, np.empty(len(counts))
        for t, (n, new_mean, new_m2) in enumerate(steps):
            if n:
                mean, variance, count = merge_moments(mean, variance, count, new_mean, new_m2, n)
            variances[t] = variance
        self.moments = RunningMoments(np.array([mean]), np.array([variance]), count)
        return variances
