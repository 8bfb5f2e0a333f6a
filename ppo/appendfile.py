"""Appending to a file so that a full disk or a kill leaves whole records."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ppo.errors import UserError


class AppendFile:
    """A file that holds whole records only: each is written at once, or taken back.

    Unbuffered: a record is with the operating system when `write` returns, so a killed process
    loses none and a forked one repeats none, and closing cannot fail for want of space.
    """

    def __init__(self, path: Path, *, must_be_new: bool) -> None:
        self.path = path
        self._file = path.open("xb" if must_be_new else "ab", buffering=0)

    def write(self, record: bytes) -> int:
        """Append one record; on any failure the file keeps its former length."""
        if self._file.closed:
            raise ValueError(f"{self.path} is closed")
        before = os.fstat(self._file.fileno()).st_size
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), before)
            raise
        return len(record)

    def flush(self) -> None:
        """Nothing to do: there is no buffer."""

    def sync(self) -> None:
        """Wait until the disk itself has everything."""
        if not self._file.closed:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close; a second call does nothing."""
        self._file.close()


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader sees the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UserError that names the file.

    Raises:
        UserError: where the block raises an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write {path}: {reason}; make room or correct the permissions, "
            f"then `ppo resume {path.parent}`"
        ) from error
