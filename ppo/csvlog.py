"""CSV files keyed by env steps: appended to while training, trimmed on resume."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppo.appendfile import AppendFile, replace_file

KEY = "env_steps"
Row = dict[str, str]


@dataclass(frozen=True)
class Table:
    """A CSV file as text: `rows` map column to cell; an empty cell has no entry."""

    columns: tuple[str, ...]
    rows: list[Row]


def read_table(path: Path) -> Table:
    """The whole rows of a CSV file; none where the file is missing.

    A line that a kill cut short (no newline at its end, cells missing, no number in the first
    column) is left out.
    """
    if not path.exists():
        return Table((), [])
    text = path.read_bytes().decode("utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    lines = csv.reader(io.StringIO(whole, newline=""))
    columns = tuple(next(lines, ()))
    rows = [
        {column: cell for column, cell in zip(columns, cells, strict=True) if cell}
        for cells in lines
        if len(cells) == len(columns) and cells[0].isascii() and cells[0].isdigit()
    ]
    return Table(columns, rows)


def number_in(cell: str | None) -> float:
    """The number in a cell; NaN where there is none."""
    try:
        return float(cell) if cell is not None else math.nan
    except ValueError:
        return math.nan


class CsvLog:
    """An append-only CSV file whose first column is `env_steps` and whose columns may grow.

    Raises:
        OSError: if the file cannot be written, or is there already and `keep_until` is None.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, keep_until: int | None) -> None:
        """Start a new file, or go on with one.

        Args:
            path: the file.
            columns: the columns to begin with, after `env_steps`.
            keep_until: env steps; rows beyond it are dropped. None starts a new file.
        """
        self.path = path
        self.columns: tuple[str, ...] = (KEY, *columns)
        self.last_row: Row | None = None
        if keep_until is None:
            self._file = AppendFile(path, must_be_new=True)
            self._file.write(_lines(self.columns, [], header=True))
            return
        table = read_table(path)
        self.columns = tuple(dict.fromkeys((KEY, *table.columns, *columns)))
        self._replace([row for row in table.rows if int(row[KEY]) <= keep_until])
        self._file = AppendFile(path, must_be_new=False)

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows at the end; a column not seen before is added to the header."""
        if not rows:
            return
        if self._widen(rows):
            self._rewrite([*read_table(self.path).rows, *rows])
        else:
            self._file.write(_lines(self.columns, rows))
            self.last_row = dict(rows[-1])

    def amend_last(self, cells: Mapping[str, str]) -> None:
        """Add cells to the last row."""
        *before, last = read_table(self.path).rows
        row = {**last, **cells}
        self._widen([row])
        self._rewrite([*before, row])

    def sync(self) -> None:
        """Wait until the disk has every row."""
        self._file.sync()

    def close(self) -> None:
        """Close; a second call does nothing."""
        self._file.close()

    def _widen(self, rows: Iterable[Row]) -> bool:
        width = len(self.columns)
        self.columns = tuple(dict.fromkeys((*self.columns, *(key for row in rows for key in row))))
        return len(self.columns) > width

    def _rewrite(self, rows: Sequence[Row]) -> None:
        self._file.close()
        self._replace(rows)
        self._file = AppendFile(self.path, must_be_new=False)

    def _replace(self, rows: Sequence[Row]) -> None:
        replace_file(self.path, _lines(self.columns, rows, header=True))
        self.last_row = dict(rows[-1]) if rows else None


def _lines(columns: Sequence[str], rows: Iterable[Row], *, header: bool = False) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([row.get(column, "") for column in columns] for row in rows)
    return text.getvalue().encode("utf-8")
