"""The parts of an iteration, each alone: run as `python scripts/speed_parts.py PART ...`.

Prints one JSON object. `benchmark_speed.py` calls it in fresh processes, so that no part profits
from or suffers under what another has loaded.
"""

import importlib.util
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from peers import sb3_ppo

from ppo.agent import Agent
from ppo.config import Config, EnvConfig, from_mapping
from ppo.cores import usable_cores
from ppo.envs import EnvBatch, make_vector_env
from ppo.gae import compute_gae
from ppo.native.step import NativeEpoch
from ppo.parameters import learning_rate_vector
from ppo.rollout import Batch
from ppo.update import (
    Coefficients,
    EpochFunction,
    Hyperparameters,
    OptimizerState,
    make_step,
    one_by_one,
    update,
)

N_ENVS, N_STEPS, BATCH_SIZE, N_EPOCHS = 8, 256, 64, 10
OBSERVATION, ACTION = 17, 6  # HalfCheetah-v5's
REPEATS = 5


def best_seconds(work: Callable[[], object], *, calls: int) -> float:
    """Seconds of one call, in the fastest of several rounds: the others were disturbed."""
    work()
    rounds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        rounds.append((time.perf_counter() - begun) / calls)
    return min(rounds)


def stepping(env_id: str, n_envs: str) -> dict[str, float]:
    """Env steps/s with random actions, the sides in turn; the fastest round of each."""
    count, vector_steps = int(n_envs), 200
    single = gymnasium.make(env_id)
    space = single.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    draws = np.random.default_rng(0).uniform(space.low, space.high, (100, count, *space.shape))
    actions = draws.astype(np.float32)

    def env_steps_per_second(step: Callable[[Any], object]) -> float:
        begun = time.perf_counter()
        for turn in range(vector_steps):
            step(actions[turn % len(actions)])
        return vector_steps * count / (time.perf_counter() - begun)

    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(env_id)] * count)
    envs.reset(seed=0)
    sides: dict[str, Callable[[Any], object]] = {"SyncVectorEnv": envs.step}
    with make_vector_env(EnvConfig(id=env_id, n_envs=count), backend="mujoco") as batch:
        batch.reset(list(range(count)))
        sides["this project"] = batch.step
        physics = _timed_physics(batch)
        if importlib.util.find_spec("envpool"):
            import envpool

            pool = envpool.make(env_id, env_type="gymnasium", num_envs=count, num_threads=2)
            pool.reset()
            sides["EnvPool"] = lambda action: pool.step(action.astype(np.float64))
        rounds = []
        for _ in range(4 * REPEATS):
            physics.clear()
            rounds.append({side: env_steps_per_second(step) for side, step in sides.items()})
            rounds[-1]["physics"] = vector_steps * count / sum(physics)
    return {side: max(speeds[side] for speeds in rounds) for side in rounds[0]}


def _timed_physics(batch: EnvBatch) -> list[float]:
    """The seconds of every call of MuJoCo's stepping within `batch.step`, from now on."""
    simulator: Any = batch._vector._simulator  # type: ignore[attr-defined]
    step, seconds = simulator.step, []

    def timed(*arguments: Any) -> None:
        begun = time.perf_counter()
        step(*arguments)
        seconds.append(time.perf_counter() - begun)

    simulator.step = timed
    return seconds


def _config(hidden: int, batch_size: int) -> Config:
    return from_mapping(
        {
            "env": {"id": "HalfCheetah-v5"},
            "policy": {"hidden_sizes": [hidden, hidden]},
            "ppo": {"total_timesteps": 10**6, "batch_size": batch_size},
        },
        source="the benchmark",
    )


def _agent(hidden: int = 64, batch_size: int = BATCH_SIZE) -> Agent:
    box = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,))
    config = _config(hidden, batch_size)
    return Agent.create(
        config, observation_size=OBSERVATION, action_space=box, device=torch.device("cpu")
    )


