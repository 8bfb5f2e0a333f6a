"""Statistics of a few noisy runs, after Agarwal et al. 2021 (arXiv:2108.13264).

A score is one number of one run; a sample is the scores of one cell's runs over seeds. Where there
are several tasks, a sample per task goes in, and seeds are drawn anew within each task.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

FEWEST_SEEDS = 5  # below this, a bootstrap draws from too few runs to mean anything
CONFIDENCE = 0.95
POWER = 0.8
RESAMPLES = 10_000
MOST_SEEDS = 1_000
_SEED = 0  # of the resampling: the same runs give the same report

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A 95% interval."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """The value lies in it."""
        return self.low <= value <= self.high


class Summary(NamedTuple):
    """One sample in numbers.

    Attributes:
        n: runs.
        mean: of the scores.
        std: with n - 1; NaN for one run.
        iqm: interquartile mean.
        interval: of the mean; None below `FEWEST_SEEDS` runs.
    """

    n: int
    mean: float
    std: float
    iqm: float
    interval: Interval | None


def iqm(scores: ArrayLike, axis: int | None = None) -> Any:
    """Mean of the middle half: a quarter of the scores is left out on either side."""
    return stats.trim_mean(scores, 0.25, axis=axis)


def summarise(scores: Sequence[float]) -> Summary:
    """The sample of one cell on one task.

    Raises:
        ValueError: if it is empty.
    """
    if not scores:
        raise ValueError("no scores to summarise")
    sample = np.asarray(scores, dtype=np.float64)
    std = float(sample.std(ddof=1)) if len(sample) > 1 else math.nan
    return Summary(len(sample), float(sample.mean()), std, float(iqm(sample)), mean_of([scores]))


def mean_of(samples: Sequence[Sequence[float]]) -> Interval | None:
    """Interval of the mean over all runs; stratified where several tasks' samples are given."""
    return _bootstrap(samples, lambda *drawn: np.concatenate(drawn, axis=-1).mean(axis=-1))


def iqm_of(samples: Sequence[Sequence[float]]) -> Interval | None:
    """Interval of the interquartile mean over all runs, stratified by task."""
    return _bootstrap(samples, lambda *drawn: iqm(np.concatenate(drawn, axis=-1), axis=-1))


def curve_interval(curves: Sequence[ArrayLike]) -> tuple[Array, Array] | None:
    """Interval of the mean curve at each point, [K] and [K]; None below `FEWEST_SEEDS` curves."""
    if len(curves) < FEWEST_SEEDS:
        return None
    lines = np.asarray(curves, dtype=np.float64)
    drawn = np.random.default_rng(_SEED).integers(len(lines), size=(RESAMPLES, len(lines)))
    weights = np.apply_along_axis(np.bincount, 1, drawn, minlength=len(lines)) / len(lines)
    low, high = np.quantile(weights @ lines, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], axis=0)
    return low, high


def difference(scores: Sequence[float], others: Sequence[float]) -> Interval | None:
    """Welch's interval of mean(scores) - mean(others); None below `FEWEST_SEEDS` runs on a side.

    Decisions are made by it: a bootstrap of five runs draws intervals that are too narrow for them.
    """
    if min(len(scores), len(others)) < FEWEST_SEEDS:
        return None
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if x.std() == y.std() == 0.0:  # Welch's degrees of freedom would be 0 / 0
        return Interval(float(x[0] - y[0]), float(x[0] - y[0]))
    found = stats.ttest_ind(x, y, equal_var=False).confidence_interval(CONFIDENCE)
    return Interval(float(found.low), float(found.high))


def probability_of_improvement(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[float, Interval | None]:
    """How likely a run of one cell beats one of another, drawn at random; 0.5 where they are alike.

    Args:
        pairs: for every task, the scores of the one cell and of the other.

    Returns:
        Mean over tasks of P(X > Y) + P(X = Y) / 2, and its interval.
    """

    def chance(*drawn: Array) -> Array:
        tasks = zip(drawn[::2], drawn[1::2], strict=True)
        mean: Array = np.mean([_beats(x, y) for x, y in tasks], axis=0)
        return mean

    flat = [sample for pair in pairs for sample in pair]
    return float(chance(*[np.asarray(s, dtype=np.float64) for s in flat])), _bootstrap(flat, chance)


def performance_profile(samples: Sequence[Sequence[float]], thresholds: ArrayLike) -> Array:
    """Share of runs whose (normalised) score exceeds each threshold, mean over tasks, [K]."""
    marks = np.asarray(thresholds, dtype=np.float64)
    shares = [(np.asarray(sample)[:, None] > marks).mean(axis=0) for sample in samples]
    profile: Array = np.mean(shares, axis=0)
    return profile


def seeds_to_separate(scores: Sequence[float], others: Sequence[float]) -> int | None:
    """Runs of each cell that a two-sided t-test at 5% needs to see this difference, 4 times in 5.

    The means and the pooled standard deviation of these runs are taken for the truth, so it is an
    order of magnitude. None where more than `MOST_SEEDS` would be needed, or it cannot be said.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if len(x) < 2 or len(y) < 2:
        return None
    degrees = len(x) + len(y) - 2
    pooled = math.sqrt(((x.var() * len(x)) + (y.var() * len(y))) / degrees)
    gap = abs(float(x.mean() - y.mean()))
    if gap == 0.0:
        return None
    if pooled == 0.0:
        return 2
    return next((n for n in range(2, MOST_SEEDS + 1) if _power(gap / pooled, n) >= POWER), None)


def _power(effect: float, n: int) -> float:
    """Of a two-sided two-sample t-test with n runs on either side, by the noncentral t."""
    degrees = 2 * n - 2
    shift = effect * math.sqrt(n / 2)
    critical = stats.t.ppf(0.5 + CONFIDENCE / 2, degrees)
    return float(stats.nct.sf(critical, degrees, shift) + stats.nct.cdf(-critical, degrees, shift))


def _beats(x: Array, y: Array) -> Array:
    """P(X > Y) + P(X = Y) / 2 over the last axis, by all pairs."""
    gaps = np.sign(x[..., :, None] - y[..., None, :])
    share: Array = (gaps.mean(axis=(-1, -2)) + 1.0) / 2.0
    return share


def _bootstrap(
    samples: Sequence[Sequence[float]], statistic: Callable[..., Any]
) -> Interval | None:
    """Percentile bootstrap; every sample is drawn from on its own."""
    if min(len(sample) for sample in samples) < FEWEST_SEEDS:
        return None

    def along(*drawn: Array, axis: int = -1) -> Any:  # noqa: ARG001 - scipy's way of asking
        return statistic(*drawn)

    found = stats.bootstrap(
        [np.asarray(sample, dtype=np.float64) for sample in samples],
        along,
        n_resamples=RESAMPLES,
        batch=1_000,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))
