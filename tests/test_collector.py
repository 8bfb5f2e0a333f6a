import dataclasses
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from ppo.collector import RolloutCollector
from ppo.envs import make_vector_env
from ppo.errors import NonFiniteError
from ppo.gae import compute_gae
from ppo.losses import approx_kl, clip_fraction
from ppo.rollout import flatten_valid
from tests.collecting import BACKENDS, MODES, account, agent_of, collecting, config_of, table
from tests.oracles import Column, mixture_advantages

GAMMA, LAMBDA = 0.9, 0.8
WAYS = [(mode, backend) for mode in MODES for backend in BACKENDS]


def estimate(rollout, gamma=GAMMA, gae_lambda=LAMBDA):
    return compute_gae(
        rollout.learner_rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )


def critic(agent, states):
    """V of raw states, past everything that the collector does with them."""
    with torch.no_grad():
        return agent.networks.critic(torch.tensor(states, dtype=torch.float32)).squeeze(-1)


def assert_same_rollout(one, other):
    for field in fields(one):
        assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


# --- every row in its place ---


@pytest.mark.parametrize(("mode", "backend"), WAYS)
def test_rows_are_what_the_environments_did(mode, backend):
    rows = account(23, 3, mode)
    config = config_of("Staggered", env__n_envs=3, env__autoreset=mode, env__backend=backend)
    with collecting(config) as (agent, collector):
        parts = [collector.collect(agent, 11, env_step_budget=10**6).rollout for _ in range(2)]
    for part, told in zip(parts, (rows[:11], rows[11:22]), strict=True):
        assert_array_equal(part.observations, table(told, "state"))
        assert_array_equal(part.next_observations, table(told, "reached"))
        assert_array_equal(part.rewards, table(told, "reward"))
        assert_array_equal(part.learner_rewards, table(told, "reward"))
        assert_array_equal(part.terminated, table(told, "terminated"))
        assert_array_equal(part.truncated, table(told, "truncated"))
        assert_array_equal(part.valid, table(told, "acted"))
        assert_allclose(part.values, critic(agent, table(told, "state")), rtol=1e-5)
        assert_allclose(part.next_values, critic(agent, table(told, "reached")), rtol=1e-5)
    # Both halves hold every kind of end, and the first row of the second is a reset step too.
    assert bool(parts[1].valid.all()) == (mode == "same_step")


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_step_may_open_a_rollout(mode):
    rows = account(12, 1, mode)
    with collecting(config_of("Staggered", env__n_envs=1, env__autoreset=mode)) as (agent, it):
        it.collect(agent, 3, env_step_budget=10**6)
        second = it.collect(agent, 5, env_step_budget=10**6)
    assert second.rollout.valid[:, 0].tolist() == [mode == "same_step"] + [True] * 4
    assert second.env_steps == sum(row[0].acted for row in rows[3:8])
    batch = flatten_valid(second.rollout, *estimate(second.rollout))
    told = [row[0].state for row in rows[3:8] if row[0].acted]
    assert batch.observations.tolist() == [list(state) for state in told]


@pytest.mark.parametrize(("mode", "backend"), WAYS)
def test_at_a_time_limit_the_target_bootstraps_from_the_true_last_observation(mode, backend):
    config = config_of(
        "Cnt",
        env__kwargs={"length": 1000},
        env__max_episode_steps=4,
        env__autoreset=mode,
        env__backend=backend,
    )
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 9, env_step_budget=10**6).rollout
    advantages, returns = estimate(rollout)
    assert rollout.truncated[:, 0].nonzero().flatten().tolist() == (
        [3, 7] if mode == "same_step" else [3, 8]
    )
    last = 8 if mode == "next_step" else 7
    expected = 1.0 + GAMMA * critic(agent, [[4.0], [104.0]])
    assert_allclose(returns[[3, last], 0], expected, rtol=1e-5)
    assert_allclose(advantages[3, 0], expected[0] - critic(agent, [[3.0]])[0], rtol=1e-4)
    # What the network would say of the reset observation is another number.
    assert abs(float(expected[0] - 1.0 - GAMMA * critic(agent, [[100.0]])[0])) > 0.1


