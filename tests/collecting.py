"""Small configs, collectors and an independent account of what a toy environment does."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from ppo.agent import Agent
from ppo.collector import RolloutCollector
from ppo.config import Config, from_mapping
from ppo.envs import make_vector_env
from ppo.seeding import Stream, torch_generator
from tests.toys import ENDS, Where

MODES = ("same_step", "next_step")
BACKENDS = ("sync", "async")


class Staggered(Where):
    """Where, but environment k starts k episodes further into the lists of lengths and kinds."""

    def ends(self) -> tuple[bool, bool]:
        turn = self.episode + (self.seed or 0)
        if self.t < self.lengths[turn % len(self.lengths)]:
            return ENDS["none"]
        return ENDS[self.kinds[turn % len(self.kinds)]]


class StaggeredBox(Staggered):
    """Staggered with a Box action."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(action="box3", **kwargs)


for toy in (Staggered, StaggeredBox):
    gymnasium.register(f"{toy.__name__}-v0", entry_point=f"{__name__}:{toy.__name__}")


def toy_id(name: str) -> str:
    module = "tests.collecting" if name.startswith("Staggered") else "tests.toys"
    return f"{module}:{name}-v0"


def config_of(toy: str, **changes: Any) -> Config:
    """A tiny run of a toy; dotted keys are given as `ppo__n_steps=4`."""
    mapping: dict[str, Any] = {
        "env": {"id": toy_id(toy), "n_envs": 2},
        "policy": {"hidden_sizes": [8]},
        "normalize": {"observations": False, "rewards": False},
        "ppo": {"total_timesteps": 64, "n_steps": 8, "n_epochs": 2, "batch_size": 4},
        "eval": {"episodes": 1},
        "logging": {"tensorboard": False, "progress": "off"},
    }
    mapping = copy.deepcopy(mapping)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            mapping.setdefault(section, {})[name] = value
        else:
            mapping[section] = value
    return from_mapping(mapping, source="a test")


def agent_of(config: Config, envs: Any) -> Agent:
    return Agent.create(
        config,
        observation_size=envs.observation_size,
        action_space=envs.action_space,
        device=torch.device("cpu"),
    )


@contextmanager
def collecting(config: Config, **options: Any) -> Iterator[tuple[Agent, RolloutCollector]]:
    """An agent and a collector whose environment k was seeded with k."""
    with make_vector_env(config.env) as envs:
        agent = agent_of(config, envs)
        collector = RolloutCollector(
            envs,
            generator=torch_generator(config.seed, Stream.ACTIONS),
            **options,
        )
        collector.reset(list(range(config.env.n_envs)))
        yield agent, collector


@dataclass(frozen=True)
class Row:
    """One row of one environment, told without the trainer: states are (env, episode, t)."""

    state: tuple[int, int, int]
    reached: tuple[int, int, int]
    reward: float
    terminated: bool
    truncated: bool
    acted: bool

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


LENGTHS = (3, 5, 2)
KINDS = ("term", "trunc", "both")


def staggered_rows(env: int, n_rows: int, mode: str) -> list[Row]:
    """What environment `env` of Staggered does, from its reset."""
    rows: list[Row] = []
    episode, t, resetting = 0, 0, False
    while len(rows) < n_rows:
        if resetting:
            rows.append(
                Row((env, episode, t), (env, episode + 1, 0), 0.0, False, False, acted=False)
            )
            episode, t, resetting = episode + 1, 0, False
            continue
        turn = (episode + env) % 3
        kind = KINDS[turn] if t + 1 == LENGTHS[turn] else "none"
        state, t = (env, episode, t), t + 1
        row = Row(state, (env, episode, t), 100.0 * episode + t, *ENDS[kind], acted=True)
        rows.append(row)
        if row.ended and mode == "next_step":
            resetting = True
        elif row.ended:
            episode, t = episode + 1, 0
    return rows


def account(n_rows: int, n_envs: int, mode: str) -> list[list[Row]]:
    """[T][N] rows of a batch of Staggered."""
    columns = [staggered_rows(env, n_rows, mode) for env in range(n_envs)]
    return [list(row) for row in zip(*columns, strict=True)]


def table(rows: list[list[Row]], name: str) -> np.ndarray:
    """One attribute of all rows, [T, N, ...]."""
    return np.array([[getattr(row, name) for row in step] for step in rows])
