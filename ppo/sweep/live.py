"""How a sweep goes: a table of its cells on a terminal, a line for every run elsewhere."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ppo.dashboard import duration, fixed, number, percent
from ppo.sweep.jobs import Job

_INTERVAL = 1.0  # seconds between two drawings


class SweepView:
    """Shows on stderr how the runs of a sweep go."""

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a view; it shows from `__enter__` on.

        Args:
            jobs: all of the sweep's.
            console: where to show; None is stderr.
            clock: seconds.
        """
        self._jobs, self._clock = jobs, clock
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._rows = {job: job.progress() for job in jobs}
        self._state = {job: "done" if job.state() == "finished" else "" for job in jobs}
        self._begun, self._before = clock(), self._env_steps()
        self._drawn_at = -math.inf

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                self._table(), console=self._console, auto_refresh=False, transient=False
            )
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.__exit__(kind, error, traceback)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def watch(self, running: Sequence[Job]) -> None:
        """Look at the running jobs, and draw if it is time."""
        now = self._clock()
        if self._live is None or now < self._drawn_at + _INTERVAL:
            return
        self._drawn_at = now
        for job in running:
            self._state[job] = "running"
            self._rows[job] = job.progress()
        self._live.update(self._table(), refresh=True)

    def ended(self, job: Job, status: int) -> None:
        """A job has ended."""
        self._rows[job] = job.progress()
        self._state[job] = "failed" if status else "done"
        over = sum(state in ("done", "failed") for state in self._state.values())
        what = f"failed (status {status}): {job.reason()}" if status else self._result(job)
        if status or self._live is None:
            left = duration(self._seconds_left())
            self.say(f"{over} of {len(self._jobs)}: {job.name}: {what}; {left} left")

    def _result(self, job: Job) -> str:
        return f"return {_mean([self._rows[job]], 'rollout/ep_rew_mean', number)}"

    def _env_steps(self) -> int:
        return sum(int(row.get("env_steps", 0)) for row in self._rows.values())

    def _seconds_left(self) -> float | None:
        done = self._env_steps()
        failed = [job for job, state in self._state.items() if state == "failed"]
        never = sum(job.env_steps - int(self._rows[job].get("env_steps", 0)) for job in failed)
        left = sum(job.env_steps for job in self._jobs) - done - never
        rate = (done - self._before) / max(self._clock() - self._begun, 1e-9)
        return left / rate if rate > 0 else None

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        table.add_column("cell")
        for name in ("runs", "done", "return", "ev(λ)", "ev(λ=1)", "steps/s"):
            table.add_column(name, justify="right")
        cells: dict[str, list[Job]] = {}
        for job in self._jobs:
            cells.setdefault(job.cell.label, []).append(job)
        for label, jobs in cells.items():
            table.add_row(label, *self._line(jobs))
        table.caption = f"{duration(self._seconds_left())} left"
        table.caption_justify = "left"
        return table

    def _line(self, jobs: Sequence[Job]) -> list[str]:
        states = [self._state[job] for job in jobs]
        runs = f"{states.count('done')}/{len(jobs)}"
        runs += f", {states.count('failed')} failed" if "failed" in states else ""
        done = sum(int(self._rows[job].get("env_steps", 0)) for job in jobs)
        rows = [self._rows[job] for job in jobs]
        shown = (
            ("rollout/ep_rew_mean", number),
            ("train/explained_variance", fixed),
            ("train/explained_variance_mc", fixed),
        )
        means = [_mean(rows, tag, form) for tag, form in shown]
        rate = sum(
            float(self._rows[job].get("time/fps", 0.0))
            for job in jobs
            if self._state[job] == "running"
        )
        share = done / max(1, sum(job.env_steps for job in jobs))
        return [runs, percent(share), *means, number(rate) if rate else "-"]


def _mean(rows: Sequence[Mapping[str, str]], tag: str, form: Callable[[float], str]) -> str:
    values = [float(row[tag]) for row in rows if row.get(tag)]
    return form(fmean(values)) if values else "-"
