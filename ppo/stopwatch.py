"""Where the wall-clock time of a run goes."""

import time


class Stopwatch:
    """Every moment since it was made belongs to one phase: the one that was switched to last.

    A switch costs a fraction of a microsecond, so that it is always on.

    Attributes:
        seconds: by phase, those that ended.
    """

    def __init__(self, phase: str) -> None:
        self.seconds: dict[str, float] = {}
        self._phase = phase
        self._since = time.perf_counter()

    def switch(self, phase: str) -> None:
        """End the phase that runs and begin another."""
        now = time.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def move(self, seconds: float, *, source: str, target: str) -> None:
        """Count so many seconds of a phase as those of another."""
        if seconds:
            self.seconds[source] = self.seconds.get(source, 0.0) - seconds
            self.seconds[target] = self.seconds.get(target, 0.0) + seconds

    def stop(self) -> dict[str, float]:
        """End the phase that runs; seconds by phase, longest first."""
        self.switch(self._phase)
        return dict(sorted(self.seconds.items(), key=lambda item: -item[1]))
