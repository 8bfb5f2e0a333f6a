from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from ppo import collector as collector_module
from ppo.envs import EnvBatch
from ppo.errors import ContractError
from ppo.verify import Reached, Witness, check_rollout
from tests.collecting import BACKENDS, MODES, collecting, config_of

TOYS = [
    ("Cnt", {"length": 2, "kind": "term"}),
    ("Cnt", {"length": 3, "kind": "trunc"}),
    ("Cnt", {"length": 1, "kind": "both"}),
    ("Staggered", {}),
    ("StaggeredBox", {}),
    ("Where", {}),
    ("OddReward", {"form": "int"}),
    ("OddReward", {"form": "one_element"}),
    ("Echo", {"action": "start5"}),
    ("Echo", {"action": "multi"}),
    ("Echo", {"action": "skewed"}),
    ("Echo", {"action": "mixed_bounds"}),
    ("Precision", {"declared": "float64", "given": "float32"}),
    ("Shown", {"form": "dict"}),
    ("Shown", {"form": "image"}),
    ("Noise", {}),
]


@pytest.mark.parametrize(("toy", "kwargs"), TOYS)
@pytest.mark.parametrize("mode", MODES)
def test_every_toy_keeps_the_contract(toy, kwargs, mode):
    config = config_of(
        toy,
        env__kwargs=kwargs,
        env__autoreset=mode,
        env__n_envs=3,
        normalize__observations=True,
        normalize__rewards=True,
    )
    with collecting(config, verify=True) as (agent, collector):
        for n_steps in (7, 1, 2):
            collector.collect(agent, n_steps, env_step_budget=10**6)


@pytest.mark.filterwarnings("ignore:.*same observation array.*")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", ["external", "task"])
def test_time_limits_and_reused_arrays_keep_it(mode, limit):
    for toy, kwargs in (("Constant", {}), ("Reuse", {"length": 50, "view": True})):
        config = config_of(
            toy,
            env__kwargs=kwargs,
            env__max_episode_steps=3,
            env__time_limit=limit,
            env__autoreset=mode,
            normalize__observations=True,
        )
        with collecting(config, verify=True) as (agent, collector):
            collector.collect(agent, 8, env_step_budget=10**6)


def test_worker_processes_keep_it():
    config = config_of("Staggered", env__backend=BACKENDS[1], normalize__observations=True)
    with collecting(config, verify=True) as (agent, collector):
        collector.collect(agent, 9, env_step_budget=10**6)


def live(mode="same_step"):
    """A sound rollout of Staggered with three environments, and the values of what it reached."""
    config = config_of("Staggered", env__n_envs=3, env__autoreset=mode)
    with collecting(config) as (agent, collector):
        rollout = collector.collect(agent, 12, env_step_budget=10**6).rollout
    with torch.no_grad():
        reached = rollout.next_observations.clone()
        return rollout, Reached(reached, agent.networks.value(reached))


def refusal(rollout, reached):
    with pytest.raises(ContractError) as error:
        check_rollout(rollout, reached)
    message = str(error.value)
    assert "\n" not in message
    return message


