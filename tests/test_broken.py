"""The estimators that break the contract do exactly the fault that they are named after."""

import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from ppo.diagnose import broken
from ppo.diagnose.value_error import value_error
from ppo.rollout import Rollout
from ppo.train import train
from tests.collecting import collecting, config_of
from tests.runs import config

CASES = json.loads((Path(__file__).parent / "data" / "gae_cases.json").read_text())["cases"]
CASE = next(case for case in CASES if case["name"] == "truncation_inside_a_rollout")
DISCOUNT = broken.Discount(CASE["gamma"], CASE["gae_lambda"])


def column(numbers, dtype=torch.float64):
    return torch.tensor(numbers, dtype=dtype)[:, None]


def rollout_of(case, **changes):
    """One environment's rows; what the estimators do not read is zero."""
    rows = len(case["rewards"])
    known = {
        "rewards": column(case["rewards"]),
        "learner_rewards": column(case["rewards"]),
        "values": column(case["values"]),
        "next_values": column(case["next_values"]),
        "terminated": column(case["terminated"], torch.bool),
        "truncated": column(case["truncated"], torch.bool),
        "valid": torch.ones(rows, 1, dtype=torch.bool),
    } | changes
    return Rollout(**{f.name: known.get(f.name, torch.zeros(rows, 1, 1)) for f in fields(Rollout)})


def numbers(tensor):
    return tensor[:, 0].tolist()


VALUES = torch.tensor(CASE["values"], dtype=torch.float64)
RIGHT, RIGHT_TARGETS = CASE["advantages"], CASE["returns"]
# By hand, with every bootstrap right: 3.6 + 0.45 * 1.7, and 1.4 + 0.45 * 4.365.
LEAKING = [3.36425, 4.365, 1.7]


