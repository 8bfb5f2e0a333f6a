"""`ppo check-env`: what an environment does, in the terms that matter to PPO."""

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo.config import EnvConfig, from_mapping
from ppo.diagnose.audit_rules import RULES, Subject, as_numbers, lost_share, raised
from ppo.diagnose.findings import Audit
from ppo.diagnose.probe import ProbeError, opened, record
from ppo.envs.make import time_limit
from ppo.errors import ConfigError


def settings_of(env_id: str, overrides: list[str]) -> EnvConfig:
    """The `env` part of a config for an id, with overrides such as "env.max_episode_steps=100".

    Raises:
        ConfigError: if an override is none of that part, or cannot be.
    """
    for override in overrides:
        if not override.startswith("env."):
            raise ConfigError(
                f"--{override.partition('=')[0]}: an audit takes keys of the env part alone, such"
                " as --env.max_episode_steps"
            )
    whole = {"env": {"id": env_id}, "ppo": {"total_timesteps": 1_000_000}}
    return from_mapping(whole, source=env_id, overrides=overrides).env


def audit(settings: EnvConfig, *, gamma: float, steps: int, seed: int) -> Audit:
    """Play an environment and say what was found.

    Args:
        settings: the `env` part of a config.
        gamma: discount per env step, in [0, 1].
        steps: env steps with random actions.
        seed: of all that is played.

    Raises:
        ConfigError: if the environment cannot be made.
    """
    with opened(settings) as env:
        observation_space, action_space = env.observation_space, env.action_space
    limit = time_limit(settings)
    facts = _facts_of_spaces(observation_space, action_space, limit, gamma)
    with warnings.catch_warnings():
        # What it warns of is looked for here, and said in full.
        warnings.simplefilter("ignore")
        try:
            played = record(settings, steps=steps, seed=seed)
        except ProbeError as error:
            return Audit(settings.id, facts, [raised(str(error))])
        subject = Subject(settings, seed, gamma, limit, played, observation_space, action_space)
        findings = [finding for rule in RULES for finding in rule(subject)]
    return Audit(settings.id, facts | _facts_of_play(subject), findings)


def _facts_of_spaces(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    limit: int | None,
    gamma: float,
) -> dict[str, Any]:
    return {
        "time limit": limit,
        f"V lost if that were a death (gamma {gamma:g})": None
        if limit is None
        else f"{lost_share(limit, gamma):.0%}",
        "observations": _described(observation_space),
        "actions": _described(action_space),
    }


def _described(space: spaces.Space[Any]) -> str:
    if not isinstance(space, spaces.Box):
        return " ".join(str(space).split())
    low, high = f"{space.low.min():g}", f"{space.high.max():g}"
    return f"Box of {list(space.shape)}, {low} to {high}, {space.dtype}"


def _facts_of_play(subject: Subject) -> dict[str, Any]:
    played, lengths = subject.played, subject.played.lengths
    rewards = as_numbers(played.rewards)
    finite = rewards[np.isfinite(rewards)]
    return {
        "env steps played": played.n_steps,
        "episodes ended": len(lengths),
        "terminated": sum(terminated for terminated, _ in played.ends),
        "truncated": sum(truncated for _, truncated in played.ends),
        "episode length": f"{min(lengths)} to {max(lengths)}" if lengths else None,
        "reward": f"{finite.min():.4g} to {finite.max():.4g}" if len(finite) else None,
        "env steps/s": round(played.n_steps / max(played.seconds, 1e-9)),
    }
