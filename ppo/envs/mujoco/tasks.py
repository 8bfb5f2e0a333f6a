"""Gymnasium's MuJoCo v5 tasks, over N simulations at once.

A task turns the fields of a simulator into observations, rewards and ends. Every number comes from
Gymnasium's own environment object (its weights, ranges, model and time step); what is written here
is the formulas of its `step`, in the same order of operations and the same dtypes, so that the
results are equal bit for bit. Tests hold that for every task.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from ppo.envs.mujoco.simulators import BatchSimulator, PoolSimulator, Simulator

# Of any dtype: with NumPy's rules, weights of int or float give what they give in Gymnasium.
Array = Any


class Outcome(NamedTuple):
    """What a step brought, [N] each; `info` as Gymnasium's, an array for each key."""

    rewards: Array
    terminated: Array
    info: dict[str, Array]


class Task(ABC):
    """What one kind of environment reads and computes.

    Attributes:
        fields: of `MjData`, that the formulas read.
        simulator_class: what can compute them.
    """

    fields: ClassVar[tuple[str, ...]] = ("qpos", "qvel")
    simulator_class: ClassVar[type[BatchSimulator] | type[PoolSimulator]] = BatchSimulator

    def __init__(self, env: MujocoEnv, simulator: Simulator) -> None:
        self.env: Any = env  # the weights and ranges are attributes of its own class
        self.dt = env.dt  # seconds of an env step; there it is computed at every call
        self.simulator = simulator
        self.qpos, self.qvel = simulator["qpos"], simulator["qvel"]
        self.never = np.zeros(len(self.qpos), dtype=np.bool_)

    def before(self) -> Any:
        """What `outcome` needs to know of the state before the step."""
        return None

    @abstractmethod
    def observe(self) -> Array:
        """Observations, [N, D]."""

    @abstractmethod
    def outcome(self, before: Any, actions: Array) -> Outcome:
        """Rewards and ends of the step that was just taken with actions [N, A]."""


def _sum_of_squares(rows: Array) -> Array:
    return np.square(rows).reshape(len(rows), -1).sum(axis=-1)


def _norms(rows: Array) -> Array:
    # A dot product row by row, as Gymnasium's: one over all rows may round differently.
    return np.array([np.linalg.norm(row) for row in np.ascontiguousarray(rows)])


def _bounded(rows: Array, low: Any, high: Any) -> Array:
    # As np.clip, in a third of the time on arrays this small.
    return np.minimum(np.maximum(rows, low), high)


def _row_by_row(function: Any, rows: Array) -> Array:
    # Vector instructions may round the end of an array differently from its middle.
    return np.stack([function(row) for row in np.ascontiguousarray(rows)])


class _Runner(Task):
    """Rewarded for its speed along x, which is that of its first coordinate."""

    def before(self) -> Array:
        return self.qpos[:, 0].copy()

    def observe(self) -> Array:
        skipped = int(self.env._exclude_current_positions_from_observation)
        return np.concatenate((self.qpos[:, skipped:], self.velocities()), axis=1)

    def velocities(self) -> Array:
        return self.qvel

    def speed(self, before: Array) -> Array:
        return (self.qpos[:, 0] - before) / self.dt

    def control_cost(self, actions: Array) -> Array:
        return self.env._ctrl_cost_weight * _sum_of_squares(actions)


class HalfCheetah(_Runner):
    """HalfCheetah-v5: never ends by itself."""

    def outcome(self, before: Array, actions: Array) -> Outcome:
        speed = self.speed(before)
        forward = self.env._forward_reward_weight * speed
        control = self.control_cost(actions)
        info = {
            "x_position": self.qpos[:, 0].copy(),
            "x_velocity": speed,
            "reward_forward": forward,
            "reward_ctrl": -control,
        }
        return Outcome(forward - control, self.never, info)


