import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from ppo.agent import Agent
from ppo.envs import make_vector_env
from ppo.errors import CheckpointError
from ppo.storage import write_checkpoint
from tests.collecting import agent_of, collecting, config_of

CPU = torch.device("cpu")


def agent_for(toy="Echo", action="box3", **changes):
    """An agent with a policy that is not near zero, and statistics that matter."""
    config = config_of(toy, env__kwargs={"action": action}, normalize__observations=True, **changes)
    with make_vector_env(config.env) as envs:
        agent = agent_of(config, envs)
    rng = np.random.default_rng(0)
    agent.observation_normalizer.update(3.0 + 2.0 * rng.normal(size=(50, agent.observation_size)))
    with torch.no_grad():
        agent.networks.actor[-1].weight.mul_(100.0)
    return agent, config


def observations_for(agent, n):
    rng = np.random.default_rng(1)
    return rng.normal(3.0, 2.0, size=(n, agent.observation_size)).astype(np.float32)


ACTIONS = {
    "box": ((1,), np.float32),
    "box3": ((3,), np.float32),
    "skewed": ((2,), np.float32),
    "infinite": ((2,), np.float32),
    "mixed_bounds": ((3,), np.float32),
    "discrete": ((), np.int64),
    "start5": ((), np.int64),
    "multi": ((2,), np.int64),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_predictions_are_actions_of_the_space_for_one_and_for_many(action, deterministic):
    agent, config = agent_for(action=action)
    shape, dtype = ACTIONS[action]
    with make_vector_env(config.env) as envs:
        space = envs.action_space
    observations = observations_for(agent, 20)
    many = agent.predict(observations, deterministic=deterministic)
    assert many.shape == (20, *shape)
    assert many.dtype == dtype
    assert all(space.contains(one) for one in many)
    one = agent.predict(observations[0], deterministic=deterministic)
    assert one.shape == shape
    assert space.contains(one)
    batch_of_one = agent.predict(observations[:1], deterministic=deterministic)
    assert batch_of_one.shape == (1, *shape)


@pytest.mark.parametrize("action", ["box3", "start5", "multi"])
def test_one_observation_is_a_batch_of_one(action):
    agent, _ = agent_for(action=action)
    observations = observations_for(agent, 12)
    singly = np.stack([agent.predict(observation) for observation in observations])
    np.testing.assert_allclose(agent.predict(observations), singly, rtol=1e-5, atol=1e-6)
    assert len(np.unique(singly, axis=0)) > 1


def test_a_box_policy_predicts_its_clipped_mean():
    agent, _ = agent_for(action="skewed")
    for mean, sent in (([0.5, -0.5], [0.5, -0.5]), ([-3.0, 9.0], [0.0, 2.0]), ([11, -7], [10, -2])):
        with torch.no_grad():
            agent.networks.actor[-1].weight.zero_()
            agent.networks.actor[-1].bias.copy_(torch.tensor(mean))
        assert_array_equal(agent.predict(observations_for(agent, 1)[0]), np.float32(sent))


def test_a_discrete_policy_predicts_in_the_space_s_own_numbers():
    agent, _ = agent_for(action="start5")
    with torch.no_grad():
        agent.networks.actor[-1].weight.zero_()
        agent.networks.actor[-1].bias.copy_(torch.tensor([0.0, 0.0, 9.0]))
    assert int(agent.predict(observations_for(agent, 1)[0])) == 7
    agent, _ = agent_for(action="multi")
    with torch.no_grad():
        agent.networks.actor[-1].weight.zero_()
        agent.networks.actor[-1].bias.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0, 9.0]))
    assert agent.predict(observations_for(agent, 2)).tolist() == [[1, 12], [1, 12]]


