"""Which settings the batched stepping covers, and making it from them."""

import importlib
from typing import TYPE_CHECKING

from ppo.config import EnvConfig
from ppo.cores import usable_cores
from ppo.envs.make import find_spec, limits_of, make_task

if TYPE_CHECKING:
    from ppo.envs.mujoco.vector import MujocoVectorEnv

_HOME = "gymnasium.envs.mujoco."


def why_not_covered(settings: EnvConfig, *, autoreset: str) -> str | None:
    """What keeps these settings from being stepped in a batch; None where nothing does.

    Raises:
        ConfigError: if there is no such environment.
    """
    spec = find_spec(settings.id)
    if not isinstance(spec.entry_point, str) or not spec.entry_point.startswith(_HOME):
        return f"{spec.id} is not one of Gymnasium's MuJoCo tasks"
    try:
        # Not before it is needed: importing MuJoCo would slow down the start of other tasks.
        tasks = importlib.import_module("ppo.envs.mujoco.tasks")
    except ImportError as error:
        return f"MuJoCo's batched stepping cannot be imported ({error})"
    if spec.id not in tasks.TASKS:
        return f"{spec.id} is not one of Gymnasium's MuJoCo v5 tasks"
    if autoreset != "same_step":
        return f"env.autoreset: {autoreset} takes single environments"
    return None


def make_mujoco(settings: EnvConfig, *, n_envs: int, step_cap: int | None) -> "MujocoVectorEnv":
    """A batch of environments that `why_not_covered` has nothing against.

    Args:
        settings: the `env` part of a config.
        n_envs: how many.
        step_cap: env steps after which an episode is truncated, whatever the task's own limit.

    Raises:
        ConfigError: if the task refuses the settings.
    """
    from ppo.envs.mujoco.vector import MujocoVectorEnv

    limits = limits_of(settings)
    truncating = [limit for limit in (limits.external, step_cap) if limit is not None]
    return MujocoVectorEnv(
        make_task(settings, limit=None),
        n_envs,
        max_episode_steps=min(truncating, default=None),
        task_limit=limits.task,
        n_threads=min(n_envs, usable_cores()),
    )
