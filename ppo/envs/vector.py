"""Many environments at once, with one record per step that says what really happened."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from ppo.config import EnvConfig
from ppo.envs.make import make_env, time_limit
from ppo.envs.mujoco.make import make_mujoco, why_not_covered
from ppo.envs.workers import Workers
from ppo.errors import ConfigError

Backend = Literal["auto", "sync", "async", "mujoco"]
Autoreset = Literal["same_step", "next_step"]
VectorOfTasks = VectorEnv[Any, Any, Any]

_MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}


@dataclass(frozen=True, slots=True)
class EnvStep:
    """One step of N environments. Nothing here is overwritten by a later step.

    Attributes:
        observations: what is shown now, [N, D]: after an end, the reset observation under
            same_step and the last one under next_step.
        reached: the state that each row really reached, before any reset, [N, D]; the array of the
            observations itself where the two are the same.
        rewards: the environments' rewards, [N] float64.
        terminated: [N] bool.
        truncated: [N] bool.
        acted: False where the row was next_step's reset, in which nobody acted: its reward is 0,
            its flags are False and it is no data, [N] bool.
        reward_terms: the info's `reward_*` entries, of rows that just ended too; 0 where a row
            has none, [N] float64 each.
    """

    observations: NDArray[Any]
    reached: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    acted: NDArray[np.bool_]
    reward_terms: dict[str, NDArray[np.float64]]


class Restorable(Protocol):
    """A vector environment whose whole state can be kept."""

    def state(self) -> dict[str, Any]:
        """As `EnvBatch.state`."""

    def load_state(self, state: dict[str, Any], /) -> NDArray[Any] | None:
        """As `EnvBatch.load_state`."""


class EnvBatch:
    """N environments of one task, stepped together; a context manager that closes them.

    Attributes:
        n_envs: N.
        observation_size: D.
        action_space: one environment's.
        backend: "sync", "async" or "mujoco".
        time_limit: env steps after which an episode ends, None where there is no limit.
        inserts_reset_steps: after an end comes a row in which nobody acts (next_step).
    """

    def __init__(
        self,
        vector: VectorOfTasks,
        *,
        backend: str,
        autoreset: str,
        time_limit: int | None,
        restorable: Restorable | None = None,
    ) -> None:
        space = vector.single_observation_space
        assert isinstance(space, spaces.Box)
        self.n_envs = vector.num_envs
        self.observation_size: int = space.shape[0]
        self.action_space: spaces.Space[Any] = vector.single_action_space
        self.backend = backend
        self.time_limit = time_limit
        self._vector = vector
        self._restorable = restorable
        self.inserts_reset_steps = autoreset == "next_step"
        self._ended = np.zeros(self.n_envs, dtype=np.bool_)

    def reset(self, seeds: Sequence[int]) -> NDArray[Any]:
        """Start every environment; later episodes go on from these seeds.

        Args:
            seeds: one for each environment.

        Returns:
            The first observations, [N, D].

        Raises:
            EnvironmentFault: if an environment fails or its process died.
        """
        try:
            observations, _ = self._vector.reset(seed=[int(seed) for seed in seeds])  # type: ignore[arg-type]
        except Exception:
            with suppress(Exception):  # the first failure is the one to report
                self.close()
            raise
        self._ended = np.zeros(self.n_envs, dtype=np.bool_)
        return np.array(observations)

    def step(self, actions: NDArray[Any]) -> EnvStep:
        """One step of every environment.

        Args:
            actions: as the environments take them, [N, *action_space.shape].

        Raises:
            EnvironmentFault: if an environment fails or its process died; all are closed then.
        """
        # A copy, in the space's dtype: an environment may write into its action.
        actions = np.array(actions, dtype=self.action_space.dtype)
        try:
            observations, rewards, terminated, truncated, infos = self._vector.step(actions)
        except Exception:
            with suppress(Exception):  # the first failure is the one to report
                self.close()
            raise
        reached = _with_last(observations, infos.get("final_obs"))
        acted = ~self._ended if self.inserts_reset_steps else np.ones(self.n_envs, dtype=np.bool_)
        self._ended = terminated | truncated
        return EnvStep(
            observations=observations,
            reached=reached,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            acted=acted,
            reward_terms=_reward_terms(infos),
        )

    def state(self) -> dict[str, Any] | None:
        """All that later steps depend on, as arrays and plain Python; None where it is unknown."""
        return None if self._restorable is None else self._restorable.state()

    def load_state(self, state: dict[str, Any]) -> NDArray[Any] | None:
        """Go on from what `state` gave, in place of `reset`.

        Returns:
            The observations shown then, [N, D]; None where these environments cannot go on from
            it, and must be reset.
        """
        return None if self._restorable is None else self._restorable.load_state(state)

    def close(self) -> None:
        """End every environment and its process; safe to repeat, and after a failure."""
        self._vector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_vector_env(
    settings: EnvConfig,
    *,
    n_envs: int | None = None,
    backend: Backend | None = None,
    autoreset: Autoreset | None = None,
    step_cap: int | None = None,
    context: str | None = None,
) -> EnvBatch:
    """Environments in a batch.

    Args:
        settings: the `env` part of a config; the other arguments override it.
        n_envs: how many.
        backend: "auto" is "mujoco" where that covers the task, else "sync".
        autoreset: when an ended environment is reset.
        step_cap: env steps after which an episode is truncated, whatever the task's own limit.
        context: how worker processes start ("fork", "spawn", "forkserver"); None is the
            platform's way.

    Raises:
        ConfigError: if the environment cannot be made, or the backend does not cover it; no
            process was started then.
        EnvironmentFault: if a worker process fails while it starts.
    """
    autoreset = autoreset or settings.autoreset
    backend = _backend(settings, backend or settings.backend, autoreset)
    n_envs = n_envs or settings.n_envs
    restorable: Restorable | None = None
    vector: VectorOfTasks
    if backend == "mujoco":
        vector = restorable = make_mujoco(settings, n_envs=n_envs, step_cap=step_cap)
    else:
        makers = [
            partial(make_env, settings, index=index, step_cap=step_cap) for index in range(n_envs)
        ]
        mode = _MODES[autoreset]
        if backend == "async":
            vector = Workers(makers, env_id=settings.id, autoreset_mode=mode, context=context)
        else:
            vector = SyncVectorEnv(makers, autoreset_mode=mode)
    return EnvBatch(
        vector,
        backend=backend,
        autoreset=autoreset,
        time_limit=time_limit(settings),
        restorable=restorable,
    )


def _backend(settings: EnvConfig, backend: Backend, autoreset: Autoreset) -> Backend:
    if backend not in ("auto", "mujoco"):
        return backend
    reason = why_not_covered(settings, autoreset=autoreset)
    if reason is None:
        return "mujoco"
    if backend == "mujoco":
        raise ConfigError(f"env.backend: mujoco cannot step this: {reason}; use auto")
    return "sync"


def _with_last(observations: NDArray[Any], last: Any) -> NDArray[Any]:
    """The observations, [N, D], with the last ones of episodes that ended in their places."""
    if last is None:
        return observations
    reached = observations.copy()
    for index, observation in enumerate(last):
        if observation is not None:
            reached[index] = observation
    return reached


def _reward_terms(infos: dict[str, Any]) -> dict[str, NDArray[np.float64]]:
    """The terms of all rows; those of rows that just ended come under final_info."""
    ended: dict[str, Any] = infos.get("final_info", {})
    terms = {key: value for key, value in infos.items() if key.startswith("reward_")}
    for key, value in ended.items():
        if key.startswith("reward_"):
            # A row has its term in one of the two and 0 in the other.
            terms[key] = terms[key] + value if key in terms else value
    return terms
