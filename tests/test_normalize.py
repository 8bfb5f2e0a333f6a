"""Running statistics against numpy over the whole, and what normalisers make of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppo.normalize import ObservationNormalizer, RewardNormalizer, RunningMoments
from tests.oracles import unhurried


def moments_of(*batches, size=1):
    moments = RunningMoments.of_size(size)
    for batch in batches:
        moments.update(np.asarray(batch).reshape(-1, size))
    return moments


def fixed(mean, variance, count=10):
    return RunningMoments(np.asarray(mean, float), np.asarray(variance, float), count)


# Moments


@given(st.lists(st.lists(st.floats(-1e4, 1e4), max_size=8), min_size=1, max_size=8))
@unhurried
def test_batches_add_up_to_the_whole(batches):
    moments = moments_of(*batches)
    rows = np.concatenate([np.asarray(batch, float) for batch in batches])
    assert moments.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(moments.mean, [rows.mean()], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(moments.variance, [rows.var()], rtol=1e-9, atol=1e-6)


def test_columns_are_independent():
    rows = np.random.default_rng(0).normal(size=(100, 3)) * [1, 10, 100] + [5, 0, -5]
    moments = moments_of(*np.array_split(rows, 7), size=3)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0))
    np.testing.assert_allclose(moments.variance, rows.var(axis=0))


def test_variance_does_not_cancel_at_a_large_mean():
    rows = (1e6 + np.tile([0, 1], 500)).astype(np.float32)
    for batches in (rows.reshape(1, -1), rows.reshape(-1, 2), rows.reshape(-1, 1)):
        moments = moments_of(*batches)
        np.testing.assert_allclose(moments.variance, [0.25], rtol=1e-9)
        np.testing.assert_allclose(moments.mean, [1e6 + 0.5], rtol=1e-12)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_constant_has_no_variance(batch):
    moments = moments_of(*[np.full(batch, 1800, dtype=np.float32)] * 500)
    assert moments.variance.tolist() == [0.0]
    assert moments.mean.tolist() == [1800.0]


def test_nothing_seen_is_mean_zero_and_variance_one():
    moments = RunningMoments.of_size(2)
    moments.update(np.empty((0, 2)))
    assert (moments.mean.tolist(), moments.variance.tolist()) == ([0, 0], [1, 1])
    assert moments.count == 0


def test_the_first_rows_leave_nothing_of_the_start():
    moments = moments_of([4.0])
    assert (moments.mean.tolist(), moments.variance.tolist(), moments.count) == ([4.0], [0.0], 1)


def test_an_empty_batch_changes_nothing():
    moments = moments_of([1.0, 2.0], [])
    assert (moments.mean.tolist(), moments.variance.tolist()) == ([1.5], [0.25])
    assert moments.count == 2


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float32, np.float64])
def test_statistics_are_float64_whatever_comes_in(dtype):
    moments = moments_of(np.array([100, 120, 110], dtype=dtype))
    assert moments.mean.dtype == moments.variance.dtype == np.float64
    assert float(moments.mean[0]) == pytest.approx(110)
    assert float(moments.variance[0]) == pytest.approx(200 / 3)


def test_update_leaves_the_batch_and_earlier_statistics_alone():
    moments = moments_of([1.0, 2.0])
    mean, variance = moments.mean, moments.variance
    batch = np.array([[5.0], [7.0]])
    moments.update(batch)
    assert batch.tolist() == [[5.0], [7.0]]
    assert (mean.tolist(), variance.tolist()) == ([1.5], [0.25])
    assert moments.mean.tolist() == [3.75]


# Observations


def test_observations_are_centred_and_scaled():
    normalizer = ObservationNormalizer(fixed([1, -2], [4, 0.25]), clip=10.0)
    normalised = normalizer(np.array([[3.0, -2.0], [1.0, -1.0]]))
    np.testing.assert_allclose(normalised, [[1, 0], [0, 2]], atol=1e-6)
    assert normalised.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("shape", [(2,), (3, 2), (4, 3, 2)])
def test_observations_keep_their_shape_and_become_float32(dtype, shape):
    normalizer = ObservationNormalizer(fixed([1, 1], [4, 4]), clip=10.0)
    observations = np.full(shape, 2, dtype=dtype)
    normalised = normalizer(observations)
    assert normalised.shape == shape
    assert normalised.dtype == np.float32
    np.testing.assert_allclose(normalised, 0.5)
    assert (observations == 2).all()


def test_observations_are_clipped():
    normalizer = ObservationNormalizer(fixed([0], [1]), clip=3.0)
    assert normalizer(np.array([[-50.0], [50.0]])).tolist() == [[-3.0], [3.0]]


def test_a_constant_observation_is_zero_and_a_surprise_is_clipped():
    normalizer = ObservationNormalizer(RunningMoments.of_size(1), clip=10.0)
    normalizer.update(np.full((8, 1), 1800.0))
    assert normalizer(np.array([1800.0])).tolist() == [0.0]
    assert normalizer(np.array([1801.0])).tolist() == [10.0]


def test_update_takes_effect_at_once():
    normalizer = ObservationNormalizer(RunningMoments.of_size(1), clip=10.0)
    assert normalizer(np.array([3.0])).tolist() == pytest.approx([3.0])
    normalizer.update(np.array([[1.0], [5.0]]))
    assert normalizer(np.array([3.0, 5.0])[:, None]).flatten().tolist() == pytest.approx([0, 1])


def test_normalising_does_not_count():
    normalizer = ObservationNormalizer(fixed([1], [4]), clip=10.0)
    normalizer(np.array([[100.0]]))
    assert normalizer.moments.count == 10
    assert normalizer.moments.mean.tolist() == [1.0]


def test_refresh_follows_replaced_moments():
    normalizer = ObservationNormalizer(RunningMoments.of_size(1), clip=10.0)
    normalizer.moments = fixed([0], [100])
    normalizer.refresh()
    assert normalizer(np.array([10.0])).tolist() == pytest.approx([1.0])


def test_many_observations_end_up_standardised():
    random = np.random.default_rng(0)
    rows = random.normal(loc=[100, -3], scale=[20, 0.01], size=(5000, 2))
    normalizer = ObservationNormalizer(RunningMoments.of_size(2), clip=10.0)
    for batch in np.array_split(rows, 100):
        normalizer.update(batch)
    normalised = normalizer(rows)
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(normalised.std(axis=0), 1, atol=1e-3)


# Rewards


def scale(normalizer, rewards, discounted=None, acted=None):
    """Rewards [T, N] through the normaliser; without returns, nothing is taken in."""
    rewards = np.array(rewards, float)
    if discounted is None:
        return normalizer(rewards, np.zeros_like(rewards), np.zeros(rewards.shape, bool))
    acted = np.ones(rewards.shape, bool) if acted is None else np.array(acted, bool)
    return normalizer(rewards, np.array(discounted, float), acted)


def test_rewards_are_scaled_and_not_centred():
    normalizer = RewardNormalizer(fixed([7.0], [4.0]), clip=10.0, gamma=0.99)
    scaled = scale(normalizer, [[0.0, 2.0, -6.0]])
    assert scaled.dtype == np.float64
    np.testing.assert_allclose(scaled, [[0, 1, -3]], rtol=1e-6)


def test_rewards_are_clipped():
    normalizer = RewardNormalizer(fixed([0.0], [1.0]), clip=5.0, gamma=0.99)
    assert scale(normalizer, [[100.0, -100.0]]).tolist() == [[5.0, -5.0]]


def test_every_step_is_scaled_by_the_returns_up_to_it():
    normalizer = RewardNormalizer(RunningMoments.of_size(1), clip=10.0, gamma=0.5)
    discounted = [[10.0, 14.0], [12.0, 99.0], [99.0, 99.0], [16.0, 8.0]]
    acted = [[1, 1], [1, 0], [0, 0], [1, 1]]
    scaled = scale(normalizer, np.ones((4, 2)), discounted, acted)
    known = [10.0, 14.0], [10.0, 14.0, 12.0], [10.0, 14.0, 12.0], [10.0, 14.0, 12.0, 16.0, 8.0]
    expected = [[1 / np.std(values)] * 2 for values in known]
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)
    assert normalizer.moments.count == 5
    np.testing.assert_allclose(normalizer.moments.mean, [12.0])
    np.testing.assert_allclose(normalizer.moments.variance, [8.0])


def test_one_rollout_or_several_end_with_the_same_statistics():
    discounted = 1e6 + np.random.default_rng(0).normal(size=(12, 3))
    rewards = np.ones_like(discounted)
    whole, parts = (
        RewardNormalizer(RunningMoments.of_size(1), clip=1e9, gamma=0.9) for _ in range(2)
    )
    scaled = scale(whole, rewards, discounted)
    pieces = [scale(parts, rewards[t : t + 4], discounted[t : t + 4]) for t in (0, 4, 8)]
    np.testing.assert_array_equal(np.concatenate(pieces), scaled)
    np.testing.assert_allclose(whole.moments.variance, [discounted.var()], rtol=1e-9)


def test_normalising_rewards_does_not_change_them():
    normalizer = RewardNormalizer(fixed([0.0], [4.0]), clip=1.0, gamma=0.99)
    rewards = np.array([[100.0]])
    normalizer(rewards, rewards, np.zeros((1, 1), bool))
    assert rewards.tolist() == [[100.0]]
    assert normalizer.moments.count == 10


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_rewards_without_spread_are_finite(gamma):
    """The first step of a single environment: nothing varies yet."""
    normalizer = RewardNormalizer(RunningMoments.of_size(1), clip=10.0, gamma=gamma)
    assert scale(normalizer, [[3.0]], [[3.0]]).tolist() == [[10.0]]
    assert scale(normalizer, [[3.0, 0.0, -3.0]]).tolist() == [[10.0, 0.0, -10.0]]
