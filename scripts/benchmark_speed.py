"""Train with this project and with Stable-Baselines3, alternately, and print the ratio of speeds.

Each side trains in a process of its own, with the same hyperparameters, on one torch thread. This
side is `ppo train` as shipped: logs, TensorBoard, checkpoints and evaluations during training are
on, and the peer has none of them. The first `--warmup` env steps are left out on both sides: they
hold the compilation here and lazy set-up there. Run it on an otherwise idle machine.

    python scripts/benchmark_speed.py --env HalfCheetah-v5 --env Hopper-v5 --repeats 3
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from peers import N_ENVS, N_STEPS, sb3_ppo

ROOT = Path(__file__).resolve().parent.parent
ENV_CONFIGS = {
    "HalfCheetah-v5": "halfcheetah",
    "Hopper-v5": "hopper",
    "Walker2d-v5": "walker2d",
    "Ant-v5": "ant",
}


@dataclass(frozen=True)
class Speed:
    """One training: env steps/s after the warm-up, and the seconds that the warm-up took."""

    steps_per_second: float
    warmup_seconds: float


def measure_ours(env_id: str, *, total: int, warmup: int, seed: int) -> Speed:
    """`ppo train` as shipped."""
    with tempfile.TemporaryDirectory() as runs:
        subprocess.run(
            [
                *(sys.executable, "-m", "ppo", "train"),
                str(ROOT / "configs" / f"{ENV_CONFIGS[env_id]}.yaml"),
                *("--ppo.total_timesteps", str(total), "--seed", str(seed), "--runs_dir", runs),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        (progress,) = Path(runs).glob("*/progress.csv")
        with progress.open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    clock = [(int(row["env_steps"]), float(row["time/time_elapsed"])) for row in rows]
    return _after_warmup(clock, warmup)


def measure_sb3(env_id: str, *, total: int, warmup: int, seed: int) -> Speed:
    """Stable-Baselines3 in a fresh process."""
    command = [sys.executable, __file__, "--sb3", env_id, str(total), str(seed)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return _after_warmup(json.loads(output.splitlines()[-1]), warmup)


def _after_warmup(clock: list[tuple[int, float]], warmup: int) -> Speed:
    """`clock` holds (env steps, seconds) at the end of every iteration."""
    first = next(entry for entry in clock if entry[0] >= warmup)
    last = clock[-1]
    return Speed((last[0] - first[0]) / (last[1] - first[1]), first[1])


def run_sb3(env_id: str, total: int, seed: int) -> None:
    """The peer: DummyVecEnv, VecNormalize, one torch thread, the same hyperparameters."""
    from stable_baselines3 import PPO

    class Timed(PPO):
        """PPO that notes the time at the end of every iteration, learning included."""

        def train(self) -> None:
            super().train()
            clock.append((self.num_timesteps, time.monotonic() - started))

    clock: list[tuple[int, float]] = []
    model = sb3_ppo(env_id, seed=seed, base=Timed)
    started = time.monotonic()
    model.learn(total)
    print(json.dumps(clock))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", choices=sorted(ENV_CONFIGS), dest="envs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=204_800, help="env steps of each training")
    parser.add_argument("--warmup", type=int, default=8_192, help="env steps left out")
    parser.add_argument("--sb3", nargs=3, metavar=("ENV", "STEPS", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sb3:
        env_id, total, seed = arguments.sb3
        run_sb3(env_id, int(total), int(seed))
        return
    if not 0 < arguments.warmup < arguments.steps:
        parser.error("--warmup must lie between 0 and --steps")
    print(f"{N_ENVS} envs x {N_STEPS} steps, batch 64, 10 epochs, {os.cpu_count()} cores")
    for env_id in arguments.envs or ["HalfCheetah-v5", "Hopper-v5"]:
        compare(env_id, arguments.repeats, arguments.steps, arguments.warmup)


def compare(env_id: str, repeats: int, total: int, warmup: int) -> None:
    """Train both alternately; print each pair and the medians."""
    ratios: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for repeat in range(repeats):
        this = measure_ours(env_id, total=total, warmup=warmup, seed=repeat)
        peer = measure_sb3(env_id, total=total, warmup=warmup, seed=repeat)
        ours.append(this.steps_per_second)
        theirs.append(peer.steps_per_second)
        ratios.append(ours[-1] / theirs[-1])
        print(
            f"{env_id} repeat {repeat + 1}: this project {ours[-1]:,.0f} env steps/s, Stable-"
            f"Baselines3 {theirs[-1]:,.0f}, ratio {ratios[-1]:.2f} (warm-up left out:"
            f" {this.warmup_seconds:.1f} s and {peer.warmup_seconds:.1f} s)",
            flush=True,
        )
    print(
        f"{env_id} median: this project {statistics.median(ours):,.0f}, Stable-Baselines3"
        f" {statistics.median(theirs):,.0f}, ratio {statistics.median(ratios):.2f}"
        f" (from {min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