class _Walker(_Runner):
    """A runner that falls."""

    def velocities(self) -> Array:
        return _bounded(self.qvel, -10, 10)

    def healthy(self) -> Array:
        (low_z, high_z), (low, high) = self.env._healthy_z_range, self.env._healthy_angle_range
        z, angle = self.qpos[:, 1], self.qpos[:, 2]
        return (low_z < z) & (z < high_z) & (low < angle) & (angle < high)

    def outcome(self, before: Array, actions: Array) -> Outcome:
        env, speed, healthy = self.env, self.speed(before), self.healthy()
        forward = env._forward_reward_weight * speed
        survive = healthy * env._healthy_reward
        control = self.control_cost(actions)
        info = {
            "x_position": self.qpos[:, 0].copy(),
            "z_distance_from_origin": self.qpos[:, 1] - env.init_qpos[1],
            "x_velocity": speed,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_survive": survive,
        }
        terminated = ~healthy if env._terminate_when_unhealthy else self.never
        return Outcome(forward + survive - control, terminated, info)


class Walker2d(_Walker):
    """Walker2d-v5."""


class Hopper(_Walker):
    """Hopper-v5: a walker whose whole state must stay in a range."""

    def healthy(self) -> Array:
        low, high = self.env._healthy_state_range
        state = np.concatenate((self.qpos, self.qvel), axis=1)[:, 2:]
        return ((low < state) & (state < high)).all(axis=1) & super().healthy()


class Swimmer(Task):
    """Swimmer-v5: moves in a plane."""

    def before(self) -> Array:
        return self.qpos[:, :2].copy()

    def observe(self) -> Array:
        skipped = 2 * self.env._exclude_current_positions_from_observation
        return np.concatenate((self.qpos[:, skipped:], self.qvel), axis=1)

    def outcome(self, before: Array, actions: Array) -> Outcome:
        place = self.qpos[:, :2].copy()
        velocity = (place - before) / self.dt
        forward = self.env._forward_reward_weight * velocity[:, 0]
        control = self.env._ctrl_cost_weight * _sum_of_squares(actions)
        info = {
            "x_position": place[:, 0],
            "y_position": place[:, 1],
            "distance_from_origin": _norms(place),
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -control,
        }
        return Outcome(forward - control, self.never, info)


class Reacher(Task):
    """Reacher-v5: its goal is part of the simulation's state."""

    fields = ("qpos", "qvel", "xpos")

    def __init__(self, env: MujocoEnv, simulator: Simulator) -> None:
        super().__init__(env, simulator)
        self._xpos = simulator["xpos"]
        self._fingertip, self._target = (env.data.body(name).id for name in ("fingertip", "target"))

    def _offset(self) -> Array:
        return self._xpos[:, self._fingertip] - self._xpos[:, self._target]

    def observe(self) -> Array:
        angles = self.qpos[:, :2]
        return np.concatenate(
            (
                _row_by_row(np.cos, angles),
                _row_by_row(np.sin, angles),
                self.qpos[:, 2:],
                self.qvel[:, :2],
                self._offset()[:, :2],
            ),
            axis=1,
        )

    def outcome(self, before: None, actions: Array) -> Outcome:
        distance = -_norms(self._offset()) * self.env._reward_dist_weight
        control = -_sum_of_squares(actions) * self.env._reward_control_weight
        info = {"reward_dist": distance, "reward_ctrl": control}
        return Outcome(distance + control, self.never, info)


class Pusher(Task):
    """Pusher-v5."""

    fields = ("qpos", "qvel", "xpos")

    def __init__(self, env: MujocoEnv, simulator: Simulator) -> None:
        super().__init__(env, simulator)
        self._xpos = simulator["xpos"]
        self._bodies = [env.data.body(name).id for name in ("tips_arm", "object", "goal")]

    def _places(self) -> list[Array]:
        return [self._xpos[:, body] for body in self._bodies]

    def observe(self) -> Array:
        return np.concatenate((self.qpos[:, :7], self.qvel[:, :7], *self._places()), axis=1)

    def outcome(self, before: None, actions: Array) -> Outcome:
        arm, thing, goal = self._places()
        near = -_norms(thing - arm) * self.env._reward_near_weight
        distance = -_norms(thing - goal) * self.env._reward_dist_weight
        control = -_sum_of_squares(actions) * self.env._reward_control_weight
        info = {"reward_dist": distance, "reward_ctrl": control, "reward_near": near}
        return Outcome(distance + control + near, self.never, info)


