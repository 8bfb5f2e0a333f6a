"""The two wrappers around a task. They are on the hot path: every line here costs speed."""

import warnings
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ppo.envs.spaces import ObservationForm, space_with_time
from ppo.errors import EnvironmentFault

Observation = NDArray[Any]
Task = gymnasium.Wrapper[Observation, Any, Any, Any]

# An environment that calls sys.exit has failed; it does not end the training as if all were well.
TASK_FAILURES = (Exception, SystemExit)

_NUMBERS = (float, int, np.number)  # a union of types is slower to look up


class TaskView(Task):
    """An environment's own output in the form that the trainer relies on.

    Observations are fresh vectors of floats, [D], rewards are floats and flags bools, whatever
    the environment returns. Of the info only the scalar `reward_*` terms are kept. Whatever goes
    wrong inside becomes an EnvironmentFault that names the environment, and that can be pickled.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], form: ObservationForm, *, index: int, env_id: str
    ) -> None:
        super().__init__(env)
        self.observation_space = form.space
        self._shape = form.shape
        self._dtype = form.space.dtype
        self._size = form.space.shape[0]
        self._scale = form.scale
        self._name = f"environment {index} ({env_id})"
        self._watch_reuse = index == 0
        self._last_raw: Any = None
        self._last_copy: Observation | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; the info is dropped."""
        try:
            raw, _ = self.env.reset(seed=seed, options=options)
        except TASK_FAILURES as error:
            raise self._fault("reset", error) from error
        return self._vector(raw), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One env step.

        Raises:
            EnvironmentFault: if the environment raises, or returns what is no observation, no
                reward, no flag or no info.
        """
        try:
            raw, reward, terminated, truncated, info = self.env.step(action)
            terms = {
                key: float(value)
                for key, value in info.items()
                if isinstance(key, str)
                and key.startswith("reward_")
                and isinstance(value, _NUMBERS)
            }
            ends = bool(terminated), bool(truncated)
        except TASK_FAILURES as error:
            raise self._fault("step", error) from error
        return (
            self._vector(raw),
            float(reward) if isinstance(reward, float) else self._reward(reward),
            *ends,
            terms,
        )

    def close(self) -> None:
        """Close the environment; that it cannot is no reason to lose what it was used for."""
        try:
            self.env.close()
        except TASK_FAILURES as error:
            warnings.warn(f"{self._fault('close', error)}; this changes nothing", stacklevel=2)

    def _vector(self, raw: Any) -> Observation:
        if self._watch_reuse:
            self._look_for_reuse(raw)
        # The copy is what makes an environment that reuses its array harmless.
        try:
            vector = np.array(raw, dtype=self._dtype)
        except (TypeError, ValueError) as error:
            raise self._fault("observation", error) from error
        if vector.shape != self._shape:
            raise EnvironmentFault(
                f"{self._name} returned an observation of shape {vector.shape}, "
                f"but its space says {self._shape}"
            )
        if len(self._shape) != 1:
            vector = vector.reshape(self._size)
        if self._scale is not None:
            vector = vector / self._scale
        return vector

    def _reward(self, reward: Any) -> float:
        """Integers, bools, 0-d and one-element arrays become floats."""
        try:
            array = np.asarray(reward)
            if array.size == 1 and array.dtype.kind in "biuf":
                return float(array.item())
        except (TypeError, ValueError):  # ragged lists, and whatever else is no array
            pass
        shape = reward.shape if isinstance(reward, np.ndarray) else None
        described = f"an array of shape {shape}" if shape else " ".join(repr(reward).split())[:80]
        raise EnvironmentFault(
            f"{self._name} returned {described} as its reward; it must be one number"
        )

    def _look_for_reuse(self, raw: Any) -> None:
        last, copy = self._last_raw, self._last_copy
        self._last_raw = raw
        if last is None or not isinstance(raw, np.ndarray):
            return
        if raw is not last and (raw.base is None or not np.may_share_memory(raw, last)):
            return
        if copy is not None and not np.array_equal(raw, copy, equal_nan=raw.dtype.kind == "f"):
            self._watch_reuse = False
            warnings.warn(
                f"{self._name} returns the same observation array again and again; "
                "observations are copied, so this is harmless here",
                stacklevel=4,
            )
        self._last_copy = raw.copy()

    def _fault(self, where: str, error: BaseException) -> EnvironmentFault:
        said = " ".join(str(error).split()) or "no message"
        return EnvironmentFault(f"{self._name} failed in {where}: {type(error).__name__}: {said}")


class RemainingTime(Task):
    """A time limit that belongs to the task: it is observed, and reaching it terminates.

    The remaining fraction of the limit, 1 at reset and 0 at the limit, becomes the last entry of
    the observation. Ends that others cause keep their flags.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any], limit: int) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = space_with_time(space)
        self._limit = limit
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode with all the time left."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        return self._with_time(observation), info

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """One env step; the limit's last one terminates."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        terminated = terminated or self._steps >= self._limit
        return self._with_time(observation), reward, terminated, truncated, info

    def _with_time(self, observation: Observation) -> Observation:
        longer = np.empty(observation.size + 1, dtype=observation.dtype)
        longer[:-1] = observation
        longer[-1] = (self._limit - self._steps) / self._limit
        return longer
