import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ppo import losses
from ppo.agent import ActorCritic
from ppo.distributions import LOG_STD_MAX, LOG_STD_MIN, make_head
from ppo.parameters import critic_mask, flatten_parameters, learning_rate_vector, parameter_bounds
from ppo.rollout import Batch
from ppo.update import (
    Coefficients,
    Hyperparameters,
    Learner,
    OptimizerState,
    adam,
    compute_losses,
    make_step,
    one_by_one,
    update,
)

D = 3
BOX = spaces.Box(-1.0, 1.0, (2,))
FOUR = spaces.Discrete(4)


def networks_for(space, seed=0, log_std=0.0):
    generator = torch.Generator().manual_seed(seed)
    return ActorCritic(
        D,
        make_head(space),
        hidden_sizes=(8,),
        activation="tanh",
        log_std_init=log_std,
        generator=generator,
    )


def batch_for(networks, size, seed=1):
    """Rows whose old log-probabilities and values are a little off the networks' own."""
    generator = torch.Generator().manual_seed(seed)
    dtype = networks.log_std.dtype

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    observations = normal(size, D)
    with torch.no_grad():
        policy, values = networks(observations)
        noise = networks.head.noise((size,), generator).astype(networks.log_std.numpy().dtype)
        outputs, log_std = networks.actor(observations).numpy(), networks.log_std.numpy()
        actions = torch.from_numpy(
            networks.head.actions(outputs, networks.head.std(log_std), noise)
        )
        log_probs = policy.log_prob(actions)
    return Batch(
        observations,
        actions if not actions.is_floating_point() else actions.to(dtype),
        log_probs.to(dtype) + 0.1 * normal(size),
        values + 0.3 * normal(size),
        normal(size),
        values + normal(size),
    )


def hyper(**changes):
    return Hyperparameters(
        **{
            "n_epochs": 2,
            "batch_size": 8,
            "clip_range_vf": None,
            "normalize_advantage": "minibatch",
            "vf_coef": 0.5,
            "max_grad_norm": 0.5,
            "target_kl": None,
        }
        | changes
    )


def coefficients(
    networks, *, actor=1e-3, critic=None, clip_range=0.2, ent_coef=0.0, policy_learns=True
):
    dtype = networks.log_std.dtype
    rates = learning_rate_vector(networks, actor=actor, critic=actor if critic is None else critic)
    return Coefficients(
        rates.to(dtype),
        torch.tensor(clip_range, dtype=dtype),
        torch.tensor(ent_coef, dtype=dtype),
        torch.tensor(policy_learns),
    )


def run(networks, batch, settings, coefs, *, optimizer=None, step=None, epoch=None, seed=7):
    return update(
        networks,
        optimizer or OptimizerState.zeros(networks),
        batch,
        coefs,
        epoch=epoch
        or one_by_one(step or make_step(networks, settings), batch_size=settings.batch_size),
        hyperparameters=settings,
        generator=torch.Generator().manual_seed(seed),
    )


class Spied:
    """A step function that keeps the minibatches it was given."""

    def __init__(self, networks, settings):
        self._step = make_step(networks, settings)
        self.seen, self.metrics = [], []

    def __call__(self, learner, minibatch, coefs):
        self.seen.append(minibatch)
        learner, metrics = self._step(learner, minibatch, coefs)
        self.metrics.append(metrics)
        return learner, metrics


# --- the whole update against plain PyTorch ---


def reference_loss(networks, rows, settings, clip_range, ent_coef):
    """PPO's loss written with torch.distributions and torch.nn.functional only."""
    outputs = networks.actor(rows.observations)
    if networks.log_std.numel():
        normal = torch.distributions.Normal(outputs, networks.log_std.exp().expand_as(outputs))
        policy = torch.distributions.Independent(normal, 1)
        actions = rows.actions
    else:
        policy = torch.distributions.Categorical(logits=outputs)
        actions = rows.actions[:, 0]
    ratio = torch.exp(policy.log_prob(actions) - rows.log_probs)
    advantages = rows.advantages
    if settings.normalize_advantage == "minibatch":
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)
    policy_loss = torch.max(
        -advantages * ratio, -advantages * ratio.clip(1 - clip_range, 1 + clip_range)
    ).mean()
    values = networks.critic(rows.observations)[:, 0]
    if settings.clip_range_vf is not None:
        limit = settings.clip_range_vf
        values = torch.minimum(torch.maximum(values, rows.values - limit), rows.values + limit)
    value_loss = nn.functional.mse_loss(values, rows.returns)
    return policy_loss - ent_coef * policy.entropy().mean() + settings.vf_coef * value_loss


