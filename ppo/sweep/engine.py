"""Where the runs of a sweep are started: one small interface, and this machine behind it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ppo.cores import usable_cores

_PATIENCE = 30.0  # seconds for a run to save itself after SIGTERM


class Running(Protocol):
    """A command that was started."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def stop(self) -> None:
        """Ask it to save and end, as SIGTERM does; returns at once."""

    def wait(self) -> None:
        """Return when it has ended; one that will not is killed."""


class Engine(Protocol):
    """Starts `ppo` commands somewhere.

    Attributes:
        slots: commands that may run at once.
    """

    slots: int

    def start(self, arguments: Sequence[str], log: Path) -> Running:
        """Start `ppo ARGUMENTS`; what it prints is appended to `log`.

        At most `slots` may be running. Paths mean the same where it runs as here.
        """


class LocalEngine:
    """One process on each core of this machine, confined to it."""

    def __init__(self, workers: int | None = None) -> None:
        """Take cores.

        Args:
            workers: how many; None takes all. More than there are share cores.
        """
        affinity = getattr(os, "sched_getaffinity", None)
        cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
        self.slots = workers or usable_cores()
        self._cores = [cores[k % len(cores)] for k in range(self.slots)]
        self._busy: dict[int, LocalProcess] = {}

    def start(self, arguments: Sequence[str], log: Path) -> "LocalProcess":
        """See `Engine`."""
        slot = next(
            k for k in range(self.slots) if k not in self._busy or self._busy[k].poll() is not None
        )
        command = [sys.executable, "-m", "ppo.worker", str(self._cores[slot]), str(os.getpid())]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C is for the sweep, which then stops its runs in order.
                start_new_session=True,
            )
        self._busy[slot] = LocalProcess(process)
        return self._busy[slot]


class LocalProcess:
    """A process of this machine."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def poll(self) -> int | None:
        """See `Running`."""
        return self._process.poll()

    def stop(self) -> None:
        """See `Running`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """See `Running`."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
