"""Rows that an agent collects, as training would collect them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ppo.agent import Agent
from ppo.collector import RolloutCollector
from ppo.config import Config, from_mapping
from ppo.diagnose.csvfile import count_episodes, count_steps
from ppo.diagnose.rows import Rows
from ppo.envs import make_vector_env
from ppo.rollout import Rollout
from ppo.rundir import RunDirectory
from ppo.seeding import Stream, env_seeds, torch_generator
from ppo.storage import damage_named, read_checkpoint


def load_run(path: str | Path, *, checkpoint: str, overrides: list[str]) -> tuple[Agent, Config]:
    """The agent of a run's checkpoint, and the run's config with overrides.

    Raises:
        UserError: if there is no such checkpoint, or it cannot be read.
    """
    file = RunDirectory.open(path).checkpoint(checkpoint)
    contents = read_checkpoint(file)
    with damage_named(str(file)):
        config = from_mapping(contents["config"], source=str(file), overrides=overrides)
    return Agent.load(file), config


def play(agent: Agent | None, config: Config, *, n_envs: int, episodes: int, steps: int) -> Rows:
    """Rollouts of `ppo.n_steps`, one after the other, until enough episodes have ended.

    The networks do not move between them, so that a row that a rollout's end cut is followed by
    the state that it reached. The statistics of the normalisers go on as in training.

    Args:
        agent: None is a fresh one.
        config: of the task and the estimator.
        n_envs: environments side by side.
        episodes: that must have ended, in all environments together.
        steps: vector steps at the most.

    Raises:
        UserError: as training, if an environment cannot be made or fails.
    """
    torch.set_num_threads(config.torch_threads)
    with make_vector_env(config.env, n_envs=n_envs) as envs:
        agent = agent or Agent.create(
            config,
            observation_size=envs.observation_size,
            action_space=envs.action_space,
            device=torch.device("cpu"),
        )
        collector = RolloutCollector(envs, generator=torch_generator(config.seed, Stream.ACTIONS))
        collector.reset(env_seeds(config.seed, Stream.EVALUATION_ENVS, n_envs))
        rollouts: list[Rollout] = []
        done = ended = 0
        while done < steps and ended < episodes:
            length = min(config.ppo.n_steps, steps - done)
            collected = collector.collect(agent, length, env_step_budget=length * n_envs)
            rollouts.append(collected.rollout)
            done += len(collected.rollout.rewards)
            ended += len(collected.episodes)
    return _as_rows(rollouts, episodes=episodes)


def _as_rows(rollouts: list[Rollout], *, episodes: int) -> Rows:
    """One environment after the other; reset steps, in which nobody acted, are no rows.

    What was collected after enough episodes had ended is left out.
    """
    cuts = [torch.zeros_like(rollout.terminated) for rollout in rollouts]
    for cut in cuts:
        cut[-1] = True
    ends = torch.cat([rollout.terminated | rollout.truncated for rollout in rollouts])
    enough = (ends.sum(dim=1).cumsum(0) >= episodes).nonzero()
    length = int(enough[0]) + 1 if len(enough) else len(ends)

    def by_env(parts: list[torch.Tensor]) -> Any:
        """[T, N] of several rollouts as [N * length], environment by environment."""
        return torch.cat(parts)[:length].T.reshape(-1).cpu().numpy()

    valid = by_env([rollout.valid for rollout in rollouts])

    def column(name: str, dtype: Any = np.float64) -> Any:
        return by_env([getattr(rollout, name) for rollout in rollouts])[valid].astype(dtype)

    env = np.repeat(np.arange(ends.shape[1]), length)[valid]
    terminated, truncated = column("terminated", np.bool_), column("truncated", np.bool_)
    rows = Rows(
        env=env,
        episode=count_episodes(env, terminated | truncated),
        step=count_steps(env),
        env_rewards=column("rewards"),
        rewards=column("learner_rewards"),
        values=column("values"),
        next_values=column("next_values"),
        terminated=terminated,
        truncated=truncated,
        cut=by_env(cuts)[valid] & ~(terminated | truncated),
    )
    return rows.close_environments()