def reference_update(networks, batch, settings, *, actor, critic, clip_range, ent_coef, seed):
    optimizer = torch.optim.Adam(
        [
            {"params": [networks.log_std, *networks.actor.parameters()], "lr": actor},
            {"params": list(networks.critic.parameters()), "lr": critic},
        ],
        eps=1e-5,
    )
    if settings.normalize_advantage == "rollout":
        spread = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        batch = batch._replace(advantages=spread)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(settings.n_epochs):
        order = torch.randperm(batch.size, generator=generator)
        for start in range(0, batch.size, settings.batch_size):
            rows = Batch(*(c[order[start : start + settings.batch_size]] for c in batch))
            optimizer.zero_grad()
            reference_loss(networks, rows, settings, clip_range, ent_coef).backward()
            nn.utils.clip_grad_norm_(networks.parameters(), settings.max_grad_norm)
            optimizer.step()


CASES = [
    {},
    {"clip_range_vf": 0.1, "vf_coef": 1.5},
    {"normalize_advantage": "rollout", "max_grad_norm": 0.05},
    {"normalize_advantage": "none", "max_grad_norm": 100.0, "batch_size": 7},
]


@pytest.mark.parametrize("space", [BOX, FOUR], ids=["box", "discrete"])
@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_autograd_and_torch_optim(space, case):
    networks = networks_for(space).double()
    batch = batch_for(networks, 21)
    settings = hyper(n_epochs=3, **case)
    # Powers of two: exact in float32 as well.
    numbers = {"actor": 2.0**-8, "critic": 2.0**-6, "clip_range": 0.125, "ent_coef": 0.25}
    expected = copy.deepcopy(networks)
    reference_update(expected, batch, settings, **numbers, seed=7)
    before = flatten_parameters(networks)
    _, metrics = run(networks, batch, settings, coefficients(networks, **numbers))
    assert metrics.n_updates == 3 * math.ceil(21 / settings.batch_size)
    assert 0.0 < metrics.clip_fraction < 1.0
    torch.testing.assert_close(
        flatten_parameters(networks), flatten_parameters(expected), rtol=1e-9, atol=1e-9
    )
    assert float((flatten_parameters(networks) - before).abs().max()) > 1e-3


def test_adam_is_torch_optim_adam():
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(17, generator=generator, dtype=torch.float64)
    theirs = nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([theirs], lr=0.01, eps=1e-5)
    ours, state = (
        start,
        OptimizerState(
            torch.zeros_like(start), torch.zeros_like(start), torch.zeros((), dtype=torch.float64)
        ),
    )
    for k in range(12):
        gradient = 10.0 ** (k % 5 - 3) * torch.randn(17, generator=generator, dtype=torch.float64)
        theirs.grad = gradient.clone()
        optimizer.step()
        ours, state = adam(ours, gradient, state, torch.full((17,), 0.01, dtype=torch.float64))
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-14)
    assert (state.step == 12.0).all()


def test_moments_go_on_from_one_update_to_the_next():
    settings = hyper()
    networks = networks_for(BOX)
    batch, coefs = batch_for(networks, 16), coefficients(networks)
    state, _ = run(networks, batch, settings, coefs)
    assert (state.step == 4.0).all()
    kept, fresh = copy.deepcopy(networks), copy.deepcopy(networks)
    again, _ = run(kept, batch, settings, coefs, optimizer=state)
    run(fresh, batch, settings, coefs)
    assert (again.step == 8.0).all()
    assert not torch.equal(flatten_parameters(kept), flatten_parameters(fresh))


# --- minibatches ---