class InvertedPendulum(Task):
    """InvertedPendulum-v5."""

    def observe(self) -> Array:
        return np.concatenate((self.qpos, self.qvel), axis=1)

    def outcome(self, before: None, actions: Array) -> Outcome:
        finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        terminated = ~finite | (np.abs(self.qpos[:, 1]) > 0.2)
        survive = (~terminated).astype(np.int64)
        return Outcome(survive, terminated, {"reward_survive": survive})


class InvertedDoublePendulum(Task):
    """InvertedDoublePendulum-v5."""

    fields = ("qpos", "qvel", "site_xpos", "qfrc_constraint")

    def observe(self) -> Array:
        angles = self.qpos[:, 1:]
        return np.concatenate(
            (
                self.qpos[:, :1],
                _row_by_row(np.sin, angles),
                _row_by_row(np.cos, angles),
                _bounded(self.qvel, -10, 10),
                _bounded(self.simulator["qfrc_constraint"], -10, 10)[:, :1],
            ),
            axis=1,
        )

    def outcome(self, before: None, actions: Array) -> Outcome:
        x, y = self.simulator["site_xpos"][:, 0, 0], self.simulator["site_xpos"][:, 0, 2]
        terminated = y <= 1
        # Powers of scalars, as Gymnasium's: for arrays NumPy multiplies instead.
        distance = np.array([0.01 * a**2 + (b - 2) ** 2 for a, b in zip(x, y, strict=True)])
        velocity = np.array([1e-3 * v1**2 + 5e-3 * v2**2 for v1, v2 in self.qvel[:, 1:3]])
        survive = self.env._healthy_reward * (~terminated).astype(np.int64)
        info = {
            "reward_survive": survive,
            "distance_penalty": -distance,
            "velocity_penalty": -velocity,
        }
        return Outcome(survive - distance - velocity, terminated, info)


class Ant(Task):
    """Ant-v5: observes the contact forces."""

    fields = ("qpos", "qvel", "xpos", "cfrc_ext")
    simulator_class = PoolSimulator

    def __init__(self, env: MujocoEnv, simulator: Simulator) -> None:
        super().__init__(env, simulator)
        self._xpos, self._cfrc_ext = simulator["xpos"], simulator["cfrc_ext"]
        self._main = env.data.body(self.env._main_body).id

    def _contact_forces(self) -> Array:
        low, high = self.env._contact_force_range
        return _bounded(self._cfrc_ext, low, high)

    def before(self) -> Array:
        return self._xpos[:, self._main, :2].copy()

    def observe(self) -> Array:
        skipped = 2 * self.env._exclude_current_positions_from_observation
        parts = [self.qpos[:, skipped:], self.qvel]
        if self.env._include_cfrc_ext_in_observation:
            parts.append(self._contact_forces()[:, 1:].reshape(len(self.qpos), -1))
        return np.concatenate(parts, axis=1)

    def healthy(self) -> Array:
        low, high = self.env._healthy_z_range
        finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        return finite & (low <= self.qpos[:, 2]) & (self.qpos[:, 2] <= high)

    def outcome(self, before: Array, actions: Array) -> Outcome:
        env, healthy = self.env, self.healthy()
        velocity = (self._xpos[:, self._main, :2] - before) / self.dt
        forward = velocity[:, 0] * env._forward_reward_weight
        survive = healthy * env._healthy_reward
        control = env._ctrl_cost_weight * _sum_of_squares(actions)
        contact = env._contact_cost_weight * _sum_of_squares(self._contact_forces())
        info = {
            **_planar(self.qpos, velocity),
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
            "reward_survive": survive,
        }
        terminated = ~healthy if env._terminate_when_unhealthy else self.never
        return Outcome(forward + survive - (control + contact), terminated, info)


def _planar(qpos: Array, velocity: Array) -> dict[str, Array]:
    return {
        "x_position": qpos[:, 0].copy(),
        "y_position": qpos[:, 1].copy(),
        "distance_from_origin": _norms(qpos[:, :2]),
        "x_velocity": velocity[:, 0],
        "y_velocity": velocity[:, 1],
    }


