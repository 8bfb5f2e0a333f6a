"""One environment, made from the settings: every message about what cannot be made is here."""

import copy
import difflib
import importlib
import warnings
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from ppo.config import EnvConfig
from ppo.envs.quiet import quiet_mujoco
from ppo.envs.spaces import check_action_space, observation_form
from ppo.envs.wrappers import TASK_FAILURES, Observation, RemainingTime, TaskView
from ppo.errors import ConfigError, UserError

_NO_LIMIT = -1  # Gymnasium's way to leave its TimeLimit out


def make_env(
    settings: EnvConfig,
    *,
    index: int = 0,
    render_mode: str | None = None,
    step_cap: int | None = None,
) -> gymnasium.Env[Observation, Any]:
    """One environment as the trainer sees it.

    Observations are vectors of floats, [D], in memory of their own; rewards are floats. Of the
    info only the `reward_*` terms are kept.

    Args:
        settings: the `env` part of a config.
        index: the environment's number in its batch, for messages.
        render_mode: as for `gymnasium.make`.
        step_cap: env steps after which an episode is truncated, whatever the task's own limit.

    Raises:
        ConfigError: if there is no such environment, or it refuses the settings.
        UserError: if a space is not supported.
    """
    limits = limits_of(settings)
    raw = make_task(settings, limit=limits.external, render_mode=render_mode)
    try:
        check_action_space(raw.action_space, settings.id)
        form = observation_form(raw.observation_space, settings.id)
    except UserError:
        raw.close()
        raise
    if form.nested:
        raw = gymnasium.wrappers.FlattenObservation(raw)
    env: gymnasium.Env[Observation, Any] = TaskView(raw, form, index=index, env_id=settings.id)
    if limits.task is not None:
        env = RemainingTime(env, limits.task)
    return env if step_cap is None else gymnasium.wrappers.TimeLimit(env, step_cap)


def time_limit(settings: EnvConfig) -> int | None:
    """The env steps after which an episode ends, if any: the config's, else the registered one."""
    return settings.max_episode_steps or find_spec(settings.id).max_episode_steps


class Limits(NamedTuple):
    """Env steps after which an episode ends: by truncation, or as part of the task."""

    external: int | None
    task: int | None


def limits_of(settings: EnvConfig) -> Limits:
    """Where the time limit belongs.

    Raises:
        ConfigError: if it belongs to the task and there is none.
    """
    limit = time_limit(settings)
    if settings.time_limit == "external":
        return Limits(limit, None)
    if limit is None:
        raise ConfigError(
            f"env.time_limit: {settings.id} has no time limit of its own; "
            "set env.max_episode_steps, or time_limit: external"
        )
    return Limits(None, limit)


def find_spec(env_id: str) -> EnvSpec:
    """What Gymnasium knows of an id, which may be `module:Id-v0`.

    Raises:
        ConfigError: if the module cannot be imported or nothing is registered under the id.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except TASK_FAILURES as error:
            raise ConfigError(
                f"env.id: cannot import {module!r} for {env_id!r} ({_said(error)}); "
                "is its folder on PYTHONPATH?"
            ) from error
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id: there is no environment {env_id!r}{_nearest(name)}") from error


def _nearest(name: str) -> str:
    by_lower = {known.lower(): known for known in gymnasium.registry}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {by_lower[close[0]]!r}?"
    return "; an environment of your own is named 'module:Id-v0'"


def make_task(
    settings: EnvConfig, *, limit: int | None, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """Gymnasium's own environment, truncated after `limit` env steps, if any.

    Raises:
        ConfigError: if there is no such environment, or it refuses the settings.
    """
    spec = find_spec(settings.id)
    kwargs = copy.deepcopy(settings.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        if isinstance(spec.entry_point, str):
            load_env_creator(spec.entry_point)  # imports MuJoCo, where the task needs it
        quiet_mujoco()
        with warnings.catch_warnings():
            # Whoever names HalfCheetah-v4 means it.
            warnings.simplefilter("ignore", DeprecationWarning)
            return gymnasium.make(
                spec, _NO_LIMIT if limit is None else limit, disable_env_checker=True, **kwargs
            )
    except TASK_FAILURES as error:
        # Gymnasium wraps a constructor's TypeError in a text that repeats every argument.
        reason = error.__cause__ if isinstance(error.__cause__, TypeError) else error
        raise ConfigError(
            f"env: cannot make {settings.id}{_given(settings.kwargs)}: {_said(reason)}"
        ) from error


def _given(kwargs: dict[str, Any]) -> str:
    return f" with env.kwargs {', '.join(sorted(kwargs))}" if kwargs else ""


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
