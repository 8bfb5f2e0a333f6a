"""Runs grouped into tasks and cells, and cells compared with each other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppo.critic import HEALTHY
from ppo.sweep.collect import RunRecord
from ppo.sweep.flat import as_text, short_names
from ppo.sweep.references import REFERENCES
from ppo.sweep.statistics import (
    Interval,
    Summary,
    difference,
    iqm,
    iqm_of,
    mean_of,
    probability_of_improvement,
    seeds_to_separate,
    summarise,
)

LAMBDA, STANDARD_LAMBDA = "ppo.gae_lambda", 0.95


@dataclass(frozen=True, eq=False)
class CellResult:
    """The runs of one combination of values on one task.

    Attributes:
        label: for people.
        values: of the keys in which runs of this report differ.
        runs: by seed.
    """

    label: str
    values: Mapping[str, Any]
    runs: tuple[RunRecord, ...]

    @cached_property
    def finals(self) -> list[float]:
        """Final returns by seed."""
        return [run.final_return for run in self.runs]

    @cached_property
    def final(self) -> Summary:
        """Of the final returns."""
        return summarise(self.finals)

    @cached_property
    def evaluation(self) -> Summary:
        """Of the evaluations at the end."""
        return summarise([run.evaluation for run in self.runs])

    @cached_property
    def area(self) -> Summary:
        """Of the areas under the curves."""
        return summarise([run.area for run in self.runs])

    def median(self, quantity: str) -> float:
        """Median over seeds of a run's number; NaN where none has it."""
        values = np.array([getattr(run, quantity) for run in self.runs], dtype=np.float64)
        known = values[np.isfinite(values)]
        return float(np.median(known)) if len(known) else math.nan


@dataclass(frozen=True, eq=False)
class TaskResult:
    """All cells of one task, in the order of their values."""

    task: str
    cells: tuple[CellResult, ...]

    @cached_property
    def best(self) -> CellResult:
        """Of the highest mean final return."""
        return max(self.cells, key=lambda cell: cell.final.mean)

    @property
    def second(self) -> CellResult | None:
        """Of the next highest."""
        others = [cell for cell in self.cells if cell is not self.best]
        return max(others, key=lambda cell: cell.final.mean, default=None)

    @cached_property
    def like_best(self) -> list[CellResult]:
        """Those that cannot be told from the best: the interval of the difference holds 0."""
        gaps = {cell: difference(self.best.finals, cell.finals) for cell in self.cells}
        return [
            cell
            for cell, gap in gaps.items()
            if cell is not self.best and gap is not None and gap.holds(0.0)
        ]

    def seeds_needed(self) -> int | None:
        """Seeds that would separate the two best."""
        second = self.second
        return None if second is None else seeds_to_separate(self.best.finals, second.finals)

    def critic_allows(self) -> bool | None:
        """Half of the runs or more have a healthy critic; None where that cannot be told."""
        known = [r.explained_variance_mc for c in self.cells for r in c.runs if can_tell(r)]
        return float(np.median(known)) > HEALTHY if known else None


@dataclass(frozen=True)
class Improvement:
    """How likely a run of one cell beats one of another."""

    cell: str
    over: str
    probability: float
    interval: Interval | None


@dataclass(frozen=True)
class Aggregate:
    """One cell over all tasks with a reference, in normalised final returns.

    Attributes:
        label: of the cell.
        samples: of each task, by seed.
        mean: and the interval of it.
        iqm: and the interval of it.
    """

    label: str
    samples: tuple[tuple[float, ...], ...]
    mean: float
    mean_interval: Interval | None
    iqm: float
    iqm_interval: Interval | None


def can_tell(run: RunRecord) -> bool:
    """The run's critic can be judged."""
    return run.critic != "cannot tell" and math.isfinite(run.explained_variance_mc)


def group(runs: Sequence[RunRecord]) -> list[TaskResult]:
    """Tasks by name; their cells are told apart by the keys in which runs of one task differ."""
    tasks: dict[str, list[RunRecord]] = {}
    for run in runs:
        tasks.setdefault(run.task, []).append(run)
    keys = list(dict.fromkeys(key for each in tasks.values() for key in _differing(each)))
    short = short_names(keys)
    results = []
    for task in sorted(tasks):
        cells: dict[str, list[RunRecord]] = {}
        values: dict[str, dict[str, Any]] = {}
        for run in tasks[task]:
            own = {key: run.settings[key] for key in keys if key in run.settings}
            label = ", ".join(f"{short[k]}={as_text(v)}" for k, v in own.items()) or "all runs"
            cells.setdefault(label, []).append(run)
            values[label] = own
        found = [
            CellResult(label, values[label], tuple(sorted(each, key=lambda run: run.seed)))
            for label, each in cells.items()
        ]
        found.sort(key=lambda cell: [_order(value) for value in cell.values.values()])
        results.append(TaskResult(task, tuple(found)))
    return results


def improvements(tasks: Sequence[TaskResult]) -> list[Improvement]:
    """Each lambda over 0.95 with everything else the same, over all tasks that have both."""
    found = []
    for label in dict.fromkeys(cell.label for task in tasks for cell in task.cells):
        pairs, over = [], ""
        for task in tasks:
            cell = next((each for each in task.cells if each.label == label), None)
            standard = None if cell is None else _standard(task, cell)
            if cell is not None and standard is not None and standard is not cell:
                pairs.append((cell.finals, standard.finals))
                over = standard.label
        if pairs:
            found.append(Improvement(label, over, *probability_of_improvement(pairs)))
    return found


def aggregates(tasks: Sequence[TaskResult]) -> list[Aggregate]:
    """Cells that stand on all tasks with a reference; none where there is one such task only."""
    known = [task for task in tasks if task.task in REFERENCES]
    if len(known) < 2:
        return []
    found = []
    for label in [cell.label for cell in known[0].cells]:
        cells = [cell for task in known for cell in task.cells if cell.label == label]
        if len(cells) < len(known):
            continue
        samples = tuple(
            tuple(REFERENCES[task.task].normalise(score) for score in cell.finals)
            for task, cell in zip(known, cells, strict=True)
        )
        scores = np.concatenate(samples)
        found.append(
            Aggregate(
                label,
                samples,
                float(scores.mean()),
                mean_of(samples),
                float(iqm(scores)),
                iqm_of(samples),
            )
        )
    return found


def _standard(task: TaskResult, cell: CellResult) -> CellResult | None:
    """The cell that differs in lambda = 0.95 alone, or not at all."""
    if LAMBDA not in cell.values:
        return None
    wanted = {**cell.values, LAMBDA: STANDARD_LAMBDA}
    return next((each for each in task.cells if dict(each.values) == wanted), None)


def _differing(runs: Sequence[RunRecord]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, and before everything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, str(value))