class _Humanlike(Task):
    """Observes inertia, velocities, actuator and contact forces of its bodies."""

    fields = (
        *("qpos", "qvel", "ctrl", "xipos", "cinert", "cvel"),
        *("qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity"),
    )
    simulator_class = PoolSimulator

    def observe(self) -> Array:
        env, simulator = self.env, self.simulator
        skipped = 2 * bool(env._exclude_current_positions_from_observation)
        parts = [self.qpos[:, skipped:], self.qvel]
        if env._include_cinert_in_observation is True:
            parts.append(simulator["cinert"][:, 1:])
        if env._include_cvel_in_observation is True:
            parts.append(simulator["cvel"][:, 1:])
        if env._include_qfrc_actuator_in_observation is True:
            parts.append(simulator["qfrc_actuator"][:, 6:])
        if env._include_cfrc_ext_in_observation is True:
            parts.append(simulator["cfrc_ext"][:, 1:])
        return np.concatenate([part.reshape(len(self.qpos), -1) for part in parts], axis=1)

    def tendons(self) -> dict[str, Array]:
        return {
            "tendon_length": self.simulator["ten_length"].copy(),
            "tendon_velocity": self.simulator["ten_velocity"].copy(),
        }


class Humanoid(_Humanlike):
    """Humanoid-v5: rewarded for the speed of its centre of mass."""

    def before(self) -> Array:
        mass = self.env.model.body_mass[:, None]
        return ((mass * self.simulator["xipos"]).sum(axis=1) / mass.sum())[:, :2]

    def outcome(self, before: Array, actions: Array) -> Outcome:
        env, z = self.env, self.qpos[:, 2]
        velocity = (self.before() - before) / self.dt
        low_z, high_z = env._healthy_z_range
        healthy = (low_z < z) & (z < high_z)
        forward = env._forward_reward_weight * velocity[:, 0]
        survive = healthy * env._healthy_reward
        control = env._ctrl_cost_weight * _sum_of_squares(self.simulator["ctrl"])
        low, high = env._contact_cost_range
        contact = env._contact_cost_weight * _sum_of_squares(self.simulator["cfrc_ext"])
        contact = _bounded(contact, low, high)
        info = {
            **_planar(self.qpos, velocity),
            **self.tendons(),
            "reward_survive": survive,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
        }
        terminated = ~healthy if env._terminate_when_unhealthy else self.never
        return Outcome(forward + survive - (control + contact), terminated, info)


class HumanoidStandup(_Humanlike):
    """HumanoidStandup-v5: rewarded for its height."""

    def outcome(self, before: None, actions: Array) -> Outcome:
        env, z = self.env, self.qpos[:, 2]
        up = (z - 0) / env.model.opt.timestep
        control = env._ctrl_cost_weight * _sum_of_squares(self.simulator["ctrl"])
        low, high = env._impact_cost_range
        impact = env._impact_cost_weight * _sum_of_squares(self.simulator["cfrc_ext"])
        impact = _bounded(impact, low, high)
        info = {
            "x_position": self.qpos[:, 0].copy(),
            "y_position": self.qpos[:, 1].copy(),
            "z_distance_from_origin": z - env.init_qpos[2],
            **self.tendons(),
            "reward_linup": up,
            "reward_quadctrl": -control,
            "reward_impact": -impact,
        }
        return Outcome(up - control - impact + 1, self.never, info)


TASKS: dict[str, type[Task]] = {
    "Ant-v5": Ant,
    "HalfCheetah-v5": HalfCheetah,
    "Hopper-v5": Hopper,
    "Humanoid-v5": Humanoid,
    "HumanoidStandup-v5": HumanoidStandup,
    "InvertedDoublePendulum-v5": InvertedDoublePendulum,
    "InvertedPendulum-v5": InvertedPendulum,
    "Pusher-v5": Pusher,
    "Reacher-v5": Reacher,
    "Swimmer-v5": Swimmer,
    "Walker2d-v5": Walker2d,
}
