"""One environment for each line of the audit, broken in that and in nothing else, and clean twins.

Registered as `tests.broken_toys:broken/NAME-v0`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Clean(gymnasium.Env):
    """A point that is pushed along a line, and falls off beyond 3; starts differ by seed."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.place, self.t = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place, self.t = float(self.np_random.uniform(-1, 1)), 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        self.t += 1
        self.place += float(np.clip(np.asarray(action).reshape(-1)[0], -1, 1))
        return self.observe(), self.reward(), self.terminated(), self.truncated(), {}

    def observe(self) -> Any:
        return np.array([self.place, self.t], dtype=np.float32)

    def reward(self) -> Any:
        return 1.0 - 0.1 * abs(self.place)

    def terminated(self) -> Any:
        return abs(self.place) > 3.0

    def truncated(self) -> Any:
        return False


class Endless(Clean):
    def terminated(self) -> Any:
        return False


class IntFlags(Clean):
    def terminated(self) -> Any:
        return int(super().terminated())


class BothFlags(Clean):
    def truncated(self) -> Any:
        return self.terminated()


class OwnLimit(Clean):
    def truncated(self) -> Any:
        return self.t >= 5 and not self.terminated()


class SelfResetting(Clean):
    """Shows the next episode's first observation where an episode ends."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: tuple[float, int] | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is None and self.coming is not None:
            self.place, self.t = self.coming
            self.coming = None
            return self.observe(), {}
        self.coming = None
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated:
            observation, _ = super().reset()
            self.coming = (self.place, self.t)
        return observation, reward, terminated, truncated, info


class Reusing(Clean):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2, dtype=np.float32)

    def observe(self) -> Any:
        self.buffer[:] = self.place, self.t
        return self.buffer


class IntReward(Clean):
    def reward(self) -> Any:
        return int(self.place)


class ArrayReward(Clean):
    def reward(self) -> Any:
        return np.array([super().reward()])


class NoReward(Clean):
    def reward(self) -> Any:
        return None


class NanReward(Clean):
    def reward(self) -> Any:
        return float("nan") if self.t == 2 else 1.0


class Doubles(Clean):
    """Declares float32 and returns float64."""

    def observe(self) -> Any:
        return np.array([self.place, self.t], dtype=np.float64)


class WrongShape(Clean):
    def observe(self) -> Any:
        return np.array([[self.place, self.t]], dtype=np.float32)


class Outside(Clean):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(np.float32([-9, 0]), np.float32([9, 2]))


class Inside(Outside):
    """Its clean twin: what leaves the bounds is clipped to them."""

    def observe(self) -> Any:
        return np.clip(super().observe(), self.observation_space.low, self.observation_space.high)


class NanObservation(Clean):
    def observe(self) -> Any:
        return np.array([self.place, np.nan if self.t == 2 else 0.0], dtype=np.float32)


class Unbounded(Clean):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,))


class FarBounds(Clean):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(0.0, 10.0, (1,))


class Unseeded(Clean):
    """Draws from a source of its own."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place = float(np.random.default_rng().uniform(-1, 1))
        return self.observe(), {}


class OneStart(Clean):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place = 0.0
        return self.observe(), {}


class Fragile(Clean):
    """Divides by what an action leaves of its bound."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        left = 1.0 - abs(float(action[0]))
        observation, _, *rest = super().step(action)
        with np.errstate(divide="ignore"):
            return observation, float(1.0 / np.float64(left)), *rest


class Raising(Clean):
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        if self.t == 2:
            raise RuntimeError("the motor is broken")
        return super().step(action)


class RaisingAtTheEdge(Clean):
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        if abs(float(action[0])) == 1.0:
            raise ValueError("too strong")
        return super().step(action)


class SharedState(Clean):
    """Copies in one process move each other."""

    pushes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is not None:
            type(self).pushes = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        type(self).pushes += 1
        return super().step(action)

    def observe(self) -> Any:
        return np.array([self.place, self.pushes], dtype=np.float32)


for toy in [kind for kind in list(globals().values()) if isinstance(kind, type)]:
    if issubclass(toy, gymnasium.Env):
        limit = None if toy is Endless else 40
        gymnasium.register(
            f"broken/{toy.__name__}-v0",
            entry_point=f"{__name__}:{toy.__name__}",
            max_episode_steps=limit,
        )