@pytest.mark.parametrize(
    ("estimator", "advantages", "targets_of"),
    [
        (broken.correct, RIGHT, RIGHT),
        (broken.truncation_as_termination, *[CASE["wrong"]["done_masks_both"]] * 2),
        (broken.chain_leaks, LEAKING, LEAKING),
        (broken.reset_bootstrap, *[CASE["wrong"]["bootstraps_reset_state"]] * 2),
        (broken.current_bootstrap, *[CASE["wrong"]["bootstraps_current_state"]] * 2),
        (broken.target_without_bootstrap, RIGHT, CASE["wrong"]["done_masks_both"]),
        (broken.advantage_without_bootstrap, CASE["wrong"]["done_masks_both"], RIGHT),
        (broken.phantom_rows, RIGHT, RIGHT),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_fault_on_a_case_worked_out_by_hand(estimator, advantages, targets_of):
    rollout = rollout_of(CASE)
    made = estimator(None, rollout, DISCOUNT)
    assert numbers(made.advantages) == pytest.approx(advantages, abs=1e-12)
    targets = [a + v for a, v in zip(targets_of, CASE["values"], strict=True)]
    assert numbers(made.returns) == pytest.approx(targets, abs=1e-12)
    # The rows that are learned from are the collected ones, not edited copies.
    assert made.rollout.terminated is rollout.terminated
    assert made.rollout.next_values is rollout.next_values


def test_a_termination_is_left_alone_by_every_fault_of_the_time_limit():
    case = CASE | {"terminated": [False, True, False], "truncated": [False, True, False]}
    rollout = rollout_of(case)
    right = broken.correct(None, rollout, DISCOUNT)
    for estimator in (
        broken.truncation_as_termination,
        broken.reset_bootstrap,
        broken.current_bootstrap,
        broken.target_without_bootstrap,
        broken.advantage_without_bootstrap,
    ):
        made = estimator(None, rollout, DISCOUNT)
        assert torch.equal(made.advantages, right.advantages), estimator.__name__
        assert torch.equal(made.returns, right.returns), estimator.__name__


def test_reset_rows_are_learned_from_by_that_fault_alone():
    valid = column([True, True, False], torch.bool)
    rollout = rollout_of(CASE, valid=valid)
    assert broken.phantom_rows(None, rollout, DISCOUNT).batch().size == 3
    assert broken.correct(None, rollout, DISCOUNT).batch().size == 2
    assert torch.equal(rollout.valid, valid)


def test_the_last_observation_reaches_the_critic_as_the_environment_gave_it():
    settings = config_of(
        "Cnt", env__kwargs={"length": 3, "kind": "trunc"}, normalize__observations=True
    )
    with collecting(settings) as (agent, collector):
        moments = agent.observation_normalizer.moments
        moments.mean, moments.variance = np.array([50.0]), np.array([400.0])
        moments.count = 1e12  # what it is undone with is then what it was done with
        agent.observation_normalizer.refresh()
        rollout = collector.collect(agent, 7, env_step_budget=10_000).rollout
        made = broken.raw_last_observation(agent, rollout, DISCOUNT)
        with torch.no_grad():
            raw = [agent.networks.value(torch.tensor([[v]])).item() for v in (3.0, 103.0)]
    right = broken.correct(agent, rollout, DISCOUNT)
    at_end = rollout.truncated
    assert at_end[:, 0].tolist() == [False, False, True] * 2 + [False]
    expected = torch.zeros_like(rollout.values)
    for row, value in zip((2, 5), raw, strict=True):
        expected[row] = value
    # The advantage of a last row is r + gamma V - V(s): only V of the last observation differs.
    change = DISCOUNT.gamma * (expected - rollout.next_values)
    torch.testing.assert_close(
        (made.advantages - right.advantages)[at_end], change[at_end], rtol=1e-4, atol=1e-4
    )
    assert (made.advantages - right.advantages)[at_end].abs().min() > 1e-3


def test_it_needs_normalisation_to_be_forgotten():
    settings = config_of("Cnt", normalize__observations=False)
    with collecting(settings) as (agent, collector):
        rollout = collector.collect(agent, 4, env_step_budget=10_000).rollout
        with pytest.raises(ValueError, match="without normalisation"):
            broken.raw_last_observation(agent, rollout, DISCOUNT)


def constant_critic(agent, value):
    for parameter in agent.networks.critic.parameters():
        parameter.data.zero_()
    list(agent.networks.critic.parameters())[-1].data.fill_(value)


ENDLESS = {"length": 10**9, "kind": "term", "action": "box"}


@pytest.mark.parametrize(("value", "bias"), [(5.0, 0.0), (0.0, -1.0), (10.0, 1.0)])
def test_the_value_error_looks_beyond_the_time_limit(tmp_path, value, bias):
    """1 a step for ever is worth 1 / (1 - 0.8) = 5, however short the episodes of training are."""
    settings = config(
        tmp_path, "Cnt", "ppo.gamma=0.8", "normalize.rewards=false", kwargs=ENDLESS,
        max_episode_steps=7,
    )  # fmt: skip
    agent = train(settings).agent
    constant_critic(agent, value)
    measured, error = value_error(agent, settings, seed=3)
    assert measured == pytest.approx(bias, abs=2e-3)
    assert error == pytest.approx(abs(bias), abs=2e-3)


def test_the_value_error_is_of_scaled_rewards_and_stops_at_terminations(tmp_path):
    settings = config(
        tmp_path, "Cnt", "ppo.gamma=0.5", kwargs=ENDLESS | {"length": 2}, max_episode_steps=2
    )
    agent = train(settings).agent
    constant_critic(agent, 0.0)
    before = agent.state()
    bias, error = value_error(agent, settings, seed=3)
    # Worth 1.5 and 1 before the end, in turn: mean 1.25, root mean square sqrt(1.625).
    assert bias == pytest.approx(-1.25 / math.sqrt(1.625), abs=1e-3)
    assert error == pytest.approx(1.0, abs=1e-6)
    scale = 1.0 / math.sqrt(float(agent.reward_normalizer.moments.variance[0]) + 1e-8)
    constant_critic(agent, 1.25 * scale)
    assert value_error(agent, settings, seed=3)[0] == pytest.approx(0.0, abs=1e-3)
    assert before["reward_moments"] == agent.state()["reward_moments"]


def test_what_has_no_end_or_no_limit_cannot_be_measured(tmp_path):
    unlimited = config(tmp_path, "Cnt", kwargs=ENDLESS)
    agent = train(unlimited).agent
    with pytest.raises(ValueError, match="without a time limit"):
        value_error(agent, unlimited, seed=0)
    endless = config(tmp_path, "Cnt", "ppo.gamma=1", kwargs=ENDLESS, max_episode_steps=7)
    with pytest.raises(ValueError, match="gamma 1"):
        value_error(agent, endless, seed=0)