@pytest.mark.parametrize(("mode", "backend"), WAYS)
def test_advantages_of_live_rows_are_the_mixture_of_k_step_estimates(mode, backend):
    rows = account(20, 3, mode)
    config = config_of("Staggered", env__n_envs=3, env__autoreset=mode, env__backend=backend)
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 20, env_step_budget=10**6).rollout
    advantages, returns = estimate(rollout)
    for env in range(3):
        lived = [step[env] for step in rows if step[env].acted]
        values = critic(agent, [row.state for row in lived]).double()
        column = Column(
            rewards=[row.reward for row in lived],
            values=values.tolist(),
            next_values=critic(agent, [row.reached for row in lived]).tolist(),
            terminated=[row.terminated for row in lived],
            truncated=[row.truncated for row in lived],
            cut=[False] * len(lived),
        )
        expected = torch.tensor(mixture_advantages(column, GAMMA, LAMBDA))
        valid = rollout.valid[:, env]
        assert_allclose(advantages[valid, env], expected, rtol=1e-4, atol=1e-3)
        assert_allclose(returns[valid, env], expected + values, rtol=1e-4, atol=1e-3)


# --- actions ---


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_raw_action_is_stored_and_the_clipped_one_sent(backend):
    config = config_of(
        "Echo",
        env__kwargs={"action": "box3", "length": 1000},
        env__backend=backend,
        policy__log_std_init=math.log(5.0),
    )
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 16, env_step_budget=10**6).rollout
    assert float(rollout.actions.abs().max()) > 1.0
    assert_array_equal(rollout.next_observations, rollout.actions.clamp(-1.0, 1.0))


def test_discrete_actions_are_stored_from_zero_and_sent_from_their_start():
    config = config_of("Echo", env__kwargs={"action": "start5", "length": 1000})
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 32, env_step_budget=10**6).rollout
    assert set(rollout.actions.flatten().tolist()) == {0, 1, 2}
    assert_array_equal(rollout.next_observations, rollout.actions + 5)


@pytest.mark.parametrize("toy", ["Staggered", "StaggeredBox"])
@pytest.mark.parametrize("mode", MODES)
def test_before_any_gradient_step_every_ratio_is_one(toy, mode):
    config = config_of(
        toy,
        env__autoreset=mode,
        policy__log_std_init=1.5,
        normalize__observations=True,
        normalize__rewards=True,
    )
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 24, env_step_budget=10**6).rollout
    batch = flatten_valid(rollout, *estimate(rollout))
    order = torch.randperm(batch.size, generator=torch.Generator().manual_seed(1))
    minibatch = batch.rows(order[:7])
    with torch.no_grad():
        logratio = (
            agent.networks.policy(minibatch.observations).log_prob(minibatch.actions)
            - minibatch.log_probs
        )
    assert_allclose(logratio.exp(), 1.0, rtol=2e-6)
    assert float(approx_kl(logratio)) < 1e-10
    assert float(clip_fraction(logratio.exp(), clip_range=1e-4)) == 0.0


# --- statistics ---


