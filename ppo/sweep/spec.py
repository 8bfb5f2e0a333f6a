"""Sweep files: base configs, a grid over their keys, seeds; every cell is validated before a start.

base: ../halfcheetah.yaml       # or a list of files: a task each
grid:
  ppo.gae_lambda: [0.0, 0.9, 0.95, 1.0]
seeds: 5                        # 0 to 4; or a list
budget: 200_000                 # env steps of every run
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppo.config import Config, load_config
from ppo.config_errors import Origins, Problem, config_error, one_line, problems_of
from ppo.config_types import Count, EnvSteps, Name
from ppo.errors import ConfigError
from ppo.strict_yaml import Document, KeyPath, YamlFault, dotted, parse
from ppo.sweep.flat import as_text, short_names

# What a sweep sets itself, and what to write instead.
_OWN_KEYS = {
    "seed": "the seeds of a sweep are its seeds key",
    "name": "cells are named after their values",
    "runs_dir": "a sweep puts its runs into a folder of its own",
}
_KEYS = ("name", "base", "set", "grid", "seeds", "budget", "workers")
_MOST_SEEDS = 10_000


class _SweepFile(BaseModel):
    """The file as it is written; what its values mean is checked afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name | None = None
    base: str | list[str]
    set: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]]
    seeds: int | list[int]
    budget: EnvSteps | None = None
    workers: Count | None = None


@dataclass(frozen=True, eq=False)
class Cell:
    """One combination of values on one task, to be run with every seed.

    Attributes:
        label: for people: `gae_lambda=0.9`, with the task where there are several.
        folder: its name as a folder, different from every other cell's.
        values: the grid's keys and values.
        config: of its runs, but for seed and folder.
    """

    label: str
    folder: str
    values: Mapping[str, Any]
    config: Config


@dataclass(frozen=True)
class Sweep:
    """What is to be run.

    Attributes:
        name: of the sweep, and of its folder.
        source: the file that it was read from.
        cells: every one of them, in the grid's order.
        seeds: shared by all cells.
        workers: runs side by side; None is one on every core.
    """

    name: str
    source: Path
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    workers: int | None

    @property
    def folder(self) -> Path:
        """Where everything of the sweep is kept: the same for the same file."""
        return Path(self.cells[0].config.runs_dir) / "sweeps" / self.name


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file and validate every cell of it.

    Args:
        path: the YAML file; base files are looked up beside it.
        overrides: of the base configs, such as `"ppo.total_timesteps=20_000"`.

    Raises:
        ConfigError: one line that names the file, the line, and what to do.
    """
    file = Path(path)
    document = _read(file)
    origins = Origins(str(file), lines=document.lines)
    try:
        written = _SweepFile.model_validate(document.value)
    except ValidationError as error:
        raise config_error(_problems(error), origins) from None
    problems = [
        *_impossible_seeds(written.seeds),
        *_impossible_grid(written, document, overrides),
    ]
    if problems:
        raise config_error(problems, origins)
    return Sweep(
        name=written.name or file.stem,
        source=file,
        cells=_cells(written, file, origins, overrides),
        seeds=_seeds(written.seeds),
        workers=written.workers,
    )


def _read(file: Path) -> Document:
    try:
        document = parse(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(one_line(f"{file}: cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text") from None
    except YamlFault as fault:
        key = f"{dotted(fault.path)}: " if fault.path else ""
        raise ConfigError(one_line(f"{file}:{fault.line}: {key}{fault.message}")) from None
    if not isinstance(document.value, dict):
        raise ConfigError(f"{file}: must hold the keys base, grid and seeds")
    return document


def _problems(error: ValidationError) -> list[Problem]:
    """Pydantic's problems; a key that may be two things is reported once, in words."""
    words = {
        "base": "must be a config file, or a list of them",
        "seeds": "must be a whole number, or a list of them such as [0, 1, 2]",
        "grid": "must name keys, each with a list of values: ppo.gae_lambda: [0.9, 0.95]",
    }
    found = problems_of(error, _KEYS)
    return [
        Problem((key,), words[key]) if key in words and not p.message.startswith("required") else p
        for p in found
        for key in [str(p.path[0]) if p.path else ""]
    ]


def _impossible_seeds(seeds: int | list[int]) -> Sequence[Problem]:
    if isinstance(seeds, int):
        if 1 <= seeds <= _MOST_SEEDS:
            return []
        return [Problem(("seeds",), f"must be 1 to {_MOST_SEEDS:,}, not {seeds}")]
    if not seeds:
        return [Problem(("seeds",), "is an empty list; give a number of seeds, or some of them")]
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    return [] if twice is None else [Problem(("seeds",), f"{twice} stands in it twice")]


