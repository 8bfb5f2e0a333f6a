"""Train over seeds and compare returns with Stable-Baselines3's at the same env steps.

The statistic is the mean return of the last 100 training episodes, raw rewards, stochastic policy
(`rollout/ep_rew_mean`). `docs/data/sb3_returns.csv` holds Stable-Baselines3 2.9.2 with MlpPolicy's
defaults and VecNormalize (gamma 0.99): DummyVecEnv of 8 x 256 steps, batch 64, 10 epochs, constant
learning rate 3e-4, one torch thread, Gymnasium 1.4, MuJoCo 4.0, torch 2.13; seeds 0 to 4.

    python scripts/compare_returns.py --env HalfCheetah-v5 --env Hopper-v5
"""

import argparse
import csv
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "data" / "sb3_returns.csv"
CONFIGS = {"HalfCheetah-v5": "halfcheetah", "Hopper-v5": "hopper", "Walker2d-v5": "walker2d"}
RESAMPLES = 20_000


def reference(env_id: str, env_steps: int) -> list[float]:
    """Stable-Baselines3's returns, a number a seed."""
    with REFERENCE.open(encoding="utf-8") as stream:
        rows = [
            row
            for row in csv.DictReader(stream)
            if row["env"] == env_id and int(row["env_steps"]) == env_steps
        ]
    if not rows:
        sys.exit(f"{REFERENCE} has nothing for {env_id} at {env_steps} env steps")
    return [float(row["ep_rew_mean"]) for row in rows]


def train(env_id: str, seed: int, env_steps: int, runs_dir: Path, extra: list[str]) -> float:
    """One run of `ppo train`; its mean return of the last 100 episodes."""
    folder = runs_dir / f"{env_id}-{seed}"
    subprocess.run(
        [
            *(sys.executable, "-m", "ppo", "train"),
            str(ROOT / "configs" / f"{CONFIGS[env_id]}.yaml"),
            *("--ppo.total_timesteps", str(env_steps), "--seed", str(seed)),
            *("--runs_dir", str(folder), "--eval.every", "0", "--logging.progress", "off"),
            *extra,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
    )
    newest = max(folder.glob("*/progress.csv"), key=lambda file: file.stat().st_mtime_ns)
    with newest.open(encoding="utf-8") as stream:
        last = list(csv.DictReader(stream))[-1]
    print(f"{env_id} seed {seed}: {float(last['rollout/ep_rew_mean']):.1f}", flush=True)
    return float(last["rollout/ep_rew_mean"])


def difference_interval(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """95% bootstrap interval (percentile) of mean(ours) - mean(theirs)."""
    result = stats.bootstrap(
        (np.array(ours), np.array(theirs)),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", choices=sorted(CONFIGS), dest="envs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=204_800, help="a multiple of 20,480")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs" / "compare")
    arguments, extra = parser.parse_known_args()
    table = []
    for env_id in arguments.envs or ["HalfCheetah-v5", "Hopper-v5"]:
        theirs = reference(env_id, arguments.steps)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = [
                pool.submit(train, env_id, seed, arguments.steps, arguments.runs_dir, extra)
                for seed in range(arguments.seeds)
            ]
            ours = [run.result() for run in runs]
        low, high = difference_interval(ours, theirs)
        table.append(
            f"| {env_id} | {np.mean(ours):.0f} ± {np.std(ours, ddof=1):.0f} |"
            f" {np.mean(theirs):.0f} ± {np.std(theirs, ddof=1):.0f} |"
            f" {np.mean(ours) - np.mean(theirs):+.0f} [{low:+.0f}, {high:+.0f}] |"
        )
    print(f"\nMean return of the last 100 training episodes at {arguments.steps:,} env steps,")
    print(f"mean ± std over {arguments.seeds} seeds; difference with its 95% bootstrap interval.\n")
    print("| env | this project | Stable-Baselines3 | difference |")
    print("|---|---|---|---|")
    print("\n".join(table))


if __name__ == "__main__":
    main()