@pytest.mark.parametrize("mode", MODES)
def test_statistics_count_the_rows_that_are_acted_in_and_nothing_else(mode):
    rows = account(26, 3, mode)
    config = config_of(
        "Staggered", env__n_envs=3, env__autoreset=mode, normalize__observations=True
    )
    with collecting(config) as (agent, collector):
        parts = [collector.collect(agent, 13, env_step_budget=10**6).rollout for _ in range(2)]
    moments = agent.observation_normalizer.moments
    counted = np.array([row.state for step in rows for row in step if row.acted], dtype=float)
    assert moments.count == len(counted)
    assert_allclose(moments.mean, counted.mean(axis=0))
    assert_allclose(moments.variance, counted.var(axis=0))

    def seen_with(statistics_of_step, states):
        known = np.array(
            [r.state for step in rows[: statistics_of_step + 1] for r in step if r.acted],
            dtype=float,
        )
        scaled = (np.array(states) - known.mean(axis=0)) / np.sqrt(known.var(axis=0) + 1e-8)
        return scaled.clip(-10.0, 10.0)

    for start, part in zip((0, 13), parts, strict=True):
        for t in range(13):
            step = rows[start + t]
            shown = seen_with(start + t, [row.state for row in step])
            assert_allclose(part.observations[t], shown, rtol=1e-5, atol=1e-6)
            for env, row in enumerate(step):
                # A state that is acted in later is seen with that step's statistics; a last one,
                # and where the collector stops, with those of the step that reached it.
                ends_here = row.ended or t == 12
                expected = seen_with(start + t if ends_here else start + t + 1, [row.reached])[0]
                assert_allclose(part.next_observations[t, env], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_rewards_are_scaled_by_the_spread_of_the_discounted_return(mode, gamma):
    rows = account(22, 3, mode)
    config = config_of(
        "Staggered",
        env__n_envs=3,
        env__autoreset=mode,
        normalize__rewards=True,
        ppo__gamma=gamma,
    )
    with collecting(config) as (agent, collector):
        parts = [collector.collect(agent, 11, env_step_budget=10**6).rollout for _ in range(2)]
    assert agent.reward_normalizer.gamma == gamma
    running = [0.0, 0.0, 0.0]
    known: list[float] = []
    for t, step in enumerate(rows):
        for env, row in enumerate(step):
            if row.acted:
                running[env] = gamma * running[env] + row.reward
                known.append(running[env])
            if row.ended:  # however it ended
                running[env] = 0.0
        part, i = parts[t // 11], t % 11
        raw = np.array([row.reward for row in step])
        expected = (raw / math.sqrt(np.var(known) + 1e-8)).clip(-10.0, 10.0)
        assert_array_equal(part.rewards[i], raw)
        assert_allclose(part.learner_rewards[i], expected, rtol=1e-5)
    assert agent.reward_normalizer.moments.count == len(known)


def test_the_networks_do_not_move_while_collecting():
    config = config_of("Staggered", normalize__observations=True)
    with collecting(config) as (agent, collector):
        before = {name: value.clone() for name, value in agent.networks.state_dict().items()}
        collector.collect(agent, 9, env_step_budget=10**6)
    for name, value in agent.networks.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in agent.networks.parameters())


@pytest.mark.filterwarnings("ignore:.*same observation array.*")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["term", "trunc"])
def test_an_environment_that_reuses_its_array_gives_the_same_rollout(mode, kind):
    rollouts = []
    for toy in ("Cnt", "Reuse"):
        config = config_of(
            toy,
            env__kwargs={"length": 2, "kind": kind},
            env__autoreset=mode,
            normalize__observations=True,
        )
        with collecting(config, verify=True) as (agent, collector):
            rollouts.append(collector.collect(agent, 9, env_step_budget=10**6).rollout)
    assert_same_rollout(*rollouts)


# --- seeds ---


def noisy(backend, seed=0):
    config = config_of(
        "Noise",
        seed=seed,
        env__kwargs={"length": 5},
        env__backend=backend,
        normalize__observations=True,
        normalize__rewards=True,
    )
    with collecting(config, verify=True) as (agent, collector):
        return [collector.collect(agent, 8, env_step_budget=10**6).rollout for _ in range(2)]


def test_the_same_seed_gives_the_same_bits_on_every_backend():
    first = noisy("sync")
    for again in (noisy("sync"), noisy("async")):
        for one, other in zip(first, again, strict=True):
            assert_same_rollout(one, other)
    assert not torch.equal(first[0].actions, noisy("sync", seed=1)[0].actions)
    assert not torch.equal(first[0].observations[:, 0], first[0].observations[:, 1])


# --- the budget ---


