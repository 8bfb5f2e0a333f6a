"""Ctrl-C and SIGTERM, turned into an exception at places where nothing can be half-done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

EXIT_BASE = 128


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to stop.

    Attributes:
        signum: which one.
        run_dir: the folder in which the run was saved, if there was one.
        env_steps: done in what was saved.
        advice: how to go on, where it was not a run that was stopped.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.run_dir: Path | None = None
        self.env_steps = 0
        self.advice = ""

    @property
    def exit_status(self) -> int:
        """What a shell expects of a program that the signal ended: 130 or 143."""
        return EXIT_BASE + self.signum


class StopSignals:
    """While active, SIGINT and SIGTERM raise `Interrupted`, but only inside `interruptible`.

    Everywhere else (writing a checkpoint, a log) they wait for the next such place. Outside the
    main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self._pending: int | None = None
        self._open = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A stretch whose work may be thrown away."""
        self._raise_pending()
        self._open = True
        try:
            yield
        finally:
            self._open = False
        self._raise_pending()

    def _handle(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._pending = signum
        if self._open:
            self._open = False  # a second Ctrl-C must not interrupt the saving
            self._raise_pending()

    def pending(self) -> Interrupted | None:
        """What waits to be raised, if anything does."""
        return None if self._pending is None else Interrupted(self._pending)

    def _raise_pending(self) -> None:
        if self._pending is not None:
            raise Interrupted(self._pending)
