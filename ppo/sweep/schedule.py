"""Running jobs side by side: a failed one stops no other, and a stop is passed on to all."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from ppo.interrupts import StopSignals
from ppo.sweep.engine import Engine, Running
from ppo.sweep.jobs import Job

_POLL = 0.2  # seconds

# Called often, with the jobs that run now.
Watch = Callable[[Sequence[Job]], None]
# Called once for every job that ended, with its exit status.
Ended = Callable[[Job, int], None]


def run_jobs(
    jobs: Sequence[Job], engine: Engine, signals: StopSignals, *, watch: Watch, ended: Ended
) -> list[Job]:
    """Run all jobs, `engine.slots` at once.

    Args:
        jobs: in the order in which they are to be started.
        engine: starts them.
        signals: a stop makes every running job save and end before it is raised.
        watch: shows how it goes.
        ended: is told of each end.

    Returns:
        Those that failed.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM.
    """
    waiting, running = deque(jobs), dict[Job, Running]()
    failed: list[Job] = []
    try:
        while waiting or running:
            for job in _startable(waiting, engine.slots - len(running)):
                running[job] = engine.start(job.arguments(), job.log)
            watch(list(running))
            with signals.interruptible():
                time.sleep(_POLL)
            for job, process in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[job]
                    ended(job, status)
                    if status != 0:
                        failed.append(job)
    finally:
        for process in running.values():
            process.stop()
        for process in running.values():
            process.wait()
    return failed


def _startable(waiting: deque[Job], free: int) -> list[Job]:
    """Takes up to `free` jobs that nobody else is training; the others keep their place."""
    chosen: list[Job] = []
    for job in list(waiting):
        if len(chosen) >= free:
            break
        if not job.busy():
            waiting.remove(job)
            chosen.append(job)
    return chosen