@pytest.mark.parametrize(("budget", "env_steps"), [(1, 3), (3, 3), (4, 6), (7, 9), (100, 24)])
def test_a_rollout_ends_at_its_budget_in_whole_vector_steps(budget, env_steps):
    with collecting(config_of("Cnt", env__n_envs=3), env_steps=30) as (agent, collector):
        collected = collector.collect(agent, 8, env_step_budget=budget)
    assert collected.env_steps == env_steps
    assert collected.rollout.rewards.shape == (env_steps // 3, 3)
    assert collector.env_steps == 30 + env_steps


def test_reset_steps_cost_no_budget():
    config = config_of("Cnt", env__kwargs={"length": 2}, env__autoreset="next_step")
    with collecting(config) as (agent, collector):
        collected = collector.collect(agent, 100, env_step_budget=10)
        after = collector.collect(agent, 1, env_step_budget=10)
    # act act reset act act reset act, of two environments
    assert collected.rollout.valid.tolist() == [[bool(v)] * 2 for v in (1, 1, 0, 1, 1, 0, 1)]
    assert collected.env_steps == 10
    assert after.env_steps == 2


def test_staggered_reset_steps_end_at_the_first_step_that_reaches_the_budget():
    rows = account(40, 3, "next_step")
    costs = np.cumsum([sum(row.acted for row in step) for step in rows])
    config = config_of("Staggered", env__n_envs=3, env__autoreset="next_step")
    for budget in (7, 8, 9, 10, 11, 12):
        with collecting(config) as (agent, collector):
            collected = collector.collect(agent, 40, env_step_budget=budget)
        n_rows = int(np.argmax(costs >= budget)) + 1
        assert collected.rollout.rewards.shape[0] == n_rows
        assert collected.env_steps == costs[n_rows - 1] == collected.rollout.n_valid


# --- episodes ---


@pytest.mark.parametrize(("mode", "backend"), WAYS)
@pytest.mark.parametrize("length", [2, 3])
def test_a_counting_episode_returns_its_length(mode, backend, length):
    config = config_of(
        "Cnt",
        env__kwargs={"length": length, "kind": "trunc"},
        env__autoreset=mode,
        env__backend=backend,
        normalize__rewards=True,
    )
    episodes = []
    with collecting(config) as (agent, collector):
        for _ in range(4):
            episodes += collector.collect(agent, 4, env_step_budget=10**6).episodes
    assert len(episodes) >= 6
    for summary in episodes:
        assert summary.episode.episode_return == summary.episode.length == length
        assert summary.episode.ended == "truncated"


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_closed_where_and_as_the_rows_say(mode):
    rows = account(24, 3, mode)
    config = config_of(
        "Staggered", env__n_envs=3, env__autoreset=mode, normalize__observations=True
    )
    summaries = []
    with collecting(config, env_steps=100) as (agent, collector):
        for _ in range(4):
            summaries += collector.collect(agent, 6, env_step_budget=10**6).episodes
    expected, done = [], 100
    sums = {env: [0.0, 0, 0.0, 0.0] for env in range(3)}
    for step in rows:
        done += sum(row.acted for row in step)
        for env, row in enumerate(step):
            _, episode, t = row.reached
            if row.acted:
                terms = (row.reward, 1, episode, t if t % 2 == 0 else 0)
                sums[env] = [a + b for a, b in zip(sums[env], terms, strict=True)]
            if row.ended:
                ended = "terminated" if row.terminated else "truncated"
                expected.append((done, env, *sums[env], ended))
                sums[env] = [0.0, 0, 0.0, 0.0]
    told = [
        (
            s.episode.env_steps,
            s.episode.env,
            s.episode.episode_return,
            s.episode.length,
            s.terms["reward_episode"],
            s.terms["reward_even"],
            s.episode.ended,
        )
        for s in summaries
    ]
    assert told == expected
    assert {row[-1] for row in told} == {"terminated", "truncated"}


def test_a_reset_forgets_the_episode_before_it():
    with collecting(config_of("Cnt", env__kwargs={"length": 3})) as (agent, collector):
        collector.collect(agent, 2, env_step_budget=10**6)
        collector.reset([0, 1])
        episodes = collector.collect(agent, 3, env_step_budget=10**6).episodes
    assert [summary.episode.length for summary in episodes] == [3, 3]


# --- numbers that are not finite ---


@pytest.mark.parametrize("quantity", ["observation", "reward"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_non_finite_number_of_an_environment_stops_the_rollout(quantity, value):
    config = config_of("Sick", env__kwargs={"quantity": quantity, "at": 5, "value": value})
    with collecting(config, env_steps=1000) as (agent, it), pytest.raises(NonFiniteError) as error:
        it.collect(agent, 8, env_step_budget=10**6)
    message = str(error.value)
    assert f"environment 0 returned a non-finite {quantity} at env step 1010" in message
    assert value.lstrip("-") in message
    assert "\n" not in message


class Poisoned:
    """A batch whose steps are edited on the way out."""

    def __init__(self, envs, **poison):
        self._envs, self._poison = envs, poison

    def __getattr__(self, name):
        return getattr(self._envs, name)

    def step(self, actions):
        step = self._envs.step(actions)
        edited = {}
        for name, (env, number) in self._poison.items():
            edited[name] = np.array(getattr(step, name))
            edited[name][env] = number
        return dataclasses.replace(step, **edited)


@pytest.mark.parametrize(
    ("field", "quantity"),
    [("rewards", "reward"), ("reached", "observation"), ("observations", "observation")],
)
def test_the_message_names_the_environment(field, quantity):
    config = config_of("Cnt", env__n_envs=3, normalize__observations=True)
    with collecting(config) as (agent, collector):
        collector.envs = Poisoned(collector.envs, **{field: (2, np.nan)})
        with pytest.raises(NonFiniteError, match=f"environment 2 .* non-finite {quantity} at"):
            collector.collect(agent, 4, env_step_budget=10**6)
    # Nothing that is not finite has reached the statistics.
    assert np.isfinite(agent.observation_normalizer.moments.mean).all()


def test_a_non_finite_first_observation_is_refused_at_reset():
    config = config_of("Sick", env__kwargs={"at": 0})
    with make_vector_env(config.env) as envs:
        collector = RolloutCollector(envs, generator=torch.Generator())
        with pytest.raises(NonFiniteError, match=r"environment 0 .* observation at env step 0"):
            collector.reset([0, 1])


# --- what does not matter ---


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_widths_of_observation_are_collected(dtype):
    config = config_of(
        "Precision",
        env__kwargs={"declared": dtype, "given": dtype},
        normalize__observations=True,
    )
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 6, env_step_budget=10**6).rollout
    assert rollout.observations.dtype == rollout.next_observations.dtype == torch.float32


def test_the_global_generator_is_not_touched():
    before = torch.get_rng_state()
    noisy("sync")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_evaluating_agent_is_left_as_it_was():
    """Normalising does not learn: only the collector moves the statistics."""
    config = config_of("Where", normalize__observations=True)
    with make_vector_env(config.env) as envs:
        agent = agent_of(config, envs)
        agent.normalize(envs.reset([0, 1]))
    assert agent.observation_normalizer.moments.count == 0


def test_a_policy_that_has_blown_up_is_not_blamed_on_the_environment():
    with collecting(config_of("StaggeredBox")) as (agent, collector):
        with torch.no_grad():
            agent.networks.actor[-1].bias.fill_(math.nan)
        with pytest.raises(NonFiniteError, match="policy's outputs are not finite at env step 0"):
            collector.collect(agent, 1, env_step_budget=100)


def test_a_categorical_policy_that_has_blown_up_is_named_too():
    with collecting(config_of("Staggered")) as (agent, collector):
        with torch.no_grad():
            agent.networks.actor[-1].bias.fill_(math.nan)
        with pytest.raises(NonFiniteError, match="policy's outputs are not finite at env step 0"):
            collector.collect(agent, 1, env_step_budget=100)
