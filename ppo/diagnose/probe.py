"""Playing an environment as Gymnasium makes it, and writing down what it really returned."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from ppo.config import EnvConfig
from ppo.envs.make import make_task, time_limit
from ppo.envs.wrappers import TASK_FAILURES
from ppo.errors import UserError


class ProbeError(UserError):
    """The environment raised while it was played."""


@dataclass
class Recording:
    """What an environment returned over some env steps.

    Attributes:
        observations: as returned, one for each reset and step, in their order; copies.
        rewards: as returned.
        flags: (terminated, truncated) as returned.
        lengths: env steps of the episodes that ended, in their order.
        ends: (terminated, truncated) of these.
        first: the observation of every reset; copies.
        last: the last observation of every episode that ended; copies.
        reused: an observation that had been returned changed when the environment went on.
        seconds: that stepping took.
    """

    observations: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    flags: list[tuple[Any, Any]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    ends: list[tuple[bool, bool]] = field(default_factory=list)
    first: list[Any] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)
    reused: bool = False
    seconds: float = 0.0

    @property
    def n_steps(self) -> int:
        """Env steps played."""
        return len(self.rewards)


@contextmanager
def opened(settings: EnvConfig) -> Iterator[gymnasium.Env[Any, Any]]:
    """The environment that the settings name, with its own time limit, closed at the end."""
    env = make_task(settings, limit=time_limit(settings))
    try:
        yield env
    finally:
        with suppress(*TASK_FAILURES):  # nothing here depends on it
            env.close()


def record(
    settings: EnvConfig,
    *,
    steps: int,
    seed: int,
    choose: Callable[[gymnasium.Env[Any, Any]], Any] | None = None,
) -> Recording:
    """Play so many env steps.

    Args:
        settings: the `env` part of a config.
        steps: env steps, over as many episodes as they take.
        seed: of the first reset and of the actions.
        choose: gives the action; None samples the space.

    Raises:
        ProbeError: if the environment raises, or returns what is no step.
    """
    made = Recording()
    with opened(settings) as env:
        env.action_space.seed(seed)
        held = _reset(env, made, seed)
        length = 0
        for _ in range(steps):
            action = env.action_space.sample() if choose is None else choose(env)
            before = time.perf_counter()
            observation, reward, terminated, truncated = _step(env, action)
            made.seconds += time.perf_counter() - before
            made.reused |= _changed(*held)
            held = (observation, _copied(observation))
            made.observations.append(held[1])
            made.rewards.append(reward)
            made.flags.append((terminated, truncated))
            length += 1
            if terminated or truncated:
                made.lengths.append(length)
                made.ends.append((bool(terminated), bool(truncated)))
                made.last.append(held[1])
                held = _reset(env, made, None)
                length = 0
    return made


def _reset(env: gymnasium.Env[Any, Any], made: Recording, seed: int | None) -> tuple[Any, Any]:
    try:
        observation, _ = env.reset(seed=seed)
    except TASK_FAILURES as error:
        raise ProbeError(f"reset raised {_said(error)}") from error
    copied = _copied(observation)
    made.first.append(copied)
    made.observations.append(copied)
    return observation, copied


def _step(env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, Any, Any, Any]:
    try:
        observation, reward, terminated, truncated, _ = env.step(action)
        bool(terminated or truncated)
    except TASK_FAILURES as error:
        raise ProbeError(f"step({_shown(action)}) raised {_said(error)}") from error
    return observation, reward, terminated, truncated


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _shown(action: Any) -> str:
    return " ".join(np.array2string(np.asarray(action), threshold=6, precision=3).split())


def _copied(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _copied(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_copied(value) for value in observation)
    return np.array(observation)


def _changed(held: Any, copied: Any) -> bool:
    return not same_observation(held, copied)


def same_observation(left: Any, right: Any) -> bool:
    """Equal to the bit, NaN included, whatever they are made of."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            same_observation(left[key], right[key]) for key in left
        )
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same_observation, left, right))
    one, two = np.asarray(left), np.asarray(right)
    return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == two.dtype.kind == "f"))
