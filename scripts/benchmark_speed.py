"""Measure speed beside other trainers, in one run, and write docs/speed.md.

Each training is a process of its own, alternately this project's and its peers', with the same
hyperparameters. This side is `ppo train` as shipped: logs, TensorBoard, checkpoints and
evaluations during training are on, and the peers have none of them. The first `--warmup` env
steps are left out on all sides: they hold the compilation, here and in JAX. The peers come with
the `bench` extra; one that is not installed is left out. Run it on an otherwise idle machine:
`--quick` takes about eight minutes, all of it about forty.

    python scripts/benchmark_speed.py --quick
"""

import argparse
import csv
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peers import N_ENVS, N_STEPS, sb3_ppo, sbx_ppo
from speed_parts import peak_memory
from speed_report import DATA, write_report

ROOT = Path(__file__).resolve().parent.parent
ENV_CONFIGS = {
    "HalfCheetah-v5": "halfcheetah",
    "Hopper-v5": "hopper",
    "Walker2d-v5": "walker2d",
}
ROLLOUT = N_ENVS * N_STEPS
OURS, SB3, SBX = "this project", "Stable-Baselines3", "SBX"
PEERS = {SB3: "stable_baselines3", SBX: "sbx"}

Figures = dict[str, Any]


def train_ours(
    env_id: str, total: int, warmup: int, seed: int, shape: Mapping[str, int]
) -> Figures:
    """`ppo train` as shipped."""
    with tempfile.TemporaryDirectory() as runs:
        begun = time.perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ppo", "train", "--json", "--profile"),
                str(ROOT / "configs" / f"{ENV_CONFIGS[env_id]}.yaml"),
                *("--ppo.total_timesteps", str(total), "--seed", str(seed), "--runs_dir", runs),
                *("--env.n_envs", str(shape["n_envs"]), "--compile", "on"),
                *("--ppo.n_steps", str(ROLLOUT // shape["n_envs"])),
                *("--ppo.batch_size", str(shape["batch_size"])),
                *("--policy.hidden_sizes", f"[{shape['width']}, {shape['width']}]"),
            ],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        seconds = time.perf_counter() - begun
        (progress,) = Path(runs).glob("*/progress.csv")
        with progress.open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    clock = [(int(row["env_steps"]), float(row["time/time_elapsed"])) for row in rows]
    profile = json.loads(done.stdout)["seconds"]
    return {**after_warmup(clock, warmup), "seconds": seconds, "profile": profile}


def train_peer(
    peer: str, env_id: str, total: int, warmup: int, seed: int, shape: Mapping[str, int]
) -> Figures:
    """A peer in a fresh process."""
    call = json.dumps([peer, env_id, total, seed, dict(shape)])
    command = [sys.executable, __file__, "--peer", call]
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ).stdout
    told = json.loads(output.splitlines()[-1])
    return {**after_warmup(told["clock"], warmup), "memory": told["memory"]}


def run_peer(peer: str, env_id: str, total: int, seed: int, shape: Mapping[str, int]) -> None:
    """Print the time at the end of every iteration, learning included."""
    from stable_baselines3 import PPO

    base: Any = sbx_ppo() if peer == SBX else PPO
    clock: list[tuple[int, float]] = []

    class Timed(base):  # type: ignore[misc]
        def train(self) -> None:
            super().train()
            clock.append((self.num_timesteps, time.perf_counter() - started))

    width = shape["width"]
    networks = {"pi": [width, width], "vf": [width, width]}
    model = sb3_ppo(
        env_id,
        seed=seed,
        base=Timed,
        n_envs=shape["n_envs"],
        n_steps=ROLLOUT // shape["n_envs"],
        batch_size=shape["batch_size"],
        policy_kwargs={"net_arch": networks},
    )
    started = time.perf_counter()
    model.learn(total)
    print(json.dumps({"clock": clock, "memory": peak_memory()}))


def after_warmup(clock: list[tuple[int, float]], warmup: int) -> Figures:
    """`clock` holds (env steps, seconds) at the end of every iteration."""
    first = next(entry for entry in clock if entry[0] >= warmup)
    last = clock[-1]
    return {"speed": (last[0] - first[0]) / (last[1] - first[1]), "warmup_seconds": first[1]}


def installed_peers() -> list[str]:
    return [peer for peer, module in PEERS.items() if importlib.util.find_spec(module)]


def training(env_id: str, repeats: int, total: int, warmup: int) -> Figures:
    """All sides, alternately."""
    shape = {"n_envs": N_ENVS, "batch_size": 64, "width": 64}
    runs: dict[str, list[Figures]] = {OURS: [], **{peer: [] for peer in installed_peers()}}
    for repeat in range(repeats):
        for side, done in runs.items():
            if side == OURS:
                done.append(train_ours(env_id, total, warmup, repeat, shape))
            else:
                done.append(train_peer(side, env_id, total, warmup, repeat, shape))
            print(f"{env_id} {side} {repeat + 1}: {done[-1]['speed']:,.0f} env steps/s", flush=True)
    figures: Figures = {
        side: {
            "speed": statistics.median(run["speed"] for run in done),
            "warmup_seconds": statistics.median(run["warmup_seconds"] for run in done),
            "ratios": [a["speed"] / b["speed"] for a, b in zip(runs[OURS], done, strict=True)],
        }
        for side, done in runs.items()
    }
    iterations = total / ROLLOUT
    profiles = [run["profile"] for run in runs[OURS]]
    figures["milliseconds of an iteration"] = {
        phase: statistics.median(profile.get(phase, 0.0) for profile in profiles) * 1e3 / iterations
        for phase in profiles[0]
        if phase not in ("starting", "compiling", "evaluating", "finishing")
    }
    return figures


