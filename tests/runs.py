"""Small runs of the whole trainer, and what they leave behind."""

import contextlib
import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ppo.cli import main
from ppo.config import Config, from_mapping
from tests.toys import Echo, Toy

ROOT = Path(__file__).parent.parent


class Halting(Echo):
    """Echo that sends its own process `how` at its vector step `at`, counted over episodes."""

    def __init__(self, how: str, at: int, length: int = 16) -> None:
        super().__init__("box", length)
        self.how, self.at, self.n_steps = how, at, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.n_steps += 1
        if self.n_steps == self.at:
            os.kill(os.getpid(), signal.Signals[self.how])
        return super().step(action)


class Uneven(Toy):
    """Every episode is as long as the seed says, and pays 1 a step."""

    def ends(self) -> tuple[bool, bool]:
        return (self.t >= (self.seed or 1), False)


gymnasium.register("Halting-v0", entry_point=f"{__name__}:Halting")
gymnasium.register("Uneven-v0", entry_point=f"{__name__}:Uneven")


def mapping(tmp_path: Path, toy: str = "Echo", **env: Any) -> dict[str, Any]:
    """Two environments, 16 steps each: a rollout is 32 env steps, and Echo's episodes fit it."""
    kwargs = {"action": "box", "length": 16} if toy == "Echo" else {}
    return {
        "runs_dir": str(tmp_path / "runs"),
        "compile": "off",
        "env": {
            "id": toy if "-v" in toy else f"tests.toys:{toy}-v0",
            "n_envs": 2,
            "kwargs": kwargs,
            **env,
        },
        "policy": {"hidden_sizes": [8]},
        "ppo": {"total_timesteps": 64, "n_steps": 16, "batch_size": 16, "n_epochs": 2},
        "eval": {"episodes": 2, "max_episode_steps": 50},
        "logging": {"progress": "off", "tensorboard": False},
    }


def config(tmp_path: Path, toy: str = "Echo", *overrides: str, **env: Any) -> Config:
    return from_mapping(mapping(tmp_path, toy, **env), source="test", overrides=overrides)


def config_file(tmp_path: Path, toy: str = "Echo", *overrides: str, **env: Any) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(config(tmp_path, toy, *overrides, **env).to_yaml())
    return path


def rows(run_dir: Path, name: str = "progress.csv") -> list[dict[str, str]]:
    with (run_dir / name).open(newline="") as file:
        return list(csv.DictReader(file))


def column(run_dir: Path, tag: str) -> list[float]:
    """The values of one column of progress.csv, empty cells left out."""
    return [float(row[tag]) for row in rows(run_dir) if row[tag]]


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows, by tag: (env step, value)."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def files(run_dir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in run_dir.rglob("*")
        if path.is_file()
    }


def only_run(tmp_path: Path) -> Path:
    (run_dir,) = (tmp_path / "runs").iterdir()
    return run_dir


def checkpoint(run_dir: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(run_dir / "checkpoints" / f"{name}.pt", weights_only=True)


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two checkpoints differ in a bit."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return [
            found
            for key in left
            for found in differences(left[key], right[key], f"{path}.{key}".lstrip("."))
        ]
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same = left.dtype == right.dtype and torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        same = np.array_equal(left, right)
    else:
        same = left == right
    return [] if same else [path]


@dataclass(frozen=True)
class Finished:
    """What a command left: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line of stderr."""
        assert self.err.startswith("ppo: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert "unexpected" not in self.err, self.err
        return self.err.strip()


def command(*arguments: Any) -> Finished:
    """A command in this process; never ends it."""
    out, err = io.StringIO(), io.StringIO()
    status: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ending:
            status = ending.code
    return Finished(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def start(*arguments: Any, cwd: Path, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """The real command in a process and a process group of its own; killed if it is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ppo", *(str(argument) for argument in arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"},
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> set[int]:
    """Processes whose parent is `pid`, from Linux's /proc."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program, in brackets, may hold blanks.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found.add(int(stat.parent.name))
    return found


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}
