"""Action distributions against torch.distributions and statistics; heads against their spaces."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats
from torch import distributions as reference

from ppo.distributions import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    DiagonalGaussian,
    MultiCategorical,
    make_head,
)
from ppo.errors import UserError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed))


def acted(distribution, noise_from):
    """What a head makes of the distribution's own parameters."""
    if isinstance(distribution, DiagonalGaussian):
        outputs, log_std = distribution.mean, distribution.log_std
        head = make_head(spaces.Box(-np.inf, np.inf, outputs.shape[1:]))
    else:
        outputs, log_std = distribution.logits, torch.zeros(0)
        head = make_head(spaces.MultiDiscrete(distribution.sizes))
    noise = noise_from and head.noise(outputs.shape[:1], noise_from)
    return torch.from_numpy(head.actions(outputs.numpy(), head.std(log_std.numpy()), noise))


def sample(distribution, stream):
    return acted(distribution, stream)


def mode(distribution):
    return acted(distribution, None)


# Gaussian


def test_standard_normal_in_three_dimensions():
    distribution = DiagonalGaussian(torch.zeros(2, 3), torch.zeros(3))
    log_prob, entropy = distribution.log_prob(torch.zeros(2, 3)), distribution.entropy()
    assert log_prob.tolist() == pytest.approx([-2.75682] * 2, abs=1e-5)
    assert entropy.tolist() == pytest.approx([4.25682] * 2, abs=1e-5)


@pytest.mark.parametrize("actions", [1, 2, 17])
def test_gaussian_equals_torch_distributions(actions):
    mean, log_std = 3 * normal(9, actions), normal(actions, seed=1)
    expected = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    distribution = DiagonalGaussian(mean, log_std)
    x = 3 * normal(9, actions, seed=2)
    torch.testing.assert_close(distribution.log_prob(x), expected.log_prob(x), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(distribution.entropy(), expected.entropy())
    assert distribution.log_prob(x).shape == distribution.entropy().shape == (9,)


def test_gaussian_gradients_equal_torch_distributions():
    def gradients(make):
        mean = normal(4, 3).requires_grad_()
        log_std = normal(3, seed=1).requires_grad_()
        distribution = make(mean, log_std)
        actions = normal(4, 3, seed=2)
        loss = distribution.log_prob(actions).sum() + distribution.entropy().mean()
        return torch.autograd.grad(loss, (mean, log_std))

    def independent(mean, log_std):
        return reference.Independent(reference.Normal(mean, log_std.exp()), 1)

    for ours, theirs in zip(gradients(DiagonalGaussian), gradients(independent), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_gaussian_samples_have_its_moments():
    mean, log_std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, -1.0])
    distribution = DiagonalGaussian(mean.expand(20_000, 2), log_std)
    samples = sample(distribution, generator())
    for dimension in range(2):
        scaled = (samples[:, dimension] - mean[dimension]) / log_std[dimension].exp()
        assert stats.kstest(scaled.numpy(), "norm").pvalue > 0.01
    assert abs(float(np.corrcoef(samples.T.numpy())[0, 1])) < 0.03


def test_gaussian_entropy_is_the_mean_surprise_of_its_samples():
    distribution = DiagonalGaussian(normal(1, 3).expand(20_000, 3), normal(3, seed=1))
    surprise = -distribution.log_prob(sample(distribution, generator())).mean()
    assert float(surprise) == pytest.approx(float(distribution.entropy()[0]), abs=0.05)


def test_gaussian_mode_has_the_highest_density():
    distribution = DiagonalGaussian(normal(5, 2), torch.zeros(2))
    assert torch.equal(mode(distribution), distribution.mean)
    others = mode(distribution) + 0.1 * normal(5, 2, seed=1)
    assert bool((distribution.log_prob(mode(distribution)) > distribution.log_prob(others)).all())


# Categorical

SIZES = (2, 3, 5)


def test_uniform_choice_of_four_has_entropy_log_four():
    distribution = MultiCategorical(torch.zeros(2, 4), (4,))
    assert distribution.entropy().tolist() == pytest.approx([1.38629] * 2, abs=1e-5)


def test_categorical_equals_torch_distributions():
    logits = 2 * normal(9, sum(SIZES))
    actions = torch.stack(
        [torch.randint(0, n, (9,), generator=generator(n)) for n in SIZES], dim=-1
    )
    parts = [reference.Categorical(logits=part) for part in logits.split(SIZES, dim=-1)]
    ours = MultiCategorical(logits, SIZES)
    log_prob = sum(part.log_prob(actions[:, k]) for k, part in enumerate(parts))
    torch.testing.assert_close(ours.log_prob(actions), log_prob)
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in parts))
    assert torch.equal(mode(ours), torch.stack([p.logits.argmax(-1) for p in parts], dim=-1))


