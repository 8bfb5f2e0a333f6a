"""A sweep from its file to the end of its last run."""

from dataclasses import dataclass

from ppo.dashboard import duration
from ppo.interrupts import Interrupted, StopSignals
from ppo.plan import Plan
from ppo.rundir import RunDirectory
from ppo.sweep.engine import Engine, LocalEngine
from ppo.sweep.jobs import Job, jobs_of
from ppo.sweep.live import SweepView
from ppo.sweep.schedule import run_jobs
from ppo.sweep.spec import Sweep
from ppo.sweep.trial import seconds_for


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will do.

    Attributes:
        sweep: the file.
        jobs: every run.
        left: those that are not finished.
        slots: runs side by side.
        seconds: that it will take, by a trial on this machine; None where the trial failed.
    """

    sweep: Sweep
    jobs: tuple[Job, ...]
    left: tuple[Job, ...]
    slots: int
    seconds: float | None

    @property
    def env_steps_left(self) -> int:
        """Of all runs together."""
        return sum(job.env_steps_left for job in self.left)

    def describe(self) -> str:
        """For a person, before anything starts."""
        cells, seeds = self.sweep.cells, self.sweep.seeds
        width = max(len(cell.label) for cell in cells)
        lines = [f"sweep {self.sweep.name}: {self.sweep.folder}"]
        lines += [
            f"  {cell.label:<{width}}  {len(seeds)} x {Plan.of(cell.config).env_steps:,} env steps"
            for cell in cells
        ]
        done = len(self.jobs) - len(self.left)
        about = "unknown" if self.seconds is None else f"about {duration(self.seconds)}"
        lines.append(
            f"{len(cells)} cells x {len(seeds)} seeds = {len(self.jobs)} runs"
            f"{f', {done} of them finished' if done else ''}; {self.env_steps_left:,} env steps to"
            f" do, {self.slots} runs at a time; time: {about}"
        )
        return "\n".join(lines)

    def record(self) -> dict[str, object]:
        """The same for a program."""
        return {
            "name": self.sweep.name,
            "folder": str(self.sweep.folder),
            "cells": [cell.label for cell in self.sweep.cells],
            "seeds": list(self.sweep.seeds),
            "runs": len(self.jobs),
            "finished": len(self.jobs) - len(self.left),
            "env_steps_left": self.env_steps_left,
            "workers": self.slots,
            "seconds": self.seconds,
        }


def plan_sweep(sweep: Sweep, *, workers: int | None = None) -> SweepPlan:
    """Work out what there is to do; nothing is started but a trial of a few iterations.

    Args:
        sweep: what is asked for.
        workers: runs side by side, in the place of the sweep's own.

    Raises:
        UserError: if the sweep's folder holds runs of another sweep.
    """
    jobs = jobs_of(sweep)
    for job in jobs:
        job.check()
    left = tuple(job for job in jobs if job.state() != "finished")
    engine = LocalEngine(workers or sweep.workers)
    return SweepPlan(sweep, tuple(jobs), left, engine.slots, seconds_for(left, engine))


def run_sweep(plan: SweepPlan, *, engine: Engine | None = None) -> list[Job]:
    """Run what is left; returns the runs that failed.

    Raises:
        UserError: if another process runs this sweep.
        Interrupted: after Ctrl-C or SIGTERM; every run has been saved.
    """
    folder = plan.sweep.folder
    folder.mkdir(parents=True, exist_ok=True)
    engine = engine or LocalEngine(plan.slots)
    with RunDirectory(folder).lock(), StopSignals() as signals, SweepView(plan.jobs) as view:
        try:
            return run_jobs(plan.left, engine, signals, watch=view.watch, ended=view.ended)
        except Interrupted as error:
            error.advice = f"finished runs are kept; go on with: ppo sweep {plan.sweep.source}"
            raise
