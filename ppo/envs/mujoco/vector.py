"""A vector environment over MuJoCo's own batched stepping, equal to Gymnasium's bit for bit."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ppo.envs.mujoco.simulators import SimulationFault
from ppo.envs.mujoco.tasks import TASKS
from ppo.envs.spaces import space_with_time
from ppo.errors import EnvironmentFault

Array = NDArray[Any]
Infos = dict[str, Any]

_NEVER = np.iinfo(np.int64).max


class MujocoVectorEnv(VectorEnv[Array, Array, Array]):
    """N environments of one Gymnasium MuJoCo v5 task, reset in the step that ends them.

    One environment of Gymnasium's own (`single_env`) gives the model, the constants, the first
    state of every episode and the pictures; the simulations in between are stepped all at once.

    Args:
        single_env: as `gymnasium.make` gives it; it is used, and closed with this.
        num_envs: N.
        max_episode_steps: env steps after which an episode is truncated; None for no limit.
        task_limit: env steps after which an episode terminates; the remaining fraction of it is
            the last entry of the observation. None for no such limit.
        n_threads: that step the simulations.

    Raises:
        EnvironmentFault: from `step`, if MuJoCo refuses to go on with a simulation.
    """

    def __init__(
        self,
        single_env: gymnasium.Env[Any, Any],
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        task_limit: int | None = None,
        n_threads: int = 1,
    ) -> None:
        single = single_env.unwrapped
        assert isinstance(single, MujocoEnv)
        assert single.spec is not None
        task_class = TASKS[single.spec.id]
        self.num_envs = num_envs
        self.spec = single.spec
        self.render_mode = single.render_mode
        self.metadata = {**single.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        space = single.observation_space
        assert isinstance(space, spaces.Box)
        self.single_observation_space: spaces.Space[Any] = (
            space if task_limit is None else space_with_time(space)
        )
        self.single_action_space: spaces.Space[Any] = single.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._single: Any = single  # Gymnasium's render and close have no types
        self._env_id = single.spec.id
        self._max_episode_steps = max_episode_steps or _NEVER
        self._task_limit = task_limit
        self._simulator = task_class.simulator_class(
            single.model, num_envs, task_class.fields, n_threads
        )
        self._task = task_class(single, self._simulator)
        self._generators = [deepcopy(single.np_random) for _ in range(num_envs)]
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._all.flags.writeable = False  # one array is the mask of every key
        self._observations = np.zeros(self.observation_space.shape or ())

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, Infos]:
        """Start episodes in all environments, or in those of `options["reset_mask"]`, [N] bool.

        Args:
            seed: one for each environment; one number is counted up from; None goes on with
                the generators as they stand.
        """
        if seed is None or isinstance(seed, int):
            seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        chosen = np.asarray((options or {}).get("reset_mask", self._all))
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_ or not chosen.any():
            raise ValueError(
                f"options['reset_mask'] must be {self.num_envs} bools, one of them true;"
                f" got {chosen!r}"
            )
        infos: Infos = {}
        for index in np.flatnonzero(chosen):
            infos = self._start(int(index), self._observations, infos, seed=seeds[index])
        return self._observations.copy(), infos

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Infos]:
        """One step of every environment, [N, A].

        The observation of an environment that ended is the next episode's first; the last one is
        in `infos["final_obs"]`, and what came with it in `infos["final_info"]`.
        """
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(
                f"actions of shape {list(actions.shape)} for environments that take"
                f" {list(self.action_space.shape or ())}"
            )
        task = self._task
        before = task.before()
        try:
            self._simulator.step(actions, self._single.frame_skip)
        except SimulationFault as fault:
            raise EnvironmentFault(
                f"environment {fault.index} ({self._env_id}) failed in step: {fault}"
            ) from fault
        self._lengths += 1
        observations = task.observe()
        rewards, terminated, infos = task.outcome(before, actions)
        if self._task_limit is not None:
            terminated = terminated | (self._lengths >= self._task_limit)
            left = (self._task_limit - self._lengths) / self._task_limit
            observations = np.concatenate((observations, left[:, None]), axis=1)
        truncated = self._lengths >= self._max_episode_steps
        for key in tuple(infos):
            infos[f"_{key}"] = self._all
        ended = terminated | truncated
        if ended.any():
            infos = self._start_again(ended, observations, infos)
        self._observations = observations
        return observations.copy(), rewards.astype(np.float64), terminated.copy(), truncated, infos

    def _start_again(self, ended: Array, observations: Array, infos: Infos) -> Infos:
        """Reset what ended, and give the infos as SAME_STEP has them."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for index in np.flatnonzero(ended):
            final_obs[index] = observations[index].copy()
        going_on, final_info = _rows_only(~ended, infos), _rows_only(ended, infos)
        for index in np.flatnonzero(ended):
            going_on = self._start(int(index), observations, going_on)
        return {
            **going_on,
            **{"final_obs": final_obs, "_final_obs": ended.copy()},
            **{"final_info": final_info, "_final_info": ended.copy()},
        }

    def _start(
        self, index: int, observations: Array, infos: Infos, *, seed: int | None = None
    ) -> Infos:
        """Start an episode in one environment, by Gymnasium's own reset."""
        single = self._single
        single.np_random = self._generators[index]
        observation, info = single.reset(seed=seed)
        observations[index] = observation if self._task_limit is None else (*observation, 1.0)
        self._generators[index] = single.np_random
        self._simulator.place(index, single.data)
        self._lengths[index] = 0
        return self._add_info(infos, info, index)

    def render(self) -> tuple[Any, ...] | None:
        """A picture of every environment, in the mode that `single_env` was made with."""
        return tuple(self.render_one(index) for index in range(self.num_envs))

    def render_one(self, index: int) -> Any:
        """A picture of one environment."""
        self._simulator.show(index, self._single.data)
        return self._single.render()

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on, as arrays and plain Python."""
        return {
            "task": self._env_id,
            "mujoco": mujoco.__version__,
            "simulator": self._simulator.state(),
            "generators": [generator.bit_generator.state for generator in self._generators],
            "lengths": self._lengths.copy(),
            "observations": self._observations.copy(),
        }

    def load_state(self, state: dict[str, Any]) -> Array | None:
        """Go on from what `state` gave.

        Returns:
            The observations shown then, [N, D]; None where the state is that of another task or
            of another version of MuJoCo, and nothing was changed.
        """
        if _form(state) != _form(self.state()):
            return None
        self._simulator.load_state(state["simulator"])
        for generator, saved in zip(self._generators, state["generators"], strict=True):
            generator.bit_generator.state = saved
        self._lengths[:] = state["lengths"]
        self._observations = np.array(state["observations"])
        return self._observations.copy()

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """End the threads and the pictures."""
        self._simulator.close()
        self._single.close()


def _form(state: Any) -> Any:
    """What must be the same in two states, for one to take the place of the other."""
    match state:
        case dict():
            return {key: _form(value) for key, value in state.items()}
        case list():
            return len(state)
        case np.ndarray():
            return state.shape
        case str():
            return state
    return None


def _rows_only(rows: Array, infos: Infos) -> Infos:
    """The entries of infos for some rows, 0 in the others; nothing where there are none."""
    if not rows.any():
        return {}
    kept: Infos = {}
    for key, values in infos.items():
        if key.startswith("_"):
            kept[key] = rows.copy()
        else:
            kept[key] = np.zeros_like(values)
            kept[key][rows] = values[rows]
    return kept
