"""Train over seeds and compare returns with Stable-Baselines3's at the same env steps.

The statistic is the mean return of the last 100 training episodes, raw rewards, stochastic policy
(`rollout/ep_rew_mean`). `docs/data/sb3_returns.csv` holds Stable-Baselines3 2.9.2 with MlpPolicy's
defaults and VecNormalize (gamma 0.99): DummyVecEnv of 8 x 256 steps, batch 64, 10 epochs, constant
learning rate 3e-4, one torch thread, Gymnasium 1.4, MuJoCo 4.0, torch 2.13. A seed that it lacks is
trained and added. What this project reached is kept in `docs/data/ppo_returns.csv`.

    python scripts/compare_returns.py --env HalfCheetah-v5 --env Hopper-v5 --seeds 30
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
from peers import sb3_ppo
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
THEIRS = ROOT / "docs" / "data" / "sb3_returns.csv"
OURS = ROOT / "docs" / "data" / "ppo_returns.csv"
CONFIGS = {"HalfCheetah-v5": "halfcheetah", "Hopper-v5": "hopper", "Walker2d-v5": "walker2d"}
COLUMNS = ("env", "seed", "env_steps", "ep_rew_mean")
RESAMPLES = 20_000

Key = tuple[str, int, int]  # env, seed, env steps
Returns = dict[Key, float]


def read(path: Path) -> Returns:
    """Returns by env, seed and env steps; none where there is no file yet."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as stream:
        return {
            (row["env"], int(row["seed"]), int(row["env_steps"])): float(row["ep_rew_mean"])
            for row in csv.DictReader(stream)
        }


def write(path: Path, returns: Returns) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*key, round(value, 1)) for key, value in sorted(returns.items()))


def train_ours(
    env_id: str, seed: int, env_steps: int, *, runs_dir: Path, extra: Sequence[str]
) -> float:
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
    return float(last["rollout/ep_rew_mean"])


def train_theirs(env_id: str, seed: int, env_steps: int) -> float:
    """Stable-Baselines3 in a fresh process."""
    command = [sys.executable, __file__, "--sb3", env_id, str(seed), str(env_steps)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return float(json.loads(output.splitlines()[-1]))


def run_sb3(env_id: str, seed: int, env_steps: int) -> None:
    model = sb3_ppo(env_id, seed=seed)
    model.learn(env_steps)
    print(json.dumps(float(np.mean([episode["r"] for episode in model.ep_info_buffer]))))


def train_all(
    keys: Sequence[Key], train: Callable[[str, int, int], float], *, jobs: int, path: Path
) -> None:
    """Several runs side by side; each is printed and kept as it ends."""
    keeping = Lock()

    def one(key: Key) -> None:
        reached = train(*key)
        with keeping:
            write(path, read(path) | {key: reached})
            print(f"{path.stem}: {key[0]} seed {key[1]}: {reached:.1f}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, keys))


def difference_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """95% bootstrap interval (percentile) of mean(ours) - mean(theirs)."""
    result = stats.bootstrap(
        (np.array(ours), np.array(theirs)),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def compare(env_id: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """A row of the table."""
    low, high = difference_interval(ours, theirs)
    return (
        f"| {env_id} | {np.mean(ours):.0f} ± {np.std(ours, ddof=1):.0f} |"
        f" {np.mean(theirs):.0f} ± {np.std(theirs, ddof=1):.0f} |"
        f" {np.mean(ours) - np.mean(theirs):+.0f} [{low:+.0f}, {high:+.0f}] |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", choices=sorted(CONFIGS), dest="envs")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this, on both sides")
    parser.add_argument("--steps", type=int, default=204_800, help="env steps of each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs" / "compare")
    parser.add_argument("--sb3", nargs=3, metavar=("ENV", "SEED", "STEPS"), help=argparse.SUPPRESS)
    arguments, extra = parser.parse_known_args()
    if arguments.sb3:
        env_id, seed, steps = arguments.sb3
        run_sb3(env_id, int(seed), int(steps))
        return
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no spread")
    table = []
    for env_id in arguments.envs or ["HalfCheetah-v5", "Hopper-v5"]:
        keys = [(env_id, seed, arguments.steps) for seed in range(arguments.seeds)]

        def train(env_id: str, seed: int, env_steps: int) -> float:
            return train_ours(env_id, seed, env_steps, runs_dir=arguments.runs_dir, extra=extra)

        lacking = [key for key in keys if key not in read(THEIRS)]
        train_all(lacking, train_theirs, jobs=arguments.jobs, path=THEIRS)
        train_all(keys, train, jobs=arguments.jobs, path=OURS)
        ours, theirs = read(OURS), read(THEIRS)
        table.append(compare(env_id, [ours[key] for key in keys], [theirs[key] for key in keys]))
    print(f"\nMean return of the last 100 training episodes at {arguments.steps:,} env steps,")
    print(f"mean ± std over {arguments.seeds} seeds; difference with its 95% bootstrap interval.\n")
    print("| env | this project | Stable-Baselines3 | difference |")
    print("|---|---|---|---|")
    print("\n".join(table))


if __name__ == "__main__":
    main()
