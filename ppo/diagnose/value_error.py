"""How far V is from what really comes: played out beyond the time limit, without any bootstrap."""

import math

import numpy as np
import torch

from ppo.agent import Agent
from ppo.config import Config
from ppo.envs import make_vector_env
from ppo.gae import compute_gae
from ppo.normalize import VARIANCE_EPSILON
from ppo.seeding import Stream, env_seeds, torch_generator

# Of the future beyond the last step that is played, this much would still count.
REST = 1e-3


def value_error(agent: Agent, config: Config, *, seed: int) -> tuple[float, float]:
    """(bias, error) of V against discounted returns of the same stochastic policy.

    A time limit is not part of the task (`env.time_limit: external`), so what V should be is what
    would come if the episode went on: it is played on until nothing that counts is left. States
    are those within the limit.

    Args:
        agent: its statistics stay as they are; rewards are scaled with them.
        config: of the training.
        seed: of the environments.

    Returns:
        Mean of V - G and root of its mean square, both relative to the root mean square of G.

    Raises:
        ValueError: if gamma is 1, or there is no limit within which states are counted.
    """
    gamma = config.ppo.gamma
    if gamma >= 1.0:
        raise ValueError("with gamma 1 the return of a task that goes on has no end")
    scale = 1.0
    if agent.reward_normalizer is not None:
        scale = 1.0 / math.sqrt(
            float(agent.reward_normalizer.moments.variance[0]) + VARIANCE_EPSILON
        )
    beyond = math.ceil(math.log(REST) / math.log(gamma)) if gamma > 0.0 else 1
    with make_vector_env(config.env) as limited:
        limit = limited.time_limit
    if limit is None:
        raise ValueError("an environment without a time limit has no states within it")
    settings = config.env.model_copy(
        update={"max_episode_steps": limit + beyond, "autoreset": "same_step"}
    )
    generator = torch_generator(seed, Stream.EVALUATION_ACTIONS)
    policy, values, rewards, terminated = agent.acting_policy(), [], [], []
    with make_vector_env(settings) as envs:
        observations = envs.reset(env_seeds(seed, Stream.EVALUATION_ENVS, envs.n_envs))
        for _ in range(limit + beyond):
            seen = agent.normalize(observations)
            with torch.no_grad():
                values.append(agent.networks.value(torch.from_numpy(seen)).double())
            noise = agent.head.noise((envs.n_envs,), generator)
            step = envs.step(agent.head.to_env(policy.actions(policy.outputs(seen), noise)))
            rewards.append(torch.from_numpy(step.rewards * scale))
            terminated.append(torch.from_numpy(step.terminated.copy()))
            observations = step.observations
    zeros = torch.zeros(limit + beyond, settings.n_envs, dtype=torch.float64)
    _, returns = compute_gae(
        torch.stack(rewards),
        zeros,
        zeros,
        torch.stack(terminated),
        torch.zeros_like(zeros, dtype=torch.bool),
        gamma=gamma,
        gae_lambda=1.0,
    )
    truth = returns[:limit].numpy()
    errors = torch.stack(values)[:limit].numpy() - truth
    size = float(np.sqrt(np.mean(truth**2)))
    return float(errors.mean() / size), float(np.sqrt(np.mean(errors**2)) / size)