@pytest.mark.parametrize("size", [16, 19, 5])
def test_every_row_is_visited_once_an_epoch_in_a_fresh_order(size):
    networks = networks_for(BOX)
    batch = batch_for(networks, size)._replace(returns=torch.arange(float(size)))
    settings = hyper(n_epochs=3)
    spied = Spied(networks, settings)
    run(networks, batch, settings, coefficients(networks), step=spied)
    per_epoch = math.ceil(size / 8)
    assert [m.size for m in spied.seen] == 3 * ([8] * (size // 8) + [size % 8] * (size % 8 > 0))
    orders = [
        torch.cat([m.returns for m in spied.seen[k * per_epoch : (k + 1) * per_epoch]]).long()
        for k in range(3)
    ]
    for order in orders:
        assert sorted(order.tolist()) == list(range(size))
    assert len({tuple(order.tolist()) for order in orders}) == 3
    for minibatch in spied.seen:
        for column, whole in zip(minibatch, batch, strict=True):
            assert torch.equal(column, whole[minibatch.returns.long()])


def test_the_order_comes_from_the_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    results = []
    for seed in (7, 7, 8):
        networks = networks_for(BOX)
        run(networks, batch_for(networks, 16), hyper(), coefficients(networks), seed=seed)
        results.append(flatten_parameters(networks))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("how", ["minibatch", "rollout", "none"])
def test_a_tail_of_one_row_stays_finite(how):
    networks = networks_for(BOX)
    settings = hyper(batch_size=64, normalize_advantage=how)
    _, metrics = run(networks, batch_for(networks, 129), settings, coefficients(networks))
    assert metrics.finite
    assert metrics.n_updates == 6
    assert torch.isfinite(flatten_parameters(networks)).all()


def test_equal_advantages_move_the_actor_nowhere():
    networks = networks_for(BOX)
    batch = batch_for(networks, 16)._replace(advantages=torch.full((16,), 0.1))
    before = copy.deepcopy(networks)
    _, metrics = run(networks, batch, hyper(), coefficients(networks))
    assert metrics.finite
    assert torch.equal(networks.log_std, before.log_std)
    for after, was in zip(networks.actor.parameters(), before.actor.parameters(), strict=True):
        assert torch.equal(after, was)


# --- what the loss consumes ---

NORMALISED = [-0.9258201, -0.4629100, 0.0, 1.3887301]  # of [1, 2, 3, 6], by hand


@pytest.mark.parametrize("how", ["minibatch", "rollout", "none"])
def test_advantages_as_the_loss_consumes_them(how, monkeypatch):
    networks = networks_for(BOX)
    raw = torch.tensor([1.0, 2.0, 3.0, 6.0])
    batch = batch_for(networks, 4)._replace(advantages=raw, returns=torch.arange(4.0))
    consumed, shipped = [], losses.clipped_policy_loss

    def spy(ratio, advantages, **rest):
        consumed.append(advantages.detach())
        return shipped(ratio, advantages, **rest)

    monkeypatch.setattr(losses, "clipped_policy_loss", spy)
    settings = hyper(batch_size=2, normalize_advantage=how, n_epochs=1)
    spied = Spied(networks, settings)
    run(networks, batch, settings, coefficients(networks), step=spied)
    assert len(consumed) == 2
    for minibatch, advantages in zip(spied.seen, consumed, strict=True):
        rows = minibatch.returns.long()
        expected = {
            "minibatch": [0.7071068, -0.7071068] if rows[0] > rows[1] else [-0.7071068, 0.7071068],
            "rollout": [NORMALISED[row] for row in rows],
            "none": raw[rows].tolist(),
        }[how]
        assert advantages.tolist() == pytest.approx(expected, abs=1e-6)
    assert batch.advantages is raw  # the rollout's own advantages stay raw
    assert raw.tolist() == [1.0, 2.0, 3.0, 6.0]


def constant_critic(value):
    networks = networks_for(BOX)
    with torch.no_grad():
        for parameter in networks.critic.parameters():
            parameter.zero_()
        networks.critic[-1].bias.fill_(value)
    return networks


@pytest.mark.parametrize(
    ("clip_range_vf", "returns", "loss", "moves"),
    [
        (None, 1.0, 0.0, False),
        (None, 3.0, 4.0, True),
        (0.25, 1.0, 0.5625, False),  # V = 1 may only count as 0.25 above the stored 0
        (2.0, 3.0, 4.0, True),  # within the range nothing is clipped
        (0.25, -3.0, 10.5625, False),
    ],
)
def test_values_are_clipped_against_the_stored_ones(clip_range_vf, returns, loss, moves):
    networks = constant_critic(1.0)
    batch = batch_for(networks, 8)._replace(
        values=torch.zeros(8), returns=torch.full((8,), returns), advantages=torch.zeros(8)
    )
    settings = hyper(clip_range_vf=clip_range_vf, n_epochs=1)
    _, metrics = run(networks, batch, settings, coefficients(networks))
    assert metrics.value_loss == pytest.approx(loss, rel=1e-6)
    assert (float(networks.critic[-1].bias.detach()) != 1.0) == moves


def test_the_terms_add_up():
    networks = networks_for(FOUR)
    batch = batch_for(networks, 8)
    loss, terms = compute_losses(
        networks, batch, coefficients(networks, ent_coef=0.3), hyper(vf_coef=2.0)
    )
    expected = terms.policy + 0.3 * terms.entropy + 2.0 * terms.value
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-6)
    assert -math.log(4.0) <= float(terms.entropy) < 0.0


def test_an_entropy_bonus_raises_the_entropy_to_its_maximum():
    networks = networks_for(FOUR)
    with torch.no_grad():
        networks.actor[-1].bias.copy_(torch.tensor([2.0, 0.0, -1.0, -2.0]))
    batch = batch_for(networks, 32)._replace(advantages=torch.zeros(32))
    settings = hyper(n_epochs=40, batch_size=32)
    coefs = coefficients(networks, actor=0.05, ent_coef=10.0)

    def entropy():
        with torch.no_grad():
            return float(networks.policy(batch.observations).entropy().mean())

    assert entropy() < 0.9
    state = OptimizerState.zeros(networks)
    for _ in range(5):
        state, metrics = run(networks, batch, settings, coefs, optimizer=state)
    assert entropy() == pytest.approx(1.38629, abs=1e-3)
    assert metrics.entropy_loss == pytest.approx(-1.38629, abs=1e-2)


# --- how far a step goes ---


def test_the_gradient_is_clipped_by_its_global_norm():
    """Adam hides the scale of a gradient; its first moment shows what it was given."""
    networks = networks_for(BOX)
    batch, coefs = batch_for(networks, 8), coefficients(networks)
    given, norms = {}, {}
    for limit in (1e-3, 1e6):
        settings = hyper(n_epochs=1, max_grad_norm=limit)
        state, metrics = run(copy.deepcopy(networks), batch, settings, coefs)
        given[limit], norms[limit] = state.exp_avg / (1.0 - 0.9), metrics.grad_norm
    assert norms[1e-3] == norms[1e6] > 0.1  # reported before clipping
    assert float(given[1e6].norm()) == pytest.approx(norms[1e6], rel=1e-5)
    assert float(given[1e-3].norm()) == pytest.approx(1e-3, rel=1e-3)
    cosine = torch.nn.functional.cosine_similarity(given[1e-3], given[1e6], dim=0)
    assert float(cosine) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("actor", "critic"), [(0.0, 1e-2), (1e-2, 0.0)])