def edited(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize("mode", MODES)
def test_a_sound_rollout_passes(mode):
    check_rollout(*live(mode))


@pytest.mark.parametrize("name", ["terminated", "truncated", "valid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_flags_must_be_bool(name, dtype):
    rollout, reached = live()
    message = refusal(replace(rollout, **{name: getattr(rollout, name).to(dtype)}), reached)
    assert f"{name} must be bool, not {dtype}" in message


@pytest.mark.parametrize(
    "name",
    ["observations", "next_observations", "log_probs", "rewards", "learner_rewards", "values"],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_must_be_finite(name, value):
    rollout, reached = live()
    place = (3, 2, 1) if getattr(rollout, name).ndim == 3 else (3, 2)
    broken = replace(rollout, **{name: edited(getattr(rollout, name), place, value)})
    assert refusal(broken, reached).endswith(f"{name} is not finite at row 3 of environment 2")


def test_a_next_value_of_another_state_is_caught():
    rollout, reached = live()
    row, env = rollout.truncated.nonzero()[0].tolist()
    assert row < 11
    wrong = edited(rollout.next_values, (row, env), rollout.values[row + 1, env])
    message = refusal(replace(rollout, next_values=wrong), reached)
    assert f"next_values is not the value of the observation that the row led to, at row {row}" in (
        message
    )
    assert f"environment {env}" in message


def test_the_tolerance_is_relative():
    rollout, reached = live()
    big = replace(rollout, next_values=torch.full_like(rollout.next_values, 1e6))
    check_rollout(big, reached._replace(values=torch.full_like(reached.values, 1e6 + 5.0)))
    assert "next_values" in refusal(
        big, reached._replace(values=torch.full_like(reached.values, 1e6 + 50.0))
    )


def test_an_end_that_was_dropped_is_a_leak():
    rollout, reached = live()
    for name in ("terminated", "truncated"):
        only = getattr(rollout, name) & ~(rollout.terminated & rollout.truncated)
        row, env = only.nonzero()[0].tolist()
        broken = replace(rollout, **{name: edited(getattr(rollout, name), (row, env), False)})
        message = refusal(broken, reached)
        assert f"the row at row {row} of environment {env} claims to continue" in message


def test_running_on_into_a_reset_step_is_a_leak():
    rollout, reached = live("next_step")
    row, env = (rollout.terminated & ~rollout.truncated).nonzero()[0].tolist()
    assert not rollout.valid[row + 1, env]
    broken = replace(rollout, terminated=edited(rollout.terminated, (row, env), False))
    assert "is not closed" in refusal(broken, reached)


def test_an_end_in_a_row_without_an_action_is_a_phantom():
    rollout, reached = live("next_step")
    row, env = (~rollout.valid).nonzero()[0].tolist()
    for name in ("terminated", "truncated"):
        broken = replace(rollout, **{name: edited(getattr(rollout, name), (row, env), True)})
        message = refusal(broken, reached)
        assert f"row {row} of environment {env} ends an episode, but nobody acted" in message


def assert_refused(config, match):
    refused = pytest.raises(ContractError, match=match)
    with collecting(config, verify=True) as (agent, collector), refused:
        collector.collect(agent, 8, env_step_budget=10**6)


def test_a_collector_that_bootstraps_from_the_reset_observation_is_caught(monkeypatch):
    sound = collector_module._Columns.next_observations

    def shifted(self):
        reached = sound(self)
        reached[:-1] = self.observations[1:]
        return reached

    monkeypatch.setattr(collector_module._Columns, "next_observations", shifted)
    assert_refused(config_of("Staggered"), "led to")


def test_a_collector_that_uses_the_statistics_of_another_step_is_caught(monkeypatch):
    sound = collector_module._Columns.next_observations

    def stale(self):
        reached = sound(self)
        reached[2] = self.arrivals_of_every_step[2]
        return reached

    def saw_step(self, step, closes):
        kept.append(self._agent.normalize(step.reached))
        witnessed(self, step, closes)

    kept: list = []
    witnessed = Witness.saw_step
    monkeypatch.setattr(Witness, "saw_step", saw_step)
    monkeypatch.setattr(collector_module._Columns, "next_observations", stale)
    monkeypatch.setattr(collector_module._Columns, "arrivals_of_every_step", kept, raising=False)
    config = config_of("Cnt", env__kwargs={"length": 100}, normalize__observations=True)
    assert_refused(config, "led to, at row 2 of environment 0")


def test_an_end_that_the_environments_hide_is_caught_on_live_data():
    """The values agree then, since the row is taken to reach what was shown next."""
    sound = EnvBatch.step

    def hiding(self, actions):
        step = sound(self, actions)
        no_end = np.zeros(self.n_envs, dtype=np.bool_)
        return replace(step, terminated=no_end, truncated=no_end)

    with mock.patch.object(EnvBatch, "step", hiding):
        assert_refused(config_of("Staggered"), "led to|is not closed")
