"""How long runs will take: a few iterations of each kind are tried on this machine."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ppo.config import Config
from ppo.csvlog import read_table
from ppo.logger import PROGRESS_FILE
from ppo.plan import Plan
from ppo.sweep.engine import Engine
from ppo.sweep.jobs import Job

_ITERATIONS = 6
_START_UP = 4.0  # seconds of a process before its first env step and after its last
# What a run's speed goes by; its seed, discounts and budget are not among it.
_PACE = ("n_steps", "n_epochs", "batch_size", "target_kl")


def seconds_for(jobs: Sequence[Job], engine: Engine) -> float | None:
    """All of them will take about so long; None where a trial failed."""
    first_of: dict[str, Job] = {}
    for job in jobs:
        first_of.setdefault(_kind(job.config), job)
    rates = {kind: _rate(job, engine) for kind, job in first_of.items()}
    alone = []
    for job in jobs:
        rate = rates[_kind(job.config)]
        if rate is None:
            return None
        alone.append(_START_UP + job.env_steps_left / rate)
    return max([sum(alone) / engine.slots, *alone], default=0.0)


def _kind(config: Config) -> str:
    mapping = config.to_mapping()
    pace = {key: mapping["ppo"][key] for key in _PACE}
    return json.dumps([mapping["env"], mapping["policy"], mapping["critic"], pace], sort_keys=True)


def _rate(job: Job, engine: Engine) -> float | None:
    """Env steps per second of such a run on one core, after its first iterations."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trial.yaml"
        file.write_text(_trial(job.config, folder).to_yaml(), encoding="utf-8")
        engine.start(["train", str(file)], Path(folder) / "log.txt").wait()
        rows = [row for f in Path(folder).glob(f"*/{PROGRESS_FILE}") for row in read_table(f).rows]
    points = [
        (int(row["env_steps"]), float(row["time/time_elapsed"]))
        for row in rows
        if "time/time_elapsed" in row
    ]
    if len(points) < 3:
        return None
    (first, begun), (last, end) = points[1], points[-1]
    return (last - first) / (end - begun) if end > begun else None


def _trial(config: Config, folder: str) -> Config:
    """The same run with hardly any budget and evaluation."""
    total = _ITERATIONS * Plan.of(config).rollout
    no_evaluation = {"every": 0, "episodes": 1, "n_envs": 1, "max_episode_steps": 1}
    return config.model_copy(
        update={
            "runs_dir": folder,
            "ppo": config.ppo.model_copy(update={"total_timesteps": total}),
            # So short a run would not be compiled; the long one is.
            "compile": "on" if config.compile == "auto" else config.compile,
            "eval": config.eval.model_copy(update=no_evaluation),
            "critic": config.critic.model_copy(update={"warmup_iterations": 0}),
        }
    )