def test_actor_and_critic_have_learning_rates_of_their_own(actor, critic):
    networks = networks_for(BOX)
    before = copy.deepcopy(networks)
    coefs = coefficients(networks, actor=actor, critic=critic)
    run(networks, batch_for(networks, 16), hyper(), coefs)
    for name, parameter in networks.named_parameters():
        moved = not torch.equal(parameter, before.get_parameter(name))
        assert moved == ((critic if name.startswith("critic.") else actor) > 0), name


@pytest.mark.parametrize(
    ("start", "bound", "sign"), [(1.9, LOG_STD_MAX, 1), (-4.9, LOG_STD_MIN, -1)]
)
def test_log_std_is_projected_into_its_bounds_and_can_leave_them_again(start, bound, sign):
    networks = networks_for(BOX, log_std=start)
    batch = batch_for(networks, 8)._replace(advantages=torch.zeros(8))
    settings = hyper(n_epochs=10, batch_size=8, vf_coef=0.0)
    run(networks, batch, settings, coefficients(networks, actor=0.05, ent_coef=sign * 1.0))
    assert networks.log_std.tolist() == [bound, bound]
    run(networks, batch, settings, coefficients(networks, actor=0.05, ent_coef=-sign * 1.0))
    assert networks.log_std.tolist() == pytest.approx([bound - sign * 0.5] * 2, abs=0.05)


def test_only_log_std_has_bounds():
    networks = networks_for(BOX)
    low, high = parameter_bounds(networks)
    with torch.no_grad():
        networks.log_std.fill_(1e9)
    at = flatten_parameters(networks) == 1e9
    assert low[at].tolist() == [LOG_STD_MIN] * 2
    assert high[at].tolist() == [LOG_STD_MAX] * 2
    assert torch.isinf(low[~at]).all()
    assert torch.isinf(high[~at]).all()


# --- stopping ---


