"""Train with the contract broken on purpose, one way at a time, and measure what it does.

The loss looks normal in all of these. For every fault one metric was fixed here before any run, and
the verdict is whether its 95% interval over the seeds (Student's t) lies apart from that of the
correct runs. Runs are kept in `docs/data/silent_bugs.csv` and their curves beside it: a stopped
laboratory goes on where it stood. `docs/silent_bugs.md` and its pictures are written at the end.

    python scripts/silent_bugs.py             # everything, an hour on two cores
    python scripts/silent_bugs.py --report    # the report alone, from the kept runs
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

import numpy as np
import silent_bugs_report
import torch

from ppo.agent import Agent
from ppo.config import Config, load_config
from ppo.diagnose import broken
from ppo.diagnose.value_error import value_error
from ppo.estimation import Estimate, critic_metrics
from ppo.losses import explained_variance
from ppo.rollout import Rollout
from ppo.train import train

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "docs" / "data" / "silent_bugs.csv"
CURVES = ROOT / "docs" / "data" / "silent_bugs_curves.csv"
KEY = ("task", "fault", "seed")
LAST = 0.25  # share of the training over which what an iteration measures is averaged


@dataclass(frozen=True)
class Task:
    """Where the faults are tried."""

    config: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """One way to break it.

    Attributes:
        estimator: does it.
        overrides: what else it takes, of keys that anybody may set.
    """

    estimator: broken.BrokenEstimator
    overrides: tuple[str, ...] = ()


BUDGET = "ppo.total_timesteps=102_400"
TASKS = {
    "Pendulum-v1, 200 steps": Task("pendulum", (BUDGET,)),
    "Reacher-v5, 50 steps": Task("reacher", (BUDGET,)),
    "HalfCheetah-v5, 100 steps": Task("halfcheetah", (BUDGET, "env.max_episode_steps=100")),
    "HalfCheetah-v5, 1000 steps": Task("halfcheetah", ("ppo.total_timesteps=204_800",)),
}
FAULTS = {
    "correct": Fault(broken.correct),
    "time limit treated as termination": Fault(broken.truncation_as_termination),
    "chain leaks across resets": Fault(broken.chain_leaks),
    "bootstrap from the reset observation": Fault(broken.reset_bootstrap),
    "bootstrap from V(s_t)": Fault(broken.current_bootstrap),
    "only the advantage bootstraps": Fault(broken.target_without_bootstrap),
    "only the target bootstraps": Fault(broken.advantage_without_bootstrap),
    "advantages normalised over the rollout": Fault(
        broken.correct, ("ppo.normalize_advantage=rollout",)
    ),
    "reset rows trained on": Fault(broken.phantom_rows, ("env.autoreset=next_step",)),
    "last observation not normalised": Fault(broken.raw_last_observation),
}
REPAIRED = "repaired half-way"
# The fault whose explained variance suffers most where its trainer looks at it itself.
BROKEN_BEFORE_REPAIR = "bootstrap from the reset observation"
METRICS = {
    "time limit treated as termination": "value_bias",
    "chain leaks across resets": "value_error",
    "bootstrap from the reset observation": "value_bias",
    "bootstrap from V(s_t)": "value_bias",
    "only the advantage bootstraps": "mean_advantage",
    "only the target bootstraps": "mean_advantage",
    "advantages normalised over the rollout": "return",
    "reset rows trained on": "value_bias",
    "last observation not normalised": "value_bias",
    REPAIRED: "explained_variance_mc",
}


class Recorder:
    """An estimator that may be broken, and what it and the contract make of the same rows.

    Args:
        config: of the run.
        fault: what to train with.
        repaired_at: env steps from which the contract holds again; None is never.
    """

    def __init__(self, config: Config, fault: Fault, *, repaired_at: int | None = None) -> None:
        self._discount = broken.Discount(config.ppo.gamma, config.ppo.gae_lambda)
        self._fault, self._repaired_at = fault, repaired_at
        self.rows: list[dict[str, float]] = []
        self.env_steps = 0

    def __call__(self, agent: Agent, rollout: Rollout) -> Estimate:
        """As `ppo.estimation.estimate`, broken."""
        repaired = self._repaired_at is not None and self.env_steps >= self._repaired_at
        estimator = broken.correct if repaired else self._fault.estimator
        trained, right = estimator(agent, rollout, self._discount), self._discount.of(rollout)
        self.env_steps += rollout.n_valid
        valid = rollout.valid
        advantages = trained.advantages[trained.rollout.valid]
        shown = critic_metrics(trained, gamma=self._discount.gamma)
        self.rows.append(
            {
                "env_steps": self.env_steps,
                "explained_variance": shown["train/explained_variance"],
                "explained_variance_mc": shown["train/explained_variance_mc"],
                "explained_variance_true": explained_variance(
                    rollout.values[valid], right.full_returns[valid]
                ),
                "mean_advantage": float(advantages.mean() / (advantages.std() + 1e-8)),
            }
        )
        return trained


def run_one(task: str, fault: str, seed: int, runs_dir: str) -> None:
    """One training; prints its metrics and its curve as JSON."""
    setting = TASKS[task]
    how = FAULTS[BROKEN_BEFORE_REPAIR if fault == REPAIRED else fault]
    quiet = ("eval.every=0", "eval.episodes=8", "logging.progress=off", "critic.gate=off")
    config = load_config(
        ROOT / "configs" / f"{setting.config}.yaml",
        (*setting.overrides, *how.overrides, *quiet, f"seed={seed}", f"runs_dir={runs_dir}"),
    )
    total = config.ppo.total_timesteps
    recorder = Recorder(config, how, repaired_at=total // 2 if fault == REPAIRED else None)
    result = train(config, estimator=recorder)
    last = [row for row in recorder.rows if row["env_steps"] > (1.0 - LAST) * total]
    bias, error = value_error(result.agent, config, seed=seed)
    with (result.run_dir / "episodes.csv").open(encoding="utf-8") as stream:
        episodes = [(int(row["env_steps"]), float(row["return"])) for row in csv.DictReader(stream)]
    metrics = {
        "return": float(np.mean([one for at, one in episodes if at > 0.9 * total])),
        "value_bias": bias,
        "value_error": error,
        **{
            name: float(np.nanmean([row[name] for row in last]))
            for name in recorder.rows[0]
            if name != "env_steps"
        },
    }
    returns = np.array([one for _, one in episodes])
    at = np.array([at for at, _ in episodes])
    for row in recorder.rows:
        recent = returns[(at <= row["env_steps"]) & (at > row["env_steps"] - 0.1 * total)]
        row["return"] = float(recent.mean()) if len(recent) else float("nan")
    print(json.dumps({"metrics": metrics, "curve": recorder.rows}))


def run_all(keys: list[tuple[str, str, int]], *, jobs: int) -> None:
    """Runs side by side, each on a core of its own; each is kept as it ends."""
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)
    keeping, done = Lock(), 0

    def one(key: tuple[str, str, int]) -> None:
        nonlocal done
        core = cores.get()
        try:
            with tempfile.TemporaryDirectory() as runs_dir:
                command = [sys.executable, __file__, "--one", key[0], key[1], str(key[2]), runs_dir]
                output = subprocess.run(
                    command,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                    preexec_fn=lambda: os.sched_setaffinity(0, {core}),
                ).stdout
        finally:
            cores.put(core)
        result = json.loads(output.splitlines()[-1])
        with keeping:
            named = dict(zip(KEY, key, strict=True))
            append(CURVES, [{**named, **row} for row in result["curve"]])
            append(RUNS, [{**named, **result["metrics"]}])
            done += 1
            print(f"{done} of {len(keys)}: {key[0]}, {key[1]}, seed {key[2]}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, keys))


def append(path: Path, rows: list[dict[str, object]]) -> None:
    """Add rows to a CSV file, which is made with its header where it is not there."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows([{name: _short(value) for name, value in row.items()} for row in rows])


def _short(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value


def kept() -> set[tuple[str, str, int]]:
    """The runs that there are already."""
    if not RUNS.exists():
        return set()
    with RUNS.open(encoding="utf-8") as stream:
        return {(row["task"], row["fault"], int(row["seed"])) for row in csv.DictReader(stream)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--task", action="append", choices=TASKS, dest="tasks")
    parser.add_argument("--fault", action="append", choices=METRICS, dest="faults")
    parser.add_argument("--report", action="store_true", help="write the report alone")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        torch.set_num_threads(1)
        task, fault, seed, runs_dir = arguments.one
        run_one(task, fault, int(seed), runs_dir)
        return
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no interval")
    if not arguments.report:
        faults = ["correct", *(arguments.faults or METRICS)]
        wanted = [
            (task, fault, seed)
            for seed in range(arguments.seeds)
            for task in arguments.tasks or TASKS
            for fault in faults
        ]
        there = kept()
        run_all([key for key in wanted if key not in there], jobs=arguments.jobs)
    silent_bugs_report.write(RUNS, CURVES, METRICS, tasks=list(TASKS))


if __name__ == "__main__":
    main()