def _impossible_grid(
    written: _SweepFile, document: Document, overrides: Sequence[str]
) -> Sequence[Problem]:
    if not written.grid:
        return [Problem(("grid",), "is empty; name a key: ppo.gae_lambda: [0.9, 0.95, 1.0]")]
    given = {override.partition("=")[0] for override in overrides}
    problems = []
    for section, keys in (("grid", written.grid), ("set", written.set)):
        for key in keys:
            place = (section, key)
            if key in _OWN_KEYS:
                problems.append(Problem(place, f"{_OWN_KEYS[key]}; remove it here"))
            elif key == "ppo.total_timesteps" and written.budget is not None:
                problems.append(Problem(place, "is what budget says already; remove one of them"))
            elif section == "grid" and (key in given or key in written.set):
                problems.append(Problem(place, "is set for every cell as well; remove one of them"))
    for key, values in written.grid.items():
        if not values:
            problems.append(Problem(("grid", key), "is an empty list; give at least one value"))
    problems += [
        Problem(path, f"readers of YAML disagree on what {text} is; write it otherwise")
        for path, text in document.doubtful.items()
        if path[0] in ("grid", "set")
    ]
    return problems


def _seeds(seeds: int | list[int]) -> tuple[int, ...]:
    return tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)


def _cells(
    written: _SweepFile, file: Path, origins: Origins, overrides: Sequence[str]
) -> tuple[Cell, ...]:
    bases = [written.base] if isinstance(written.base, str) else written.base
    if not bases:
        raise config_error([Problem(("base",), "is an empty list")], origins)
    common = [f"{key}={as_text(value)}" for key, value in written.set.items()]
    common += [] if written.budget is None else [f"ppo.total_timesteps={written.budget}"]
    short = short_names(list(written.grid))
    cells: list[Cell] = []
    for base in bases:
        path = Path(base) if Path(base).is_absolute() else file.parent / base
        for indices in itertools.product(*(range(len(v)) for v in written.grid.values())):
            chosen = dict(zip(written.grid, indices, strict=True))
            values = {key: written.grid[key][index] for key, index in chosen.items()}
            label = ", ".join(f"{short[key]}={as_text(value)}" for key, value in values.items())
            label = f"{path.stem}, {label}" if len(bases) > 1 else label
            of_cell = [f"{key}={as_text(value)}" for key, value in values.items()]
            try:
                config = load_config(path, [*common, *overrides, *of_cell])
            except ConfigError as error:
                places = _places(written, chosen, overrides)
                raise ConfigError(_told_of(str(error), places, origins)) from None
            cells.append(Cell(label, _folder(label, cells), values, config))
            _refuse_duplicate(cells, file)
    return tuple(cells)


def _places(
    written: _SweepFile, chosen: Mapping[str, int], overrides: Sequence[str]
) -> dict[str, KeyPath]:
    """Where the sweep file sets a key; what comes from the command line is not in it."""
    places: dict[str, KeyPath] = {key: ("set", key) for key in written.set}
    places["ppo.total_timesteps"] = ("budget",)
    for override in overrides:
        places.pop(override.partition("=")[0], None)
    return places | {key: ("grid", key, index) for key, index in chosen.items()}


def _told_of(message: str, places: Mapping[str, KeyPath], origins: Origins) -> str:
    """A message about a flag, told of the line of the sweep file that set it."""
    for key, place in places.items():
        if message.startswith(f"--{key}: "):
            line = origins.line_of(Problem(place, ""))
            return f"{origins.source}:{line}: {place[0]}: {message.removeprefix('--')}"
    return message


def _folder(label: str, cells: Sequence[Cell]) -> str:
    """A name that no other cell has, on file systems that do not tell case apart as well."""
    stem = re.sub(r"[^\w.=+-]+", "_", label).strip("_.") or "cell"
    taken = {cell.folder.casefold() for cell in cells}
    names = itertools.chain([stem], (f"{stem}_{k}" for k in itertools.count(2)))
    return next(name for name in names if name.casefold() not in taken)


def _refuse_duplicate(cells: Sequence[Cell], file: Path) -> None:
    *others, last = cells
    for other in others:
        if other.config == last.config:
            same = "stands in it twice" if other.label == last.label else f"is {other.label} again"
            raise ConfigError(f"{file}: the cell {last.label} {same}; remove one of them")
