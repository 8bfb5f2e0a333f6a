"""What a run leaves to read: progress.csv, episodes.csv and TensorBoard events."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ppo.appendfile import writing
from ppo.critic import Reading
from ppo.csvlog import KEY, CsvLog, Row, number_in
from ppo.episodes import Episode
from ppo.events import EventWriter

PROGRESS_FILE = "progress.csv"
EPISODES_FILE = "episodes.csv"
BOOTSTRAP_WEIGHT = "train/bootstrap_weight"
_EPISODE_COLUMNS = ("env", "return", "length", "ended")


def critic_readings(progress: Sequence[Row]) -> list[Reading]:
    """What a run's rows of progress.csv say about its critic, oldest first."""
    return [
        Reading(number_in(row.get("train/explained_variance_mc")), number_in(row[BOOTSTRAP_WEIGHT]))
        for row in progress
        if BOOTSTRAP_WEIGHT in row
    ]


class RunLogger:
    """Writes one run's scalars and episodes; x is always global env steps.

    Every row is with the operating system when the call returns.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool, resume_at: int | None = None) -> None:
        """Open the files of a new run, or of one that goes on.

        Args:
            run_dir: the run's existing folder.
            tensorboard: whether to write TensorBoard events too.
            resume_at: env steps of the state that the run goes on from; everything that was
                logged beyond is dropped. None starts new files.

        Raises:
            UserError: if a file cannot be written, or a new run finds files of another one.
        """
        self._last_steps = -1 if resume_at is None else resume_at
        with contextlib.ExitStack() as files:
            self._progress = _open_csv(files, run_dir / PROGRESS_FILE, (), resume_at)
            self._episodes = _open_csv(files, run_dir / EPISODES_FILE, _EPISODE_COLUMNS, resume_at)
            self._events: EventWriter | None = None
            if tensorboard:
                with writing(run_dir / "events.out.tfevents"):
                    purge_from = None if resume_at is None else resume_at + 1
                    self._events = EventWriter(run_dir, purge_from=purge_from)
                files.callback(self._events.close)
            self._files = files.pop_all()

    def log(self, metrics: Mapping[str, float], *, env_steps: int) -> None:
        """Write one row of scalars; those that are not finite are left out.

        A second call at the same env steps adds to the row; a tag that has a value there keeps
        it, so that x grows strictly for every tag.

        Raises:
            ValueError: if `env_steps` lies before what was logged last.
            UserError: if a file cannot be written.
        """
        if env_steps < self._last_steps:
            raise ValueError(f"env_steps went back from {self._last_steps} to {env_steps}")
        last_row = self._progress.last_row
        known = last_row if last_row is not None and int(last_row[KEY]) == env_steps else None
        values = {tag: float(value) for tag, value in metrics.items()}
        new = {
            tag: value
            for tag, value in values.items()
            if math.isfinite(value) and tag not in (known or {})
        }
        if not new:
            return
        cells = {tag: _cell(value) for tag, value in new.items()}
        with writing(self._progress.path):
            if known is None:
                self._progress.append([{KEY: str(env_steps), **cells}])
            else:
                self._progress.amend_last(cells)
        if self._events is not None:
            with writing(self._events.path):
                self._events.add_scalars(new, env_steps=env_steps)
        self._last_steps = env_steps

    def log_episodes(self, episodes: Sequence[Episode]) -> None:
        """Write one row per finished episode.

        Raises:
            UserError: if the file cannot be written.
        """
        rows = [
            {
                KEY: str(episode.env_steps),
                "env": str(episode.env),
                "return": _cell(episode.episode_return),
                "length": str(episode.length),
                "ended": episode.ended,
            }
            for episode in episodes
        ]
        with writing(self._episodes.path):
            self._episodes.append(rows)

    def flush(self) -> None:
        """Wait until the disk has everything; only a power cut makes this matter.

        Raises:
            UserError: if the disk refuses.
        """
        for file in (self._progress, self._episodes, self._events):
            if file is not None:
                with writing(file.path):
                    file.sync()

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _open_csv(
    files: contextlib.ExitStack, path: Path, columns: Sequence[str], keep_until: int | None
) -> CsvLog:
    with writing(path):
        table = CsvLog(path, columns, keep_until=keep_until)
    files.callback(table.close)
    return table


def _cell(value: float) -> str:
    return f"{value:.10g}"
