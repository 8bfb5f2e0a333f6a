"""Whether the last observation of an episode arrives, and is the true one, on every way to step."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppo.config import EnvConfig
from ppo.diagnose.findings import Finding, fault, note
from ppo.envs import make_vector_env
from ppo.envs.make import make_env, time_limit
from ppo.envs.mujoco.make import why_not_covered
from ppo.errors import UserError

N_ENVS = 2
# Short enough that a few steps see several ends.
FORCED_LIMIT = 10

Ends = list[tuple[int, int, NDArray[Any]]]  # vector step, environment, last observation


def delivery_findings(settings: EnvConfig, *, seed: int, steps: int) -> Iterator[Finding]:
    """What arrives at the trainer against what single environments return.

    Args:
        settings: the `env` part of a config; a limit of a few steps is set on top, so that
            episodes end.
        seed: of the first environment; the next has the next one.
        steps: vector steps.
    """
    limit = min(time_limit(settings) or FORCED_LIMIT, FORCED_LIMIT)
    short = settings.model_copy(update={"max_episode_steps": limit})
    try:
        expected, again = (_singles(short, seed=seed, steps=steps) for _ in range(2))
    except UserError as error:
        yield _refused("single environments", error)
        return
    if not _same(expected, again):
        yield note(
            "last observation",
            "the same seed gives other episodes, so that nothing can be compared",
            "whether last observations arrive is not known",
            "make the environment repeatable first",
        )
        return
    for backend, autoreset in _ways(short):
        way = f"backend {backend}, autoreset {autoreset}"
        try:
            arrived = _vectors(short, backend, autoreset, seed=seed, steps=steps)
        except UserError as error:
            yield _refused(way, error)
            continue
        if not _same(expected, arrived):
            yield fault(
                "last observation",
                f"with {way}, the last observations of episodes are not those that the environment"
                " returned",
                "time limits would bootstrap from another state",
                "look for state that environments share, and for what depends on the process",
            )


def _refused(way: str, error: UserError) -> Finding:
    return fault(
        "delivery",
        f"{way}: {error}",
        "it cannot be trained on like this",
        "mend what the message says",
    )


def _ways(settings: EnvConfig) -> Iterator[tuple[str, str]]:
    yield from product(("sync", "async"), ("same_step", "next_step"))
    if why_not_covered(settings, autoreset="same_step") is None:
        yield "mujoco", "same_step"


def _script(space: Any, seed: int, steps: int) -> list[list[Any]]:
    """Actions of every environment for every step."""
    source = deepcopy(space)
    source.seed(seed)
    return [[source.sample() for _ in range(N_ENVS)] for _ in range(steps)]


def _singles(settings: EnvConfig, *, seed: int, steps: int) -> Ends:
    """What each environment returns by itself, played one after the other."""
    ends: Ends = []
    for index in range(N_ENVS):
        env = make_env(settings, index=index)
        try:
            script = _script(env.action_space, seed, steps)
            env.reset(seed=seed + index)
            for t, actions in enumerate(script):
                observation, _, terminated, truncated, _ = env.step(actions[index])
                if terminated or truncated:
                    ends.append((t, index, np.array(observation)))
                    env.reset()
        finally:
            env.close()
    return ends


def _vectors(settings: EnvConfig, backend: Any, autoreset: Any, *, seed: int, steps: int) -> Ends:
    """What arrives from a batch; steps in which an environment is reset are not counted."""
    ends: Ends = []
    with make_vector_env(settings, n_envs=N_ENVS, backend=backend, autoreset=autoreset) as envs:
        script = _script(envs.action_space, seed, steps)
        envs.reset([seed + index for index in range(N_ENVS)])
        acted = [0] * N_ENVS
        while min(acted) < steps:
            actions = [script[min(acted[env], steps - 1)][env] for env in range(N_ENVS)]
            step = envs.step(np.array(actions))
            for env in range(N_ENVS):
                ended = step.terminated[env] or step.truncated[env]
                if ended and acted[env] < steps:
                    ends.append((acted[env], env, step.reached[env].copy()))
                acted[env] += int(step.acted[env])
    return ends


def _same(left: Ends, right: Ends) -> bool:
    by_place = [{(t, env): observation for t, env, observation in ends} for ends in (left, right)]
    return by_place[0].keys() == by_place[1].keys() and all(
        np.array_equal(observation, by_place[1][place], equal_nan=True)
        for place, observation in by_place[0].items()
    )
