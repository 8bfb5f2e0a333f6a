"""Toy environments whose right answers can be worked out by hand.

Importing this module registers all of them; `tests.toys:Cnt-v0` names one from anywhere. Unless
said otherwise the action is Discrete(2) and ignored, and an episode's number restarts at 0 when a
seed is given.
"""

import os
import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Ends = tuple[bool, bool]
ENDS: dict[str, Ends] = {
    "term": (True, False),
    "trunc": (False, True),
    "both": (True, True),
    "none": (False, False),
}


def unbounded(size: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), dtype)


def action_space(name: str) -> spaces.Space[Any]:
    """The action spaces that the toys can be asked for by name, as YAML can."""
    return {
        "discrete": lambda: spaces.Discrete(2),
        "start5": lambda: spaces.Discrete(3, start=5),
        "multi": lambda: spaces.MultiDiscrete([2, 3], start=[0, 10]),
        "box": lambda: spaces.Box(-1.0, 1.0, (1,)),
        "box3": lambda: spaces.Box(-1.0, 1.0, (3,)),
        "skewed": lambda: spaces.Box(np.float32([0, -2]), np.float32([10, 2])),
        "infinite": lambda: spaces.Box(-np.inf, np.inf, (2,)),
        "half_infinite": lambda: spaces.Box(0.0, np.inf, (2,)),
        "mixed_bounds": lambda: spaces.Box(
            np.float32([-np.inf, 0, -1]), np.float32([np.inf, np.inf, 1])
        ),
        "int_box": lambda: spaces.Box(0, 5, (2,), np.int64),
        "binary": lambda: spaces.MultiBinary(3),
    }[name]()


class Toy(gymnasium.Env):
    """Counts episodes and env steps; a subclass says what is seen, paid and when it ends."""

    def __init__(self, action: str = "discrete") -> None:
        self.action_space = action_space(action)
        self.observation_space = unbounded(1)
        self.episode = -1
        self.t = 0
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.t += 1
        terminated, truncated = self.ends()
        return self.observe(), self.reward(action), terminated, truncated, self.info()

    def observe(self) -> Any:
        return np.array([100 * self.episode + self.t], dtype=np.float32)

    def reward(self, action: Any) -> Any:
        return 1.0

    def ends(self) -> Ends:
        return ENDS["none"]

    def info(self) -> dict:
        return {}


class Cnt(Toy):
    """obs = [100*episode + t], reward 1, ends at step `length` with `kind` term, trunc or both."""

    def __init__(self, length: int = 3, kind: str = "term", action: str = "discrete") -> None:
        super().__init__(action)
        self.length, self.kind = length, kind

    def ends(self) -> Ends:
        return ENDS[self.kind if self.t >= self.length else "none"]


class Where(Toy):
    """obs = [env, episode, t], float64, reward 100*episode + t; `env` is the seed of the reset.

    Episode k has length lengths[k % len] and ends with kinds[k % len]. Seed the batch with
    range(n) and every row says where it came from. The info has reward_episode and, on even t,
    reward_even = t; on odd t the key is absent.
    """

    def __init__(
        self,
        lengths: Any = (3, 5, 2),
        kinds: Any = ("term", "trunc", "both"),
        action: str = "discrete",
    ) -> None:
        super().__init__(action)
        self.observation_space = unbounded(3, np.float64)
        self.lengths, self.kinds = tuple(lengths), tuple(kinds)

    def observe(self) -> Any:
        return np.array([self.seed or 0, self.episode, self.t], dtype=np.float64)

    def reward(self, action: Any) -> Any:
        return 100.0 * self.episode + self.t

    def ends(self) -> Ends:
        if self.t < self.lengths[self.episode % len(self.lengths)]:
            return ENDS["none"]
        return ENDS[self.kinds[self.episode % len(self.kinds)]]

    def info(self) -> dict:
        terms: dict[str, Any] = {"reward_episode": self.episode, "position": np.zeros(3)}
        if self.t % 2 == 0:
            terms["reward_even"] = self.t
        return terms


class Reuse(Cnt):
    """Cnt that returns the same array every time, or a view of it."""

    def __init__(self, length: int = 2, kind: str = "term", view: bool = False) -> None:
        super().__init__(length, kind)
        self.buffer = np.zeros(1, dtype=np.float32)
        self.view = view

    def observe(self) -> Any:
        self.buffer[0] = 100 * self.episode + self.t
        return self.buffer[:] if self.view else self.buffer