def gradient_step(hidden: str, batch_size: str) -> dict[str, float]:
    """Milliseconds of a gradient step within an update."""
    torch.set_num_threads(1)
    width, rows = int(hidden), int(batch_size)
    networks = _agent(width, rows).networks
    settings = Hyperparameters(N_EPOCHS, rows, None, "minibatch", 0.5, 0.5, None)
    size = N_ENVS * N_STEPS
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    observations, actions = normal(size, OBSERVATION), normal(size, ACTION)
    with torch.no_grad():
        policy, values = networks(observations)
        log_probs = policy.log_prob(actions)
    batch = Batch(observations, actions, log_probs, values, normal(size), normal(size))
    rates = learning_rate_vector(networks, actor=3e-4, critic=3e-4)
    coefficients = Coefficients(rates, torch.tensor(0.2), torch.tensor(0.0), torch.tensor(True))
    optimizer = OptimizerState.zeros(networks)

    def measure(epoch: EpochFunction) -> float:
        def work() -> None:
            update(
                networks,
                optimizer,
                batch,
                coefficients,
                epoch=epoch,
                hyperparameters=settings,
                generator=generator,
            )

        return best_seconds(work, calls=2) * 1e3 / (N_EPOCHS * size / rows)

    return {
        "compiled": measure(NativeEpoch(networks, settings, n_threads=min(2, usable_cores()))),
        "eager": measure(one_by_one(make_step(networks, settings), batch_size=rows)),
        "Stable-Baselines3": _sb3_gradient_step(width, rows),
        "floor": _floor(width, rows),
    }


def _sb3_gradient_step(hidden: int, batch_size: int) -> float:
    model = sb3_ppo(
        "HalfCheetah-v5",
        seed=0,
        batch_size=batch_size,
        policy_kwargs={"net_arch": {"pi": [hidden, hidden], "vf": [hidden, hidden]}},
    )
    model.learn(N_ENVS * N_STEPS)
    steps = N_EPOCHS * N_ENVS * N_STEPS / batch_size
    return best_seconds(model.train, calls=1) * 1e3 / steps


def _floor(hidden: int, batch_size: int) -> float:
    """Milliseconds that the arithmetic alone takes: products at the speed of a large one, tanh."""
    layers = [(OBSERVATION, hidden), (hidden, hidden)]
    weights = sum(a * b for a, b in layers) * 2 + hidden * (ACTION + 1)
    # Forward, and backward by weights and by inputs, but for the inputs of the first layer.
    flop = 2 * batch_size * (3 * weights - 2 * OBSERVATION * hidden)
    large = torch.randn(1024, 1024)
    per_flop = best_seconds(lambda: large @ large, calls=5) / (2 * 1024**3)
    many = torch.randn(1 << 16)
    per_tanh = best_seconds(many.tanh, calls=20) / many.numel()
    return (flop * per_flop + 4 * batch_size * hidden * per_tanh) * 1e3


def gae() -> dict[str, float]:
    """Milliseconds of one estimate over a rollout."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = (N_STEPS, N_ENVS)
    rewards, values, next_values = (torch.randn(shape, generator=generator) for _ in range(3))
    ends = torch.rand(shape, generator=generator) < 0.01
    never = torch.zeros_like(ends)
    model = sb3_ppo("HalfCheetah-v5", seed=0)
    model.learn(N_ENVS * N_STEPS)
    last, done = torch.zeros(N_ENVS), np.zeros(N_ENVS)
    buffer = model.rollout_buffer
    buffer.reset()  # learning has flattened it
    return {
        "this project": best_seconds(
            lambda: compute_gae(
                rewards, values, next_values, ends, never, gamma=0.99, gae_lambda=0.95
            ),
            calls=20,
        )
        * 1e3,
        "Stable-Baselines3": best_seconds(
            lambda: buffer.compute_returns_and_advantage(last, done), calls=20
        )
        * 1e3,
    }


def acting() -> dict[str, float]:
    """Microseconds from 8 observations to 8 actions."""
    torch.set_num_threads(1)
    agent = _agent()
    policy = agent.acting_policy()
    shown = np.random.default_rng(0).normal(size=(N_ENVS, OBSERVATION)).astype(np.float32)
    noise = agent.head.noise((N_ENVS,), torch.Generator())
    model = sb3_ppo("HalfCheetah-v5", seed=0)

    def theirs() -> None:
        with torch.no_grad():
            model.policy(torch.as_tensor(shown))

    def ours() -> None:
        agent.head.to_env(policy.actions(policy.outputs(shown), noise))

    weights = OBSERVATION * 64 + 64 * 64 + 64 * ACTION
    large = torch.randn(1024, 1024)
    per_flop = best_seconds(lambda: large @ large, calls=5) / (2 * 1024**3)
    return {
        "this project": best_seconds(ours, calls=500) * 1e6,
        "Stable-Baselines3": best_seconds(theirs, calls=500) * 1e6,
        "floor": 2 * N_ENVS * weights * per_flop * 1e6,
    }


def peak_memory() -> float:
    """MiB, of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "stepping": stepping,
    "gradient_step": gradient_step,
    "gae": gae,
    "acting": acting,
}

if __name__ == "__main__":
    part, *arguments = sys.argv[1:]
    print(json.dumps(PARTS[part](*arguments)))