def test_predictions_use_the_statistics_and_leave_them():
    agent, _ = agent_for()
    observation = observations_for(agent, 1)
    moments = agent.observation_normalizer.moments
    before = (moments.count, moments.mean.copy(), moments.variance.copy())
    with torch.no_grad():
        scaled = (observation - moments.mean) / np.sqrt(moments.variance + 1e-8)
        mean = agent.networks.actor(torch.tensor(scaled, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(agent.predict(observation), mean.clip(-1, 1), rtol=1e-5, atol=1e-6)
    assert moments.count == before[0]
    assert_array_equal(moments.mean, before[1])
    assert_array_equal(moments.variance, before[2])


def test_samples_come_from_the_global_generator_and_modes_from_none():
    agent, _ = agent_for()
    observation = observations_for(agent, 1)[0]
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        draws += [agent.predict(observation, deterministic=False) for _ in range(2)]
    assert_array_equal(draws[0], draws[2])
    assert not np.array_equal(draws[0], draws[1])
    assert_array_equal(agent.predict(observation), agent.predict(observation))


@pytest.mark.parametrize("shape", [(4,), (2, 2), (5, 4), (0, 3), (0,), (), (7,)])
def test_observations_of_another_size_are_refused(shape):
    agent, _ = agent_for()
    with pytest.raises(ValueError, match="observations of 3 numbers") as error:
        agent.predict(np.zeros(shape))
    assert str(list(shape)) in str(error.value)


def test_other_shapes_are_flattened_as_in_training():
    config = config_of("Shown", env__kwargs={"form": "matrix"})
    with make_vector_env(config.env) as envs:
        agent = agent_of(config, envs)
    observations = np.arange(12.0, dtype=np.float32).reshape(3, 2, 2)
    assert_array_equal(agent.predict(observations), agent.predict(observations.reshape(3, 4)))
    assert agent.predict(observations[0]).shape == ()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_an_observation_of_one_number(n):
    agent, _ = agent_for("Cnt", action="discrete")
    assert agent.predict(np.zeros(1, np.float32)).shape == ()
    assert agent.predict(np.zeros((n, 1), np.float32)).shape == (n,)


# --- kept and loaded ---


def trained_state(tmp_path, action, **changes):
    agent, config = agent_for(action=action, **changes)
    file = tmp_path / "checkpoints" / "last.pt"
    write_checkpoint(file, {"agent": agent.state(), "config": config.to_mapping()})
    return agent, file


@pytest.mark.parametrize("action", ["box3", "skewed", "infinite", "discrete", "start5", "multi"])
def test_a_loaded_agent_acts_the_same(tmp_path, action):
    agent, file = trained_state(tmp_path, action, policy__activation="silu")
    observations = observations_for(agent, 30)
    for path in (file, str(file), tmp_path, str(tmp_path)):
        loaded = Agent.load(path)
        assert_array_equal(loaded.predict(observations), agent.predict(observations))
    torch.manual_seed(1)
    sampled = agent.predict(observations, deterministic=False)
    torch.manual_seed(1)
    assert_array_equal(loaded.predict(observations, deterministic=False), sampled)
    with torch.no_grad():
        inputs = torch.from_numpy(agent.normalize(observations))
        assert torch.equal(loaded.networks.value(inputs), agent.networks.value(inputs))


def test_all_statistics_are_kept(tmp_path):
    config = config_of("Staggered", normalize__observations=True, normalize__rewards=True)
    with collecting(config) as (agent, collector):
        collector.collect(agent, 9, env_step_budget=10**6)
    write_checkpoint(tmp_path / "a.pt", {"agent": agent.state(), "config": config.to_mapping()})
    loaded = Agent.load(tmp_path / "a.pt")
    for name in ("observation_normalizer", "reward_normalizer"):
        ours, theirs = getattr(agent, name), getattr(loaded, name)
        assert ours.moments.count == theirs.moments.count == 18
        assert_array_equal(ours.moments.mean, theirs.moments.mean)
        assert_array_equal(ours.moments.variance, theirs.moments.variance)
        assert theirs.clip == 10.0
    assert loaded.reward_normalizer.gamma == config.ppo.gamma
    # The copy learns alone.
    loaded.observation_normalizer.update(np.zeros((5, 3)))
    assert agent.observation_normalizer.moments.count == 18


def test_without_normalisers_observations_go_in_as_they_are(tmp_path):
    config = config_of("Staggered")
    with make_vector_env(config.env) as envs:
        agent = agent_of(config, envs)
    write_checkpoint(tmp_path / "a.pt", {"agent": agent.state(), "config": config.to_mapping()})
    loaded = Agent.load(tmp_path / "a.pt")
    assert loaded.observation_normalizer is loaded.reward_normalizer is None
    assert loaded.normalize(np.array([[1e3, 2.0, 3.0]])).tolist() == [[1e3, 2.0, 3.0]]


def test_a_state_that_was_taken_does_not_change_any_more():
    agent, config = agent_for()
    observations = observations_for(agent, 8)
    before, state = agent.predict(observations), agent.state()
    with torch.no_grad():
        for parameter in agent.networks.parameters():
            parameter.add_(1.0)
    agent.observation_normalizer.update(np.full((100, 3), 50.0))
    assert not np.array_equal(agent.predict(observations), before)
    assert_array_equal(Agent.from_state(state, config, CPU).predict(observations), before)


def test_a_seed_makes_an_agent():
    agents = [agent_for(seed=seed)[0] for seed in (0, 0, 1)]
    first, again, other = (agent.networks.critic[0].weight for agent in agents)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_where_there_is_no_agent_the_message_says_where(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.pt"):
        with pytest.raises(CheckpointError, match="there is no checkpoint here") as error:
            Agent.load(path)
        assert str(tmp_path) in str(error.value)
