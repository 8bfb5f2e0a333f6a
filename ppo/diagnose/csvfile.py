"""Rows of trajectories as CSV: what another trainer wrote, and what `ppo trace --csv` writes.

Columns, in any order: reward, value, next_value, terminated, truncated; and, where there is
something to say, cut, env, episode, advantage, target. Further columns are left alone.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from ppo.diagnose.rows import Flags, Floats, Integers, Rows
from ppo.errors import UserError

NEEDED = ("reward", "value", "next_value", "terminated", "truncated")
OPTIONAL = ("cut", "env", "episode", "advantage", "target")
_FLAGS = {"0": False, "1": True, "false": False, "true": True}

Cell = TypeVar("Cell", float, int, bool)


class TraceFileError(UserError):
    """A file of rows that cannot be read as such; the message names the line and the column."""


class _Table:
    """The cells of a file, with the line that each row came from."""

    def __init__(self, path: Path, rows: Sequence[Mapping[str, str]], lines: Sequence[int]) -> None:
        self.path, self.rows, self.lines = path, rows, lines

    def has(self, column: str) -> bool:
        return column in self.rows[0]

    def refuse(self, row: int, why: str) -> NoReturn:
        raise TraceFileError(f"{self.path}: line {self.lines[row]}: {why}")

    def parsed(self, column: str, parse: Callable[[str], Cell], what: str) -> list[Cell]:
        """Every cell of a column; the first that is not `what` is refused."""
        cells: list[Cell] = []
        for row, record in enumerate(self.rows):
            try:
                cells.append(parse(record[column].strip()))
            except (ValueError, KeyError):
                self.refuse(row, f"column {column}: {record[column]!r} is not {what}")
        return cells

    def numbers(self, column: str) -> Floats:
        return np.array(self.parsed(column, _number, "a finite number"))

    def flags(self, column: str) -> list[bool]:
        return self.parsed(column, lambda cell: _FLAGS[cell.lower()], "0, 1, true or false")

    def optional_numbers(self, column: str) -> Floats | None:
        return self.numbers(column) if self.has(column) else None

    def counted(self, column: str) -> list[int]:
        """Labels, numbered in the order in which they appear; all 0 where there are none."""
        if not self.has(column):
            return [0] * len(self.rows)
        numbers: dict[str, int] = {}
        return [numbers.setdefault(r[column].strip(), len(numbers)) for r in self.rows]


def _number(cell: str) -> float:
    number = float(cell)
    if not math.isfinite(number):
        raise ValueError
    return number


def read_rows(path: Path, *, tolerance: float) -> Rows:
    """Rows of a file, grouped by environment and episode, in the order of the file within each.

    Args:
        path: of the file.
        tolerance: relative; how far the next value of a row that continues may be from the value
            of the row that it continues into.

    Raises:
        TraceFileError: if it is no such file, a cell is not what its column holds, an episode
            ends without a flag, or a row claims to continue but the values disagree.
    """
    table = _table(path)
    order = _grouped(table)
    table = _Table(path, [table.rows[i] for i in order], [table.lines[i] for i in order])
    size = len(order)
    rewards, values = table.numbers("reward"), table.numbers("value")
    env, episode = np.array(table.counted("env")), np.array(table.counted("episode"))
    rows = Rows(
        env=env,
        episode=episode,
        step=count_steps(env),
        env_rewards=rewards,
        rewards=rewards,
        values=values,
        next_values=np.zeros(size),
        terminated=np.array(table.flags("terminated")),
        truncated=np.array(table.flags("truncated")),
        cut=np.array(table.flags("cut")) if table.has("cut") else np.zeros(size, dtype=np.bool_),
        advantages=table.optional_numbers("advantage"),
        targets=table.optional_numbers("target"),
    ).close_environments()
    _check_ends(table, rows)
    if not table.has("episode"):
        rows = replace(rows, episode=count_episodes(env, rows.terminated | rows.truncated))
    return replace(rows, next_values=_next_values(table, rows, tolerance))


def count_episodes(env: Integers, ended: Flags) -> Integers:
    """Episodes by the flags, counted from 0 within each environment, [R]."""
    episodes = np.zeros_like(env)
    for label in np.unique(env):
        rows = env == label
        episodes[rows] = np.cumsum(np.append(False, ended[rows][:-1]))
    return episodes


def count_steps(env: Integers) -> Integers:
    """Rows counted from 0 within each environment, [R]."""
    steps = np.zeros_like(env)
    for label in np.unique(env):
        steps[env == label] = np.arange(np.count_nonzero(env == label))
    return steps


def _table(path: Path) -> _Table:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TraceFileError(f"{path}: is not text in UTF-8, so no CSV file") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in NEEDED if name not in header]
    if missing:
        found = ", ".join(header) or "nothing: the file is empty"
        raise TraceFileError(
            f"{path}: line 1: no column {', '.join(missing)}; needed are {', '.join(NEEDED)};"
            f" found {found}"
        )
    doubled = sorted({name for name in header if header.count(name) > 1} & {*NEEDED, *OPTIONAL})
    if doubled:
        raise TraceFileError(f"{path}: line 1: column {doubled[0]} is there twice")
    rows, lines = [], []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise TraceFileError(
                f"{path}: line {reader.line_num}: {len(cells)} cells in a file of"
                f" {len(header)} columns"
            )
        rows.append(dict(zip(header, cells, strict=True)))
        lines.append(reader.line_num)
    if not rows:
        raise TraceFileError(f"{path}: has a header, but no rows")
    return _Table(path, rows, lines)


def _grouped(table: _Table) -> list[int]:
    """Indices of the rows, by environment and then by episode, each as they first appear."""
    envs, episodes = table.counted("env"), table.counted("episode")
    return sorted(range(len(table.rows)), key=lambda row: (envs[row], episodes[row]))


def _check_ends(table: _Table, rows: Rows) -> None:
    """The last row of an episode must say how that ended."""
    changes = np.flatnonzero(rows.continues[:-1] & (rows.episode[1:] != rows.episode[:-1]))
    if len(changes):
        table.refuse(
            int(changes[0]),
            "is the last row of its episode, but neither terminated, truncated nor cut is set",
        )


def _next_values(table: _Table, rows: Rows, tolerance: float) -> Floats:
    """The column, with gaps filled where the row below has the value."""
    filled = np.where(rows.continues, rows.successor_values, 0.0)
    cells = [record["next_value"].strip() for record in table.rows]
    given = np.array([cell != "" for cell in cells])
    lacking = np.flatnonzero(~given & ~rows.continues & rows.bootstraps)
    if len(lacking):
        table.refuse(
            int(lacking[0]),
            "column next_value: is empty, but the row does not continue and did not terminate:"
            " it needs the value of the state that it reached",
        )
    for row in np.flatnonzero(given).tolist():
        try:
            filled[row] = _number(cells[row])
        except ValueError:
            if not rows.terminated[row]:  # after a termination, nobody's value
                table.refuse(row, f"column next_value: {cells[row]!r} is not a finite number")
    below = rows.successor_values
    scale = np.maximum(np.abs(below), 1.0)
    wrong = np.flatnonzero(rows.continues & (np.abs(filled - below) > tolerance * scale))
    for row in wrong.tolist()[:1]:
        table.refuse(
            row,
            f"claims to continue, but its next_value {filled[row]:g} is not the value"
            f" {below[row]:g} of the row on line {table.lines[row + 1]} (tolerance"
            f" {tolerance:g}, relative): a flag or the env column is missing, or the values are"
            " of two critics",
        )
    return filled