def test_categorical_probabilities_of_all_actions_sum_to_one():
    distribution = MultiCategorical(normal(1, 5).expand(6, 5), (2, 3))
    actions = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    assert float(distribution.log_prob(actions).exp().sum()) == pytest.approx(1.0)


def test_categorical_samples_follow_their_probabilities():
    rows = 20_000
    logits = torch.tensor([0.3, -0.5, 1.0, 0.0, -1.0])
    samples = sample(MultiCategorical(logits.expand(rows, 5), (2, 3)), generator())
    assert samples.dtype == torch.int64
    assert samples.shape == (rows, 2)
    for k, part in enumerate(logits.split((2, 3))):
        counts = torch.bincount(samples[:, k], minlength=len(part)).numpy()
        expected = part.softmax(-1).double()
        expected = (rows * expected / expected.sum()).numpy()
        assert stats.chisquare(counts, expected).pvalue > 0.01


@pytest.mark.parametrize("scale", [1e2, 1e5])
def test_extreme_logits_stay_finite(scale):
    distribution = MultiCategorical(scale * torch.tensor([[1.0, -1.0, 0.0]]), (3,))
    assert distribution.entropy().item() == pytest.approx(0.0, abs=1e-5)
    assert sample(distribution, generator()).tolist() == [[0]]
    assert distribution.log_prob(torch.tensor([[1]])).item() == pytest.approx(-2 * scale)


@pytest.mark.parametrize(
    "distribution",
    [DiagonalGaussian(normal(4, 2), normal(2)), MultiCategorical(normal(4, 5), (2, 3))],
    ids=["gaussian", "categorical"],
)
def test_sampling_draws_from_its_generator_only(distribution):
    state = torch.get_rng_state()
    first, again = (sample(distribution, generator(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    stream = generator(3)
    assert any(not torch.equal(sample(distribution, stream), first) for _ in range(10))


# Bounds of the standard deviation


@pytest.mark.parametrize("log_std", [-200.0, -5.0, 0.0, 2.0, 200.0])
def test_a_collapsed_or_exploded_log_std_stays_finite(log_std):
    head = make_head(spaces.Box(-1, 1, (3,)))
    mean = normal(64, 3)
    distribution = head.distribution(mean, torch.full((3,), log_std))
    actions = sample(distribution, generator())
    log_prob = distribution.log_prob(actions)
    moved = head.distribution(mean + 1e-3, torch.full((3,), log_std)).log_prob(actions)
    for numbers in (actions, log_prob, (moved - log_prob).exp(), distribution.entropy()):
        assert bool(torch.isfinite(numbers).all())
    assert not torch.equal(actions, mean)


@pytest.mark.parametrize(
    ("log_std", "bounded"), [(-200.0, LOG_STD_MIN), (-1.5, -1.5), (200.0, LOG_STD_MAX)]
)
def test_log_std_is_bounded(log_std, bounded):
    head = make_head(spaces.Box(-1, 1, (2,)))
    distribution = head.distribution(torch.zeros(1, 2), torch.full((2,), log_std))
    assert distribution.log_std.tolist() == [bounded] * 2


@pytest.mark.parametrize("log_std", [LOG_STD_MIN, LOG_STD_MAX])
def test_log_std_on_its_bound_can_still_learn(log_std):
    parameter = torch.full((2,), log_std, requires_grad=True)
    head = make_head(spaces.Box(-1, 1, (2,)))
    head.distribution(torch.zeros(1, 2), parameter).entropy().sum().backward()
    assert parameter.grad.tolist() == [1.0, 1.0]


# Heads: what is stored and what is sent


def test_stored_action_is_raw_and_sent_action_is_clipped():
    head = make_head(spaces.Box(-1, 1, (3,)))
    log_std = torch.full((3,), math.log(5.0))
    stored = sample(head.distribution(torch.zeros(200, 3), log_std), generator())
    before = stored.clone()
    sent = head.to_env(stored.numpy())
    assert torch.equal(stored, before)
    assert float(stored.abs().max()) > 1
    assert (sent.min(), sent.max()) == (-1, 1)
    inside = stored.abs().numpy() < 1
    np.testing.assert_array_equal(sent[inside], stored.numpy()[inside])
    # The density of what was stored, so that the first ratio of an update is 1.
    collected, updated = (
        head.distribution(torch.zeros(200, 3), log_std).log_prob(stored) for _ in range(2)
    )
    assert torch.equal((updated - collected).exp(), torch.ones(200))
    clipped = head.distribution(torch.zeros(200, 3), log_std).log_prob(torch.from_numpy(sent))
    assert not torch.allclose(clipped, collected)


def test_bounds_other_than_one_are_clipped_not_rescaled():
    head = make_head(spaces.Box(np.array([0, -2]), np.array([10, 2]), dtype=np.float32))
    actions = np.array([[0.5, -0.5], [-3.0, -7.0], [11.0, 1.5]], dtype=np.float32)
    assert head.to_env(actions).tolist() == [[0.5, -0.5], [0.0, -2.0], [10.0, 1.5]]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ([-np.inf, -np.inf], [np.inf, np.inf], [-50.0, 50.0]),
        ([0, 0], [np.inf, np.inf], [0.0, 50.0]),
        ([-np.inf, -1], [2, np.inf], [-50.0, 50.0]),
        ([-1, -np.inf], [np.inf, 2], [-1.0, 2.0]),
    ],
)
def test_infinite_bounds_give_finite_actions(low, high, expected):
    space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    sent = make_head(space).to_env(np.array([-50.0, 50.0], dtype=np.float32))
    assert sent.tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_have_the_dtype_and_bounds_of_the_space(dtype):
    """Bounds that float32 and float64 round differently, hit exactly."""
    space = spaces.Box(-0.1, 0.1, (2,), dtype=dtype)
    sent = make_head(space).to_env(np.array([[-3.0, 3.0]], dtype=np.float32))
    assert sent.dtype == dtype
    np.testing.assert_array_equal(sent[0], [space.low[0], space.high[1]])


def test_discrete_actions_start_where_the_space_does():
    head = make_head(spaces.Discrete(3, start=5))
    stored = sample(head.distribution(torch.zeros(100, 3), torch.zeros(0)), generator())
    assert set(stored.flatten().tolist()) == {0, 1, 2}
    sent = head.to_env(stored.numpy())
    assert sent.shape == (100,)
    assert set(sent.tolist()) == {5, 6, 7}
    assert head.to_env(np.array([[0], [2]])).tolist() == [5, 7]


def test_multi_discrete_actions_start_where_the_space_does():
    head = make_head(spaces.MultiDiscrete([2, 3], start=[0, 10]))
    distribution = head.distribution(torch.zeros(100, 5), torch.zeros(0))
    stored = sample(distribution, generator())
    assert distribution.log_prob(stored).tolist() == pytest.approx([-1.79176] * 100, abs=1e-5)
    sent = head.to_env(stored.numpy())
    assert set(sent[:, 0].tolist()) == {0, 1}
    assert set(sent[:, 1].tolist()) == {10, 11, 12}


def test_multi_discrete_grid_keeps_its_order():
    head = make_head(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 10], [20, 30]]))
    assert head.n_outputs == 14
    sent = head.to_env(np.array([[1, 2, 3, 4]]))
    assert sent.tolist() == [[[1, 12], [23, 34]]]


SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-1, 1, (2, 3), dtype=np.float64),
    spaces.Box(-np.inf, np.inf, (2,)),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[0, 10]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiDiscrete([2, 3], dtype=np.int32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_action_sent_lies_in_the_space(space):
    head = make_head(space)
    outputs = 3 * normal(50, head.n_outputs)
    log_std = torch.ones(head.n_outputs if head.has_log_std else 0)
    distribution = head.distribution(outputs, log_std)
    for actions in (sample(distribution, generator()), mode(distribution)):
        batch = head.to_env(actions.numpy())
        assert batch.shape == (50, *space.shape)
        assert all(space.contains(action) for action in batch)
        np.testing.assert_array_equal(head.to_env(actions[0].numpy()), batch[0])
        rollout = head.to_env(actions.numpy().reshape(5, 10, -1))
        np.testing.assert_array_equal(rollout.reshape(batch.shape), batch)


@pytest.mark.parametrize(
    ("space", "n_outputs", "has_log_std"),
    [(SPACES[0], 3, True), (SPACES[1], 6, True), (SPACES[3], 4, False), (SPACES[5], 5, False)],
    ids=str,
)
def test_heads_say_how_many_outputs_they_need(space, n_outputs, has_log_std):
    head = make_head(space)
    assert (head.n_outputs, head.has_log_std) == (n_outputs, has_log_std)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(3),
        spaces.Box(0, 255, (5,), dtype=np.uint8),
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple([spaces.Discrete(2)]),
    ],
    ids=str,
)
def test_other_action_spaces_are_refused_in_one_line(space):
    with pytest.raises(
        UserError, match=r"is not supported; .*Box of floats, Discrete and Multi"
    ) as e:
        make_head(space)
    assert str(space).split("(")[0] in str(e.value)
    assert "\n" not in str(e.value)
