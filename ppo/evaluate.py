"""Playing whole episodes with frozen statistics, apart from training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ppo.agent import Agent
from ppo.config import Config, from_mapping, refuse_changes
from ppo.distributions import Head, make_head
from ppo.envs import EnvBatch, make_vector_env
from ppo.errors import UserError
from ppo.finite import check_finite, check_policy
from ppo.rundir import RunDirectory
from ppo.seeding import Stream, env_seeds, torch_generator
from ppo.storage import damage_named, read_checkpoint


@dataclass(frozen=True)
class EvaluatedEpisode:
    """One whole episode: sum of the environment's rewards, env steps, and how it ended."""

    episode_return: float
    length: int
    ended: str


@dataclass(frozen=True)
class Evaluation:
    """Episodes of one evaluation, the same number from every environment.

    Attributes:
        episodes: in the order in which they ended.
        step_cap: env steps after which an episode was stopped.
    """

    episodes: tuple[EvaluatedEpisode, ...]
    step_cap: int

    @property
    def returns(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Of every episode."""
        return np.array([episode.episode_return for episode in self.episodes])

    @property
    def n_capped(self) -> int:
        """Episodes that the step cap stopped."""
        return sum(episode.ended == "capped" for episode in self.episodes)

    def summary(self) -> dict[str, float]:
        """mean, std (over episodes, n), median, min, max, and the mean length in env steps."""
        returns = self.returns
        return {
            "mean": float(returns.mean()),
            "std": float(returns.std()),
            "median": float(np.median(returns)),
            "min": float(returns.min()),
            "max": float(returns.max()),
            "mean_length": float(np.mean([episode.length for episode in self.episodes])),
            "episodes": len(self.episodes),
            "capped": self.n_capped,
        }

    def record(self) -> dict[str, Any]:
        """The summary, and the return of every episode; plain Python."""
        return {**self.summary(), "returns": self.returns.tolist()}

    def metrics(self) -> dict[str, float]:
        """The scalars that are logged during training."""
        summary = self.summary()
        return {
            "eval/mean_reward": summary["mean"],
            "eval/std_reward": summary["std"],
            "eval/mean_ep_length": summary["mean_length"],
        }


def evaluate(
    agent: Agent,
    envs: EnvBatch,
    *,
    episodes: int,
    seeds: list[int],
    deterministic: bool,
    step_cap: int,
    generator: torch.Generator,
) -> Evaluation:
    """Play `episodes` episodes, the same number in every environment.

    Short episodes cannot crowd out long ones: an environment that has played its share goes on
    unseen until the slowest is done.

    Args:
        agent: its statistics stay as they are.
        envs: fresh environments that cap every episode at `step_cap` env steps; `episodes` is a
            multiple of their number.
        episodes: in all environments together.
        seeds: one for each environment.
        deterministic: act with the mode instead of a sample.
        step_cap: env steps after which the environments stop an episode.
        generator: of the sampled actions' noise; not read if deterministic.

    Raises:
        NonFiniteError: if an environment returns a reward or observation that is not finite, or
            the agent's parameters have blown up.
    """
    share, place = episodes // envs.n_envs, " of an episode of the evaluation"
    # Where the task's own limit comes first, it is what ends an episode.
    can_cap = envs.time_limit is None or envs.time_limit > step_cap
    finished: list[EvaluatedEpisode] = []
    counts = np.zeros(envs.n_envs, dtype=np.int64)
    returns = np.zeros(envs.n_envs)
    lengths = np.zeros(envs.n_envs, dtype=np.int64)
    policy = agent.acting_policy()
    observations = envs.reset(seeds)
    check_finite("observation", observations, env_step=0, of=place)
    while (counts < share).any():
        noise = None if deterministic else agent.head.noise((envs.n_envs,), generator)
        outputs = policy.outputs(agent.normalize(observations))
        check_policy(outputs, env_step=int(lengths.max()), of=place)
        actions = policy.actions(outputs, noise)
        step = envs.step(agent.head.to_env(actions))
        check_finite("reward", step.rewards, env_step=lengths + 1, of=place)
        check_finite("observation", step.reached, env_step=lengths + 1, of=place)
        check_finite("observation", step.observations, env_step=lengths + 1, of=place)
        observations = step.observations
        returns += step.rewards
        lengths += step.acted
        for env in np.flatnonzero(step.terminated | step.truncated):
            if counts[env] < share:
                capped = can_cap and not step.terminated[env] and lengths[env] >= step_cap
                ended = "terminated" if step.terminated[env] else "truncated"
                finished.append(
                    EvaluatedEpisode(
                        float(returns[env]), int(lengths[env]), "capped" if capped else ended
                    )
                )
            counts[env] += 1
            returns[env], lengths[env] = 0.0, 0
    return Evaluation(tuple(finished), step_cap)


@dataclass(frozen=True)
class EvaluatedRun:
    """An evaluation of a checkpoint.

    Attributes:
        env_steps: at which the checkpoint was taken.
        selected: it was chosen among several by its return, so another evaluation of it on other
            seeds is likely to be lower than the one that chose it.
        deterministic: the mode of the policy was taken.
    """

    evaluation: Evaluation
    env_steps: int
    selected: bool
    deterministic: bool


def evaluate_run(
    run_dir: str | Path,
    *,
    checkpoint: str = "last",
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> EvaluatedRun:
    """Evaluate a checkpoint of a run.

    Args:
        run_dir: the run's folder.
        checkpoint: `last`, `best`, or the env steps of a step_N checkpoint.
        overrides: such as `"eval.episodes=20"`; what shapes the agent cannot change.
        seed: of the environments; None is the run's.

    Raises:
        UserError: if there is no such checkpoint, or the environment cannot be made.
    """
    file = RunDirectory.open(run_dir).checkpoint(checkpoint)
    contents = read_checkpoint(file)
    with damage_named(str(file)):
        env_steps = int(contents["counters"]["env_steps"])
        before = from_mapping(contents["config"], source=str(file))
    config = from_mapping(contents["config"], source=str(file), overrides=overrides)
    refuse_changes(before, config, ("seed", "policy", "normalize"))
    torch.set_num_threads(config.torch_threads)
    agent = Agent.load(file)
    return EvaluatedRun(
        evaluate_agent(agent, config, seed=seed),
        env_steps,
        checkpoint == "best",
        config.eval.deterministic,
    )


def evaluate_agent(
    agent: Agent,
    config: Config,
    *,
    stream: Stream = Stream.EVALUATION_ENVS,
    seed: int | None = None,
) -> Evaluation:
    """Evaluate in fresh environments, on seeds that training never sees.

    Args:
        agent: its statistics stay as they are.
        config: its `eval` block says how.
        stream: of the environments' seeds; evaluations that choose a checkpoint have their own.
        seed: None is the run's.
    """
    seed = config.seed if seed is None else seed
    n_envs = config.eval_n_envs
    with make_vector_env(
        config.env,
        n_envs=n_envs,
        # A process each would cost more than these few episodes.
        backend="auto" if config.env.backend in ("auto", "mujoco") else "sync",
        autoreset="same_step",
        step_cap=config.eval.max_episode_steps,
    ) as envs:
        _check_fits(agent, envs, config.env.id)
        return evaluate(
            agent,
            envs,
            episodes=config.eval.episodes,
            seeds=env_seeds(seed, stream, n_envs),
            deterministic=config.eval.deterministic,
            step_cap=config.eval.max_episode_steps,
            generator=torch_generator(seed, Stream.EVALUATION_ACTIONS),
        )


def _check_fits(agent: Agent, envs: EnvBatch, env_id: str) -> None:
    def described(size: int, head: Head) -> str:
        return f"{size} observations and {head.n_outputs} {head.kind} policy outputs"

    trained = described(agent.observation_size, agent.head)
    needed = described(envs.observation_size, make_head(envs.action_space))
    if trained != needed:
        raise UserError(
            f"the agent has {trained}, but {env_id} needs {needed};"
            " evaluate it on the task that it was trained on"
        )
