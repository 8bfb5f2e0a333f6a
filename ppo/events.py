"""TensorBoard event files, written without TensorFlow and without a thread."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ppo.appendfile import AppendFile

_PREFIX = "events.out.tfevents."
_FLOAT32_MAX = 3.4028234e38


class EventWriter:
    """Scalars for TensorBoard in one new event file.

    The library's own writer is not used: it hands records to a thread, in which a full disk
    becomes a traceback of its own, and it loads TensorFlow where that is installed.
    """

    def __init__(self, run_dir: Path, *, purge_from: int | None) -> None:
        """Open a new event file in `run_dir`.

        Args:
            run_dir: an existing folder.
            purge_from: env steps; TensorBoard forgets what earlier files hold from there on.

        Raises:
            OSError: if the file cannot be made.
        """
        self.path = run_dir / _file_name(run_dir)
        self._file = AppendFile(self.path, must_be_new=True)
        self._records = RecordWriter(self._file)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_from is not None:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=purge_from, session_log=start))

    def add_scalars(self, scalars: Mapping[str, float], *, env_steps: int) -> None:
        """Write finite scalars at one x; what float32 cannot hold is left out."""
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if abs(value) <= _FLOAT32_MAX
        ]
        if values:
            summary = Summary(value=values)
            self._add(Event(wall_time=time.time(), step=env_steps, summary=summary))

    def sync(self) -> None:
        """Wait until the disk has every event."""
        self._file.sync()

    def close(self) -> None:
        """Close; a second call does nothing."""
        self._file.close()

    def _add(self, event: Event) -> None:
        self._records.write(event.SerializeToString())


def _file_name(run_dir: Path) -> str:
    """A name that sorts after every event file already there, whatever the clock says.

    TensorBoard reads files in the order of their names; a resumed run that starts within the
    same second, or on a machine whose clock is behind, must still be read last.
    """
    names = [path.name.removeprefix(_PREFIX) for path in run_dir.glob(f"{_PREFIX}*")]
    earlier = [int(first) for name in names if (first := name.split(".")[0]).isdigit()]
    latest = max(earlier, default=-1)
    stamp = max(int(time.time()), latest + 1)
    return f"{_PREFIX}{stamp:010d}.{socket.gethostname()}.ppo"
