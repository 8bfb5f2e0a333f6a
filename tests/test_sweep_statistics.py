"""Statistics of the report against independent calculations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ppo.sweep.statistics import (
    curve_interval,
    difference,
    iqm,
    mean_of,
    performance_profile,
    probability_of_improvement,
    seeds_to_separate,
    summarise,
)

A = [3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0, 6.0]
B = [2.0, 7.0, 1.0, 8.0, 2.5, 8.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("scores", "middle"),
    [([1, 2, 3, 4], 2.5), ([100, 2, 3, -50], 2.5), ([1, 2, 3, 4, 5, 6, 7, 100], 4.5), ([7], 7)],
)
def test_the_iqm_is_the_mean_of_the_middle_half(scores, middle):
    assert iqm(scores) == middle


def test_a_summary_says_what_numpy_says():
    summary = summarise(A)
    assert summary.n == 8
    assert summary.mean == pytest.approx(np.mean(A))
    assert summary.std == pytest.approx(np.std(A, ddof=1))
    assert summary.iqm == pytest.approx(np.mean(sorted(A)[2:6]))


def test_one_run_has_no_spread_and_none_at_all_is_refused():
    assert math.isnan(summarise([1.0]).std)
    with pytest.raises(ValueError, match="no scores"):
        summarise([])


def test_there_is_no_interval_below_five_seeds():
    assert summarise(A[:4]).interval is None
    assert summarise(A[:5]).interval is not None
    assert difference(A, B[:4]) is None
    assert mean_of([A, B[:4]]) is None
    assert curve_interval([A] * 4) is None


def test_the_interval_of_a_mean_is_that_of_all_resamples():
    """Five scores have 5^5 resamples, which can be counted one by one."""
    scores = A[:5]
    means = [np.mean(drawn) for drawn in itertools.product(scores, repeat=5)]
    interval = summarise(scores).interval
    assert interval == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.12)
    low, high = curve_interval([[score, 2 * score] for score in scores])
    assert low == pytest.approx([np.quantile(means, 0.025) * k for k in (1, 2)], abs=0.2)
    assert high == pytest.approx([np.quantile(means, 0.975) * k for k in (1, 2)], abs=0.2)


def test_the_interval_of_a_difference_is_welchs():
    """Worked by hand: variances of the means, and the degrees of freedom of Satterthwaite."""
    x, y = [0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 3.0, 6.0, 6.0]
    of_x, of_y = 2.5 / 5, 9.0 / 5
    degrees = (of_x + of_y) ** 2 / ((of_x**2 + of_y**2) / 4)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(of_x + of_y)
    assert difference(x, y) == pytest.approx((-1.0 - half, -1.0 + half))


def test_samples_without_spread_differ_by_what_they_differ():
    assert difference([3.0] * 5, [1.0] * 5) == (2.0, 2.0)


def test_tasks_are_resampled_apart():
    """Within each task all scores are alike: nothing is uncertain, though the tasks differ."""
    assert mean_of([[1.0] * 5, [9.0] * 5]) == (5.0, 5.0)


def test_the_probability_of_improvement_is_the_mann_whitney_statistic():
    probability, interval = probability_of_improvement([(A, B)])
    assert probability == pytest.approx(stats.mannwhitneyu(A, B).statistic / (len(A) * len(B)))
    assert interval.low < probability < interval.high


def test_the_probability_of_improvement_is_a_mean_over_tasks():
    assert probability_of_improvement([([1, 2], [0, 0]), ([1, 1], [1, 1])])[0] == 0.75


scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(scores, scores)
def test_the_probability_of_improvement_counts_pairs(x, y):
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in x for b in y]
    assert probability_of_improvement([(x, y)])[0] == pytest.approx(sum(pairs) / len(pairs))


def test_a_performance_profile_is_the_share_above_each_mark():
    assert performance_profile([[0, 1], [1, 3]], [0, 0.5, 2, 3]).tolist() == [0.75, 0.75, 0.25, 0]


def test_seeds_to_separate_are_those_of_the_textbook():
    """For an effect of 0.5 standard deviations and power 0.8 tables give 64 a side, for 1 17."""
    base = np.tile([-1.0, 1.0], 500) * math.sqrt(999 / 1000)
    assert seeds_to_separate(base, base + 0.5) == 64
    assert seeds_to_separate(base, base + 1.0) == 17
    assert seeds_to_separate(base, base) is None
    assert seeds_to_separate([1.0], [2.0, 3.0]) is None
    assert seeds_to_separate([1.0, 1.0], [2.0, 2.0]) == 2