def test_a_kl_stop_ends_all_epochs_before_the_step_that_went_too_far():
    networks = networks_for(BOX)
    batch = batch_for(networks, 32)
    with torch.no_grad():  # as just collected: every ratio is 1
        batch = batch._replace(
            log_probs=networks.policy(batch.observations).log_prob(batch.actions)
        )
    settings = hyper(target_kl=1e-9, n_epochs=5)
    spied = Spied(networks, settings)
    expected = copy.deepcopy(networks)
    state, metrics = run(networks, batch, settings, coefficients(networks), step=spied)
    assert metrics.n_updates == 1
    assert metrics.stopped_early
    assert metrics.finite
    assert [bool(m.applied) for m in spied.metrics] == [True, False, False, False]
    assert [bool(m.evaluated) for m in spied.metrics] == [True, True, False, False]
    assert (state.step == 1.0).all()
    # The mean is over the minibatches that were evaluated: the first one's is 0.
    kls = [float(m.approx_kl) for m in spied.metrics[:2]]
    assert metrics.approx_kl == pytest.approx(sum(kls) / 2)
    assert kls[1] > 1.5e-9
    # Exactly the first step was taken.
    run(expected, spied.seen[0], hyper(n_epochs=1), coefficients(expected))
    torch.testing.assert_close(flatten_parameters(networks), flatten_parameters(expected))


@pytest.mark.parametrize("target", [1.0, None])
def test_a_far_target_stops_nothing(target):
    networks = networks_for(BOX)
    settings = hyper(target_kl=target)
    _, metrics = run(networks, batch_for(networks, 16), settings, coefficients(networks))
    assert not metrics.stopped_early
    assert metrics.n_updates == 4


@pytest.mark.parametrize(("factor", "applied"), [(1.49, True), (1.51, False)])
def test_the_target_is_exceeded_at_one_and_a_half_times_itself(factor, applied):
    """logratio [.1, -.1] has KL .0050042."""
    networks = networks_for(BOX)
    batch = batch_for(networks, 2)
    with torch.no_grad():
        log_probs = networks.policy(batch.observations).log_prob(batch.actions)
    batch = batch._replace(log_probs=log_probs - torch.tensor([0.1, -0.1]))
    settings = hyper(target_kl=0.0050042 / factor, n_epochs=1)
    _, metrics = run(networks, batch, settings, coefficients(networks))
    assert metrics.approx_kl == pytest.approx(0.0050042, abs=1e-6)
    assert metrics.n_updates == int(applied)