class OddReward(Cnt):
    """Rewards that are no float: at step t the number is t, or t % 2 == 1 for a bool."""

    def __init__(self, form: str, length: int = 4) -> None:
        super().__init__(length, "trunc")
        self.form = form

    def reward(self, action: Any) -> Any:
        t = self.t
        return {
            "int": t,
            "bool": t % 2 == 1,
            "np_int": np.int32(t),
            "np_bool": np.bool_(t % 2 == 1),
            "float32": np.float32(t),
            "zero_d": np.array(t),
            "one_element": np.array([t], dtype=np.float32),
            "none": None,
            "pair": np.array([t, t]),
            "text": "much",
            "ragged": [1, [2, 3]],
        }[self.form]


class Sick(Cnt):
    """The observation or the reward is not finite at step `at` of an endless episode."""

    def __init__(
        self, quantity: str = "observation", at: int = 5, value: float = float("nan")
    ) -> None:
        super().__init__(10**9)
        self.quantity, self.at, self.value = quantity, at, float(value)

    def observe(self) -> Any:
        hit = self.quantity == "observation" and self.t == self.at
        return np.array([self.value if hit else self.t], dtype=np.float32)

    def reward(self, action: Any) -> Any:
        return self.value if self.quantity == "reward" and self.t == self.at else 1.0


class Echo(Cnt):
    """obs = the last action as floats (zeros at reset); an action outside the space raises.

    `action` names the action space: start5, multi, skewed, infinite, half_infinite, ...
    """

    def __init__(self, action: str = "start5", length: int = 5) -> None:
        super().__init__(length, "trunc", action)
        size = max(1, int(np.prod(self.action_space.shape)))
        self.observation_space = unbounded(size)
        self.last = np.zeros(size)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.last = np.zeros_like(self.last)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        if not self.action_space.contains(action) or not np.all(np.isfinite(action)):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        self.last = np.atleast_1d(action).astype(np.float64)
        return super().step(action)

    def observe(self) -> Any:
        return self.last.astype(np.float32)

    def reward(self, action: Any) -> Any:
        return float(self.last.sum())


class Precision(Cnt):
    """Declares one float dtype and returns another, the value t + 1e-9."""

    def __init__(self, declared: str = "float32", given: str = "float64", length: int = 4) -> None:
        super().__init__(length)
        self.observation_space = unbounded(1, np.dtype(declared).type)
        self.given = np.dtype(given)

    def observe(self) -> Any:
        return np.array([self.t + 1e-9], dtype=self.given)


class Constant(Toy):
    """Never ends of itself; obs = [1], reward 1. Give it env.max_episode_steps."""

    def observe(self) -> Any:
        return np.ones(1, dtype=np.float32)


class Doomed(Cnt):
    """Kills its own process at step `at`, where it was seeded with `victim` (null: anyone)."""

    def __init__(self, at: int = 3, victim: int | None = None, action: str = "discrete") -> None:
        super().__init__(10**9, action=action)
        self.at, self.victim = at, victim

    def observe(self) -> Any:
        if self.t == self.at and self.victim in (None, self.seed):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().observe()


