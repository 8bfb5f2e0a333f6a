import copy

import pytest
import torch

from ppo.checkpoint import TrainingState
from ppo.collector import RolloutCollector
from ppo.config import from_mapping
from ppo.envs import make_vector_env
from ppo.errors import CheckpointError
from ppo.gae import compute_gae
from ppo.parameters import flatten_parameters, learning_rate_vector
from ppo.rollout import flatten_valid
from ppo.storage import read_checkpoint, write_checkpoint
from ppo.update import Coefficients, Hyperparameters, make_step, one_by_one, update
from tests.collecting import config_of

CPU = torch.device("cpu")
SETTINGS = Hyperparameters(
    n_epochs=2,
    batch_size=4,
    clip_range_vf=None,
    normalize_advantage="minibatch",
    vf_coef=0.5,
    max_grad_norm=0.5,
    target_kl=None,
)


def config_for(**changes):
    return config_of(
        "Noise",
        env__kwargs={"length": 3},
        normalize__observations=True,
        normalize__rewards=True,
        **changes,
    )


def fresh(config):
    with make_vector_env(config.env) as envs:
        return TrainingState.fresh(
            config,
            observation_size=envs.observation_size,
            action_space=envs.action_space,
            device=CPU,
        )


def iterate(state, config, n=1):
    """Whole iterations, each in environments that start anew: their state does not matter."""
    epoch = one_by_one(make_step(state.agent.networks, SETTINGS), batch_size=SETTINGS.batch_size)
    for _ in range(n):
        with make_vector_env(config.env) as envs:
            collector = RolloutCollector(envs, generator=state.actions, env_steps=state.env_steps)
            collector.reset([5, 6])
            collected = collector.collect(state.agent, 8, env_step_budget=100)
        rollout = collected.rollout
        advantages, returns = compute_gae(
            rollout.learner_rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            gamma=0.9,
            gae_lambda=0.9,
        )
        rates = learning_rate_vector(state.agent.networks, actor=1e-2, critic=1e-2)
        state.optimizer, learned = update(
            state.agent.networks,
            state.optimizer,
            flatten_valid(rollout, advantages, returns),
            Coefficients(rates, torch.tensor(0.2), torch.tensor(0.0), torch.tensor(True)),
            epoch=epoch,
            hyperparameters=SETTINGS,
            generator=state.permutations,
        )
        state.env_steps, state.iterations = collector.env_steps, state.iterations + 1
        state.n_updates += learned.n_updates
        state.recent.extend(collected.episodes)


def assert_same(one, other, path="contents"):
    """Equal to the bit, at any depth."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for k, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}[{k}]")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    else:
        assert one == other, path


def trained():
    config = config_for()
    state = fresh(config)
    iterate(state, config, n=2)
    state.resumes, state.evaluated_at, state.saved_at = 3, 16, 32
    state.best_return, state.learning_rate = -7.25, 1.25e-4
    return state, config


def test_everything_survives_a_file_that_plain_torch_reads(tmp_path):
    state, config = trained()
    contents = state.capture(config)
    write_checkpoint(tmp_path / "last.pt", contents)
    plain = torch.load(tmp_path / "last.pt", weights_only=True)
    assert plain.pop("format") == 1
    assert_same(plain, contents)
    assert from_mapping(plain["config"], source="a test") == config
    restored = TrainingState.restore(read_checkpoint(tmp_path / "last.pt"), config, CPU)
    assert_same(restored.capture(config), contents)
    assert (restored.best_return, restored.learning_rate) == (-7.25, 1.25e-4)
    assert (restored.resumes, restored.evaluated_at, restored.saved_at) == (3, 16, 32)
    assert (restored.env_steps, restored.iterations, restored.n_updates) == (32, 2, 16)
    assert len(restored.recent) == len(state.recent) > 0


def test_a_restored_state_goes_on_to_the_same_bits(tmp_path):
    state, config = trained()
    write_checkpoint(tmp_path / "last.pt", state.capture(config))
    restored = TrainingState.restore(read_checkpoint(tmp_path / "last.pt"), config, CPU)
    iterate(state, config, n=2)
    iterate(restored, config, n=2)
    assert_same(restored.capture(config), state.capture(config))


@pytest.mark.parametrize("lost", ["actions", "permutations", "optimizer"])
def test_each_part_of_the_state_matters(lost):
    """What the test above relies on: without one of them, going on gives other numbers."""
    state, config = trained()
    contents = copy.deepcopy(state.capture(config))
    if lost == "optimizer":
        contents["optimizer"]["exp_avg_sq"].mul_(2.0)
    else:
        contents["generators"][lost] = torch.Generator().manual_seed(99).get_state()
    restored = TrainingState.restore(contents, config, CPU)
    iterate(state, config)
    iterate(restored, config)
    ours, theirs = (flatten_parameters(s.agent.networks) for s in (state, restored))
    assert not torch.equal(ours, theirs)


def test_a_capture_does_not_change_any_more():
    state, config = trained()
    contents = state.capture(config)
    kept = copy.deepcopy(contents)
    iterate(state, config)
    assert_same(contents, kept)


def test_restoring_shares_nothing_with_the_contents():
    state, config = trained()
    contents = state.capture(config)
    kept = copy.deepcopy(contents)
    iterate(TrainingState.restore(contents, config, CPU), config)
    assert_same(contents, kept)


def test_a_fresh_state_is_drawn_from_the_seed():
    config = config_for()
    assert_same(fresh(config).capture(config), fresh(config).capture(config))
    other = fresh(config_for(seed=1))
    assert not torch.equal(other.actions.get_state(), fresh(config).actions.get_state())
    draws = [
        torch.rand(1, generator=generator).item()
        for state in (fresh(config), other)
        for generator in (state.actions, state.permutations)
    ]
    assert len(set(draws)) == 4


PARTS = [
    ("agent",),
    ("optimizer",),
    ("optimizer", "exp_avg"),
    ("generators", "permutations"),
    ("learning_rate",),
    ("counters",),
    ("recent_episodes",),
    ("agent", "networks", "log_std"),
    ("agent", "head"),
]


@pytest.mark.parametrize("path", PARTS, ids=".".join)
def test_a_missing_part_is_one_line(path):
    state, config = trained()
    contents = copy.deepcopy(state.capture(config))
    part = contents
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    with pytest.raises(CheckpointError, match="does not fit this version") as error:
        TrainingState.restore(contents, config, CPU)
    assert "\n" not in str(error.value)


def test_a_counter_that_is_not_known_is_refused():
    state, config = trained()
    contents = state.capture(config)
    contents["counters"]["moon_phase"] = 3
    with pytest.raises(CheckpointError, match="does not fit this version"):
        TrainingState.restore(contents, config, CPU)