def scaling(total: int) -> Iterator[Figures]:
    """How the cost grows with environments, width and batch size."""
    base = {"n_envs": N_ENVS, "batch_size": 64, "width": 64}
    for key, values in (("n_envs", (1, 8, 16, 64)), ("width", (256,)), ("batch_size", (256, 2048))):
        for value in values:
            shape = base | {key: value}
            ours = train_ours("HalfCheetah-v5", total, 4 * ROLLOUT, 0, shape)["speed"]
            theirs = train_peer(SB3, "HalfCheetah-v5", total // 2, 2 * ROLLOUT, 0, shape)["speed"]
            print(f"{shape}: {ours:,.0f} and {theirs:,.0f} env steps/s", flush=True)
            yield {**shape, OURS: ours, SB3: theirs}


def part(name: str, *arguments: str) -> Figures:
    """One of `speed_parts.py`, in a fresh process."""
    command = [sys.executable, str(ROOT / "scripts" / "speed_parts.py"), name, *arguments]
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ).stdout
    figures: Figures = json.loads(output.splitlines()[-1])
    print(name, *arguments, {key: round(value, 3) for key, value in figures.items()}, flush=True)
    return figures


def start_up() -> Figures:
    """Seconds of whole processes, and their memory."""
    program = (
        "import resource, subprocess, sys, time; begun = time.perf_counter();"
        "subprocess.run(sys.argv[1:], check=True, stdout=-3, stderr=-3);"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024;"
        "print(time.perf_counter() - begun, peak)"
    )
    config = str(ROOT / "configs" / "halfcheetah.yaml")
    with tempfile.TemporaryDirectory() as runs, tempfile.TemporaryDirectory() as cache:

        def run(env_steps: int, cache_home: str | None) -> tuple[float, float]:
            output = subprocess.run(
                [
                    *(sys.executable, "-c", program, sys.executable, "-m", "ppo", "train", config),
                    *("--ppo.total_timesteps", str(env_steps), "--runs_dir", runs),
                    *("--ppo.batch_size", str(min(64, env_steps))),
                    *("--eval.episodes", "1", "--eval.max_episode_steps", "1", "--compile", "on"),
                ],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | ({} if cache_home is None else {"XDG_CACHE_HOME": cache_home}),
            ).stdout
            seconds, peak = map(float, output.split())
            return seconds, peak

        run(8, None)
        first_step = statistics.median(run(8, None)[0] for _ in range(3))
        cold, _ = run(ROLLOUT, cache)
        warm, _ = run(ROLLOUT, cache)
        _, memory = run(10 * ROLLOUT, None)
    return {"first_step": first_step, "compiling": cold - warm, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", choices=sorted(ENV_CONFIGS), dest="envs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=102_400, help="env steps of each training")
    parser.add_argument("--warmup", type=int, default=8_192, help="env steps left out")
    parser.add_argument("--quick", action="store_true", help="one repeat, trainings only")
    parser.add_argument("--output", type=Path, default=DATA, help="where the figures are kept")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        run_peer(*json.loads(arguments.peer))
        return
    if not 0 < arguments.warmup < arguments.steps:
        parser.error("--warmup must lie between 0 and --steps")
    repeats = 1 if arguments.quick else arguments.repeats
    figures: Figures = {
        "cores": os.cpu_count(),
        "env_steps": arguments.steps,
        "warmup": arguments.warmup,
        "repeats": repeats,
        "training": {},
    }
    for env_id in arguments.envs or ENV_CONFIGS:
        figures["training"][env_id] = training(env_id, repeats, arguments.steps, arguments.warmup)
    if arguments.quick:
        for env_id, sides in figures["training"].items():
            for peer in installed_peers():
                print(f"{env_id}: {sides[peer]['ratios'][0]:.2f} times {peer}")
        return
    tasks = (*ENV_CONFIGS, "Ant-v5", "Humanoid-v5")
    shapes = (("64", "64"), ("256", "64"), ("64", "256"), ("64", "2048"))
    stages: dict[str, Callable[[], Any]] = {
        "start_up": start_up,
        "stepping": lambda: {env_id: part("stepping", env_id, str(N_ENVS)) for env_id in tasks},
        "gradient_step": lambda: [
            {"width": int(width), "batch_size": int(rows), **part("gradient_step", width, rows)}
            for width, rows in shapes
        ],
        "gae": lambda: part("gae"),
        "acting": lambda: part("acting"),
        "scaling": lambda: list(scaling(arguments.steps // 2)),
    }
    for name, stage in stages.items():
        # What a long run has measured is kept, whatever happens to the rest of it.
        keep(figures, arguments.output)
        figures[name] = stage()
    keep(figures, arguments.output)
    write_report(arguments.output)


def keep(figures: Figures, file: Path) -> None:
    file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