class UnpicklableError(Exception):
    """As awkward as an exception can be: two arguments, and a lock inside."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}\n{second}")
        self.stream = (value for value in ())


class Raising(Cnt):
    """Raises UnpicklableError at step `at`, where it was seeded with `victim` (null: anyone)."""

    def __init__(self, at: int = 3, victim: int | None = None, length: int = 10**9) -> None:
        super().__init__(length)
        self.at, self.victim = at, victim

    def observe(self) -> Any:
        if self.t == self.at and self.victim in (None, self.seed):
            raise UnpicklableError("the leg", "fell off")
        return super().observe()


class Stuck(Cnt):
    """Ignores SIGTERM and takes a minute for the step `at`: what close() must cope with."""

    def __init__(self, at: int = 1) -> None:
        super().__init__(10**9)
        self.at = at

    def observe(self) -> Any:
        if self.t == self.at:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()
        return super().observe()


class Shown(Cnt):
    """Observations in one of the spaces that have to be turned into a vector."""

    def __init__(self, form: str = "dict", length: int = 3) -> None:
        super().__init__(length)
        self.form = form
        byte = spaces.Box(0, 255, (2, 2), np.uint8)
        self.observation_space = {
            # The space sorts its keys; the observation comes in another order.
            "dict": spaces.Dict({"b": unbounded(2), "a": spaces.Discrete(3, start=5)}),
            "camera": spaces.Dict({"eye": byte, "arm": unbounded(1)}),
            "tuple": spaces.Tuple([spaces.Discrete(2), unbounded(1)]),
            "image": byte,
            "bytes": spaces.Box(0, 100, (2,), np.uint8),
            "matrix": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
            "scalar": spaces.Box(-np.inf, np.inf, (), np.float32),
            "int_box": spaces.Box(-1000, 1000, (2,), np.int64),
            "discrete": spaces.Discrete(3, start=5),
            "multi": spaces.MultiDiscrete([2, 3]),
            "binary": spaces.MultiBinary(3),
            "text": spaces.Text(5),
            "dict_of_text": spaces.Dict({"a": unbounded(1), "t": spaces.Text(5)}),
            "wrong_shape": unbounded(2),
            "none": unbounded(2),
        }[form]

    def observe(self) -> Any:
        t = self.t
        pixels = np.array([[0, 51], [102, 255]], dtype=np.uint8)
        return {
            "dict": lambda: {"b": np.float32([t, 10 + t]), "a": np.int64(6)},
            "camera": lambda: {"arm": np.float32([t]), "eye": pixels},
            "tuple": lambda: (1, np.float32([t])),
            "image": lambda: pixels,
            "bytes": lambda: np.array([t, 100], dtype=np.uint8),
            "matrix": lambda: np.float32([[t, 1], [2, 3]]),
            "scalar": lambda: np.float32(t),
            "int_box": lambda: np.array([t, -7], dtype=np.int64),
            "discrete": lambda: 7,
            "multi": lambda: np.array([1, 2]),
            "binary": lambda: np.array([1, 0, 1], dtype=np.int8),
            "wrong_shape": lambda: np.zeros(3, dtype=np.float32),
            "none": lambda: None,
        }[self.form]()


class Noise(Toy):
    """obs = a draw of the environment's own generator: shows who was seeded with what."""

    def __init__(self, length: int = 2) -> None:
        super().__init__()
        self.length = length

    def observe(self) -> Any:
        return self.np_random.random(1).astype(np.float32)

    def ends(self) -> Ends:
        return ENDS["trunc" if self.t >= self.length else "none"]


class Unmakeable(Toy):
    """Its constructor fails, on two lines."""

    def __init__(self) -> None:
        raise OSError("no such robot\nanywhere")


class BreaksInWorker(Cnt):
    """Can be made in the process with the number `pid` and nowhere else."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            raise RuntimeError("no display here")
        super().__init__()


class Unruly(Cnt):
    """Does what no environment should: `how` says what, from its second step on."""

    def __init__(self, how: str) -> None:
        super().__init__(4)
        self.how = how

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.t < 2:
            return observation, reward, terminated, truncated, info
        match self.how:
            case "exit":
                raise SystemExit
            case "no info":
                return observation, reward, terminated, truncated, None
            case "odd info":
                return observation, reward, terminated, truncated, {3: "x", "reward_x": 1.0}
            case "two flags":
                return observation, reward, np.array([True, False]), truncated, info
            case "four items":
                return observation, reward, terminated, info
            case "print":
                print("a word of mine")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        if self.how == "close":
            raise OSError("the window is gone")


TOYS = (
    Cnt,
    Unruly,
    Where,
    Reuse,
    OddReward,
    Sick,
    Echo,
    Precision,
    Constant,
    Doomed,
    Raising,
    Stuck,
    Shown,
    Noise,
    Unmakeable,
    BreaksInWorker,
)
for toy in TOYS:
    gymnasium.register(f"{toy.__name__}-v0", entry_point=f"{__name__}:{toy.__name__}")
# The same task with a registered limit of its own.
gymnasium.register("CntLimited-v0", entry_point=f"{__name__}:Cnt", max_episode_steps=5)
