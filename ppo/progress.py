"""The view of a running training: live on a terminal, plain lines elsewhere."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ppo.dashboard import Dashboard, Status, plain_line

Mode = Literal["auto", "live", "plain", "off"]

_LIVE_INTERVAL = 0.5  # seconds between two drawings: reads as live, costs under 2% of a core
_PLAIN_INTERVAL = 5.0  # seconds between two lines


class _Console(Console):
    """A console that leaves it to the view what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Rich would end the process, and send stdout to nowhere."""
        raise BrokenPipeError


class ProgressView:
    """Shows how a run goes, on stderr only, so that stdout stays for results.

    Nothing is drawn between two calls: no thread runs beside the training. A stream that goes
    away (a closed pipe) ends the view, never the run.
    """

    def __init__(
        self,
        total_timesteps: int,
        *,
        mode: Mode,
        start_steps: int = 0,
        title: str,
        stream: TextIO | None = None,
        width: int | None = None,
        height: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a view; it shows from `__enter__` on.

        Args:
            total_timesteps: env steps at which the run ends.
            mode: "auto" is live where the stream is a terminal that can draw, else plain.
            start_steps: env steps that were done before this process; they count as progress
                but not for the rate.
            title: names the run.
            stream: where to show; None is stderr.
            width: characters in a line; None is what the terminal has.
            height: lines; None is what the terminal has.
            clock: seconds, growing.
        """
        self._stream = sys.stderr if stream is None else stream
        self._mode = _resolve(mode, self._stream)
        self._total, self._start, self._title = total_timesteps, start_steps, title
        self._clock = clock
        self._began = self._last_shown = clock()
        self._shown_any = self._pending = False
        self._env_steps = start_steps
        self._latest: dict[str, float] = {}
        self._returns: list[float] = []
        self._live: Live | None = None
        self._console = _Console(
            file=self._stream,
            force_terminal=True if self._mode == "live" else None,
            width=width,
            height=height,
            highlight=False,
        )

    def __enter__(self) -> Self:
        self._began = self._last_shown = self._clock()
        if self._mode == "live":
            self._live = Live(
                Dashboard(self._status()),
                console=self._console,
                auto_refresh=False,
                redirect_stderr=self._stream is sys.stderr,
                # A result that is piped away must not end up on the terminal.
                redirect_stdout=self._stream is sys.stderr and sys.stdout.isatty(),
                vertical_overflow="crop",
            )
            with self._survive():
                self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._survive():
            if self._pending:
                self._show()
        if self._live is not None:
            with self._survive():
                self._live.stop()
            self._live = None

    def update(self, metrics: Mapping[str, float], env_steps: int) -> None:
        """Take in the newest numbers; they are drawn when it is time.

        Args:
            metrics: by tag. A tag left out keeps its last value (evaluations come seldom); one
                that is not finite is shown as a dash.
            env_steps: global env steps done.
        """
        self._env_steps = env_steps
        for tag, given in metrics.items():
            value = float(given)
            if math.isfinite(value):
                self._latest[tag] = value
            else:
                self._latest.pop(tag, None)
        if math.isfinite(episode_return := metrics.get("rollout/ep_rew_mean", math.nan)):
            self._returns.append(float(episode_return))
        self._pending = True
        interval = _LIVE_INTERVAL if self._mode == "live" else _PLAIN_INTERVAL
        if not self._shown_any or self._clock() - self._last_shown >= interval:
            with self._survive():
                self._show()

    def message(self, text: str, *, warning: bool = False) -> None:
        """Print a line above the live part; with mode "off", only a warning is printed."""
        if self._mode == "off" and not warning:
            return
        line = f"warning: {text}" if warning else text
        with self._survive():
            if self._live is not None:
                style = "yellow" if warning else ""
                self._console.print(Text(self._encodable(line), style=style), soft_wrap=True)
            else:
                self._print_plain(line)

    def _show(self) -> None:
        self._pending, self._shown_any = False, True
        self._last_shown = self._clock()
        if self._mode == "live" and self._live is not None:
            self._live.update(Dashboard(self._status()), refresh=True)
        elif self._mode == "plain":
            self._print_plain(plain_line(self._status()))

    def _status(self) -> Status:
        elapsed = self._clock() - self._began
        done = self._env_steps - self._start
        own_rate = done / elapsed if elapsed > 0 and done > 0 else None
        return Status(
            title=self._encodable(self._title),
            env_steps=self._env_steps,
            total_timesteps=self._total,
            fps=self._latest.get("time/fps", own_rate),
            elapsed=elapsed,
            metrics=self._latest,
            returns=self._returns,
        )

    def _print_plain(self, line: str) -> None:
        self._stream.write(self._encodable(line) + "\n")
        self._stream.flush()

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return text.encode(encoding, errors="replace").decode(encoding)

    @contextlib.contextmanager
    def _survive(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and not self._stream.closed:
                raise
            self._mode = "off"


def _resolve(mode: Mode, stream: TextIO) -> Mode:
    if mode != "auto":
        return mode
    dumb = os.environ.get("TERM", "").lower() in {"dumb", "unknown"}
    return "live" if stream.isatty() and not dumb else "plain"
