"""Trainings to a stated result: minutes rather than seconds.

Returns are means over 40 whole episodes of the last agent's deterministic policy, in fresh
environments on seeds that training never saw; no checkpoint is chosen by its return.
"""

import numpy as np
import pytest
import torch

from ppo.agent import Agent
from ppo.config import from_mapping, load_config
from ppo.train import TrainResult, train
from tests.runs import ROOT

pytestmark = pytest.mark.slow

GAMMA = 0.99
LIMIT = 100


def train_shipped(name: str, tmp_path) -> TrainResult:
    """Train with a file of `configs/`, changed only in what does not touch learning."""
    overrides = [
        f"runs_dir={tmp_path}",
        "compile=off",
        "logging.progress=off",
        "eval.every=0",
        "eval.episodes=40",
    ]
    return train(load_config(ROOT / "configs" / f"{name}.yaml", overrides))


def test_cartpole_reaches_475_within_100_000_env_steps(tmp_path):
    result = train_shipped("cartpole", tmp_path)
    assert result.env_steps == 100_000
    assert result.evaluation.summary()["episodes"] == 40
    assert result.evaluation.summary()["mean"] >= 475


def test_pendulum_beats_minus_250_within_200_000_env_steps(tmp_path):
    result = train_shipped("pendulum", tmp_path)
    assert result.env_steps == 200_000
    assert result.evaluation.summary()["episodes"] == 40
    assert result.evaluation.summary()["mean"] > -250


def train_constant(tmp_path, time_limit: str) -> Agent:
    """Reward 1 a step, for ever; rewards are not scaled, so that V is in their units."""
    config = from_mapping(
        {
            "runs_dir": str(tmp_path),
            "compile": "off",
            "env": {
                "id": "tests.toys:Constant-v0",
                "n_envs": 4,
                "max_episode_steps": LIMIT,
                "time_limit": time_limit,
            },
            "normalize": {"observations": False, "rewards": False},
            "ppo": {
                "total_timesteps": 40_000,
                "n_steps": 128,
                "batch_size": 128,
                "learning_rate": 1e-3,
                "lr_schedule": "linear",
                "gamma": GAMMA,
            },
            "eval": {"episodes": 1},
            "logging": {"progress": "off", "tensorboard": False},
        },
        source="test",
    )
    return train(config).agent


def values(agent: Agent, observations: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        inputs = torch.from_numpy(agent.normalize(observations))
        return agent.networks.value(inputs).numpy()


def test_a_limit_outside_of_the_task_leaves_the_infinite_sum(tmp_path):
    """Every 100 steps a limit cuts in; the value must not notice: 1 / (1 - gamma) = 100."""
    value = values(train_constant(tmp_path, "external"), np.ones((1, 1)))
    assert value == pytest.approx(1 / (1 - GAMMA), rel=0.03)


def test_a_limit_of_the_task_leaves_the_finite_sum_of_what_is_left(tmp_path):
    left = np.array([LIMIT, 75, 50, 25, 10, 5])
    observations = np.stack([np.ones(len(left)), left / LIMIT], axis=1)
    value = values(train_constant(tmp_path, "task"), observations)
    assert value == pytest.approx((1 - GAMMA**left) / (1 - GAMMA), rel=0.03)
