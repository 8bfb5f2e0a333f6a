"""The runs of a sweep: which are finished, which go on, which are to be started."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ppo.config import Config, load_config
from ppo.config_errors import show
from ppo.csvlog import Row, read_table
from ppo.errors import ConfigError, UserError
from ppo.logger import PROGRESS_FILE
from ppo.plan import Plan
from ppo.rundir import RunDirectory
from ppo.sweep.flat import flat
from ppo.sweep.spec import Cell, Sweep

State = Literal["new", "unfinished", "finished"]

# How a run is shown and where it lies changes nothing of what it is.
_FREE = ("name", "runs_dir", "logging")


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a sweep.

    Attributes:
        cell: that it belongs to.
        seed: of the run.
        folder: its own; the run's folder is made in it.
    """

    cell: Cell
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.cell.label}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the run prints."""
        return self.folder / "log.txt"

    @property
    def config_file(self) -> Path:
        """The cell's configuration, which the run is started with."""
        return self.folder / "config.yaml"

    @cached_property
    def config(self) -> Config:
        """Of this run."""
        own = {"seed": self.seed, "runs_dir": str(self.folder)}
        return self.cell.config.model_copy(update=own)

    @property
    def env_steps(self) -> int:
        """At the end of the run."""
        return Plan.of(self.config).env_steps

    @property
    def env_steps_left(self) -> int:
        """To the end of the run."""
        return self.env_steps - int(self.progress().get("env_steps", 0))

    def run(self) -> RunDirectory | None:
        """The run that there is already; None where there is none that can go on."""
        return next(_runs_in(self.folder), None)

    def state(self) -> State:
        """Where the run stands."""
        run = self.run()
        if run is None:
            return "new"
        evaluation = run.read_evaluation() or {}
        return "finished" if evaluation.get("env_steps") == self.env_steps else "unfinished"

    def check(self) -> None:
        """Refuse to go on with a run that was started with other settings.

        Raises:
            ConfigError: naming the key, and both values.
        """
        run = self.run()
        if run is None:
            return
        there, wanted = flat(load_config(run.config_file)), flat(self.config)
        for key, value in wanted.items():
            if there.get(key) != value and key.partition(".")[0] not in _FREE:
                raise ConfigError(
                    f"{run.path}: {key} is {show(there.get(key))} in this run of an earlier sweep,"
                    f" and would be {show(value)} now; give the sweep another name, or move the"
                    " folder away"
                )

    def arguments(self) -> list[str]:
        """Of the command that starts the run, or goes on with it."""
        run = self.run()
        if run is not None:
            return ["resume", str(run.path)]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(self.config.to_yaml(), encoding="utf-8")
        return ["train", str(self.config_file)]

    def progress(self) -> Row:
        """What the run logged last; empty before the first iteration."""
        run = self.run()
        rows = [] if run is None else read_table(run.path / PROGRESS_FILE).rows
        return rows[-1] if rows else {}

    def busy(self) -> bool:
        """A process is training it, such as one that a killed sweep left to save itself."""
        run = self.run()
        if run is None:
            return False
        try:
            with run.lock():
                return False
        except UserError:
            return True

    def reason(self) -> str:
        """Why it failed: the last thing that it said."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line for line in lines if line.strip()]
        own = [line.removeprefix("ppo: ") for line in said if line.startswith("ppo: ")]
        return (own or said or ["it said nothing"])[-1]


def jobs_of(sweep: Sweep) -> list[Job]:
    """Every run, the first seed of all cells first: a partial sweep compares all of them."""
    return [
        Job(cell, seed, sweep.folder / "runs" / cell.folder / f"seed_{seed}")
        for seed in sweep.seeds
        for cell in sweep.cells
    ]


def _runs_in(folder: Path) -> Iterator[RunDirectory]:
    """Runs with a checkpoint: one that was killed before its first has nothing to go on from."""
    for file in sorted(folder.glob("*/config.yaml")):
        run = RunDirectory(file.parent)
        try:
            run.checkpoint("last")
        except UserError:
            continue
        yield run
