"""Finished runs in folders, each as a handful of numbers; and those that are not finished."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppo.config import Config, load_config
from ppo.critic import WINDOW, judge
from ppo.csvlog import Row, number_in, read_table
from ppo.errors import UserError
from ppo.logger import EPISODES_FILE, PROGRESS_FILE, critic_readings
from ppo.plan import Plan
from ppo.rundir import RunDirectory
from ppo.sweep.flat import flat

BINS = 50  # of a learning curve: 2% of the budget each
LAST = 0.1  # share of training that a final return is taken over

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a report needs of a finished run.

    Attributes:
        path: its folder.
        task: the environment's id.
        seed: of the run.
        settings: dotted keys and values that say what was run, without seed and folder.
        env_steps: done.
        curve: mean episode return in each of `BINS` equal parts of training; a part in which no
            episode ended repeats the one before it, [BINS].
        final_return: mean of the training episodes (stochastic policy) that ended in the last
            tenth of training.
        evaluation: mean return of the evaluation at the end.
        area: under the curve, divided by the budget: a mean return.
        explained_variance: against the lambda targets, median of the last 20 iterations.
        explained_variance_mc: against the lambda = 1 returns, likewise; NaN where none.
        bootstrap_weight: of those returns, likewise.
        critic: the verdict on it.
        terminated: share of the episodes of the last tenth; the others hit a time limit.
        episodes: of the last tenth.
        steps_per_s: env steps per second of wall time.
    """

    path: Path
    task: str
    seed: int
    settings: Mapping[str, Any]
    env_steps: int
    curve: Array
    final_return: float
    evaluation: float
    area: float
    explained_variance: float
    explained_variance_mc: float
    bootstrap_weight: float
    critic: str
    terminated: float
    episodes: int
    steps_per_s: float


@dataclass(frozen=True)
class Collected:
    """What folders hold.

    Attributes:
        runs: finished ones, in the order of their folders.
        left_out: folders that are not used, each with the reason.
    """

    runs: tuple[RunRecord, ...]
    left_out: Mapping[Path, str]


def collect(folders: Sequence[Path]) -> Collected:
    """Read every run in folders and their subfolders; nothing is changed.

    Raises:
        UserError: if a folder is not there, or none holds a finished run.
    """
    runs: dict[tuple[object, ...], RunRecord] = {}
    left_out: dict[Path, str] = {}
    for path in dict.fromkeys(path for folder in folders for path in _runs_below(folder)):
        try:
            record = read_run(path)
        except UserError as error:
            left_out[path] = str(error).removeprefix(f"{path}: ")
            continue
        same = (record.task, record.seed, repr(sorted(record.settings.items())))
        if same in runs:
            left_out[runs[same].path] = f"the same settings and seed as the later {path.name}"
        runs[same] = record
    if not runs:
        where = ", ".join(str(folder) for folder in folders)
        if not left_out:
            raise UserError(f"{where}: no run here (a run has a config.yaml and checkpoints)")
        first, reason = next(iter(left_out.items()))
        raise UserError(
            f"{where}: no finished run here; of {len(left_out)} that are not, the first is"
            f" {first}: {reason}"
        )
    return Collected(tuple(runs.values()), left_out)


def read_run(path: Path) -> RunRecord:
    """One finished run.

    Raises:
        UserError: if it is not finished, or cannot be read.
    """
    config = load_config(path / "config.yaml")
    total = Plan.of(config).env_steps
    progress = read_table(path / PROGRESS_FILE).rows
    evaluation = RunDirectory(path).read_evaluation() or {}
    done = int(progress[-1]["env_steps"]) if progress else 0
    if evaluation.get("env_steps") != total:
        raise UserError(
            f"{path}: not finished, {done:,} of {total:,} env steps; go on with: ppo resume {path}"
        )
    mean = evaluation.get("mean")
    if not isinstance(mean, float) or done != total:
        raise UserError(f"{path}: evaluation.json and progress.csv are of two runs, or damaged")
    steps, returns, terminated = _episodes(path)
    late = steps > (1.0 - LAST) * total
    if not late.any():
        raise UserError(
            f"{path}: no episode ended in the last tenth of training, so it has no final return;"
            " a larger ppo.total_timesteps gives one"
        )
    curve = _curve(steps, returns, total)
    readings = critic_readings(progress)
    verdict = judge(readings)
    return RunRecord(
        path=path,
        task=config.env.id,
        seed=config.seed,
        settings=_settings(config),
        env_steps=total,
        curve=curve,
        final_return=float(returns[late].mean()),
        evaluation=mean,
        area=float(curve.mean()),
        explained_variance=_recent(progress, "train/explained_variance"),
        explained_variance_mc=_or_nan(verdict.explained_variance),
        bootstrap_weight=_or_nan(verdict.bootstrap_weight),
        critic=verdict.kind,
        terminated=float(terminated[late].mean()),
        episodes=int(late.sum()),
        steps_per_s=number_in(progress[-1].get("time/fps")),
    )


def _runs_below(folder: Path) -> Iterator[Path]:
    """Folders of runs, in the order of their names."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    for file in sorted(folder.rglob("config.yaml")):
        if (file.parent / "checkpoints").is_dir():
            yield file.parent


# How a run is named, shown and saved changes nothing of what it does.
_FREE = ("seed", "name", "runs_dir", "logging", "checkpoint")


def _settings(config: Config) -> dict[str, Any]:
    return {k: v for k, v in flat(config).items() if k.partition(".")[0] not in _FREE}


def _episodes(path: Path) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Env step at the end, return, and whether it terminated, of every training episode."""
    rows = read_table(path / EPISODES_FILE).rows
    steps = np.array([int(row["env_steps"]) for row in rows], dtype=np.float64)
    returns = np.array([number_in(row.get("return")) for row in rows], dtype=np.float64)
    terminated = np.array([row.get("ended") == "terminated" for row in rows], dtype=np.bool_)
    if not np.isfinite(returns).all():
        raise UserError(f"{path}: {EPISODES_FILE} has returns that are no numbers")
    return steps, returns, terminated


def _curve(steps: Array, returns: Array, total: int) -> Array:
    bins = np.minimum((steps - 1) * BINS // total, BINS - 1).astype(np.int64)
    counts = np.bincount(bins, minlength=BINS)
    sums = np.bincount(bins, weights=returns, minlength=BINS)
    filled = np.flatnonzero(counts)
    # Before the first end of an episode there is nothing to repeat but the first one.
    source = filled[np.maximum(np.searchsorted(filled, np.arange(BINS), side="right") - 1, 0)]
    curve: Array = sums[source] / counts[source]
    return curve


def _recent(progress: Sequence[Row], tag: str) -> float:
    values = [float(row[tag]) for row in progress[-WINDOW:] if tag in row]
    return float(np.median(values)) if values else math.nan


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