@pytest.mark.parametrize("column", ["returns", "log_probs", "advantages", "observations"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("target_kl", [None, 0.05])
def test_a_non_finite_loss_leaves_everything_untouched(column, value, target_kl):
    networks = networks_for(BOX)
    batch = batch_for(networks, 8)
    numbers = getattr(batch, column).clone()
    numbers[3] = -value if column == "log_probs" else value
    before = flatten_parameters(networks)
    settings = hyper(batch_size=8, n_epochs=3, target_kl=target_kl)
    state, metrics = run(
        networks, batch._replace(**{column: numbers}), settings, coefficients(networks)
    )
    assert not metrics.finite
    assert not metrics.stopped_early
    assert metrics.n_updates == 0
    assert torch.equal(flatten_parameters(networks), before)
    assert (state.step == 0.0).all()
    assert not state.exp_avg.any()


def test_a_loss_that_overflows_is_not_finite_though_its_gradient_is():
    networks = networks_for(BOX)
    batch = batch_for(networks, 8)._replace(returns=torch.full((8,), 1e20))
    before = flatten_parameters(networks)
    _, metrics = run(networks, batch, hyper(vf_coef=1e-6), coefficients(networks))
    assert math.isfinite(metrics.grad_norm)
    assert not metrics.finite
    assert torch.equal(flatten_parameters(networks), before)


def test_steps_before_the_non_finite_one_are_the_last_taken():
    networks = networks_for(BOX)
    batch = batch_for(networks, 16)
    numbers = batch.returns.clone()
    numbers[0] = math.nan
    settings = hyper(batch_size=1, n_epochs=4, normalize_advantage="none")
    spied = Spied(networks, settings)
    state, metrics = run(
        networks, batch._replace(returns=numbers), settings, coefficients(networks), step=spied
    )
    bad = next(k for k, m in enumerate(spied.seen) if torch.isnan(m.returns).any())
    assert 0 < bad < 15
    assert metrics.n_updates == bad
    assert (state.step == bad).all()
    assert len(spied.seen) == 16  # no further epoch
    assert torch.isfinite(flatten_parameters(networks)).all()


# --- what is reported ---


def test_metrics_are_means_over_the_minibatches():
    networks = networks_for(BOX, log_std=0.5)
    settings = hyper(n_epochs=3)
    spied = Spied(networks, settings)
    _, metrics = run(
        networks, batch_for(networks, 16), settings, coefficients(networks), step=spied
    )
    for name in ("policy_loss", "value_loss", "entropy_loss", "loss", "clip_fraction", "grad_norm"):
        numbers = [float(getattr(m, name)) for m in spied.metrics]
        assert getattr(metrics, name) == pytest.approx(np.mean(numbers), rel=1e-5, abs=1e-7)
    last_epoch = [float(m.approx_kl) for m in spied.metrics[-2:]]
    assert metrics.approx_kl == pytest.approx(np.mean(last_epoch), rel=1e-5)
    assert metrics.std == pytest.approx(float(networks.log_std.detach().exp().mean()))


def test_a_discrete_policy_has_no_std():
    networks = networks_for(FOUR)
    _, metrics = run(networks, batch_for(networks, 16), hyper(), coefficients(networks))
    assert metrics.std is None


def test_a_step_is_a_pure_function():
    networks = networks_for(BOX)
    step, batch, coefs = (
        make_step(networks, hyper()),
        batch_for(networks, 8),
        coefficients(networks),
    )
    before = flatten_parameters(networks)
    inputs = copy.deepcopy((*batch, *coefs))
    learner = Learner(before.clone(), OptimizerState.zeros(networks), torch.tensor(True))
    first, second = (step(learner, batch, coefs) for _ in range(2))
    for one, other in zip(first[1], second[1], strict=True):
        assert torch.equal(one, other)
    assert torch.equal(first[0].parameters, second[0].parameters)
    assert torch.equal(learner.parameters, before)
    assert torch.equal(flatten_parameters(networks), before)
    assert not torch.equal(first[0].parameters, before)
    for given, kept in zip((*batch, *coefs), inputs, strict=True):
        assert torch.equal(given, kept)


# --- value updates only ---


def slices(networks):
    """The policy's and the critic's places in the flat vector."""
    of_critic = critic_mask(networks)
    return ~of_critic, of_critic


@pytest.mark.parametrize("space", [BOX, FOUR], ids=["box", "discrete"])
def test_a_frozen_policy_does_not_move_and_the_critic_learns_as_if_alone(space):
    networks = networks_for(space).double()
    batch = batch_for(networks, 24)
    settings = hyper(n_epochs=3, max_grad_norm=0.05)
    alone = copy.deepcopy(networks.critic)
    optimizer = torch.optim.Adam(alone.parameters(), lr=2.0**-6, eps=1e-5)
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        for index in torch.split(torch.randperm(24, generator=generator), 8):
            values = alone(batch.observations[index])[:, 0]
            optimizer.zero_grad()
            (0.5 * nn.functional.mse_loss(values, batch.returns[index])).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            optimizer.step()
    policy, critic = slices(networks)
    before = flatten_parameters(networks)
    coefs = coefficients(networks, actor=2.0**-8, critic=2.0**-6, policy_learns=False)
    state, metrics = run(networks, batch, settings, coefs)
    after = flatten_parameters(networks)
    assert torch.equal(after[policy], before[policy])
    torch.testing.assert_close(after[critic], flatten_parameters(alone), rtol=1e-9, atol=1e-9)
    assert metrics.n_updates == 9
    for moments in state:
        assert (moments[policy] == 0.0).all()
    assert (state.step[critic] == 9.0).all()


def test_the_policy_goes_on_where_it_stood_before_it_was_frozen():
    networks = networks_for(BOX)
    batch, settings = batch_for(networks, 16), hyper()
    both = coefficients(networks)
    state, _ = run(networks, batch, settings, both)
    policy, critic = slices(networks)
    frozen, _ = run(
        networks, batch, settings, both._replace(policy_learns=torch.tensor(False)), optimizer=state
    )
    for before, after in zip(state, frozen, strict=True):
        assert torch.equal(before[policy], after[policy])
    assert (frozen.step[policy] == 4.0).all()
    assert (frozen.step[critic] == 8.0).all()


def test_no_kl_stop_ends_value_updates():
    networks = networks_for(BOX)
    batch = batch_for(networks, 16)  # whose log-probabilities are off, so that the KL is not 0
    settings = hyper(target_kl=1e-9)
    _, stopped = run(copy.deepcopy(networks), batch, settings, coefficients(networks))
    _, went_on = run(networks, batch, settings, coefficients(networks, policy_learns=False))
    assert (stopped.n_updates, stopped.stopped_early) == (0, True)
    assert (went_on.n_updates, went_on.stopped_early) == (4, False)
