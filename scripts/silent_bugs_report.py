"""docs/silent_bugs.md and its pictures, drawn from the kept runs of the laboratory."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "silent_bugs.md"
TEXT = ROOT / "scripts" / "texts" / "silent_bugs.md"
IMAGES = ROOT / "docs" / "images"
CORRECT, REPAIRED = "correct", "repaired half-way"
TIME_LIMIT = "time limit treated as termination"
RESET = "bootstrap from the reset observation"
COLUMNS = {
    "return": "return",
    "explained_variance": "expl. var. λ, as logged",
    "explained_variance_mc": "expl. var. λ = 1, as logged",
    "explained_variance_true": "expl. var. λ = 1, of the right returns",
    "mean_advantage": "mean advantage",
    "value_bias": "value bias",
    "value_error": "value error",
}
COLOURS = {
    CORRECT: "#1f2933",
    TIME_LIMIT: "#c0392b",
    "chain leaks across resets": "#2563a8",
    RESET: "#d97706",
    "only the advantage bootstraps": "#7c4dab",
    "last observation not normalised": "#2f855a",
}
SYMPTOMS = {
    TIME_LIMIT: "V is too small in size: it expects the world to end at the limit. The explained"
    " variance looks fine or better, because V and its targets are wrong together",
    "chain leaks across resets": "the last steps of an episode are credited with the next one's;"
    " noise, more of it where episodes are short",
    RESET: "V is pulled towards the value of a fresh start",
    "bootstrap from V(s_t)": "the last step of an episode is judged by where it began: one step of"
    " difference, once an episode",
    "only the advantage bootstraps": "the two answers disagree at every limit: the mean advantage"
    " leaves zero and stays away, since the critic learns something else",
    "only the target bootstraps": "the same, with the other sign; the critic is right",
    "advantages normalised over the rollout": "another algorithm rather than a fault, but numbers"
    " from the two cannot be compared",
    "reset rows trained on": "V of a last observation learns the value of the reset that follows,"
    " and every bootstrap at the limit then uses it",
    "last observation not normalised": "the critic is asked about a state far outside of all that"
    " it has seen, at every limit",
}

Row = Mapping[str, str]
Number = TypeVar("Number", float, "np.ndarray[tuple[int], np.dtype[np.float64]]")


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95% interval by Student's t."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Of one value for each seed, two at least."""
        mean, error = float(np.mean(values)), float(stats.sem(values))
        reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
        return cls(mean, mean - reach, mean + reach)

    def apart(self, other: "Interval") -> bool:
        """The two do not overlap."""
        return self.low > other.high or other.low > self.high

    def __str__(self) -> str:
        reach = self.high - self.mean
        digits = 0 if max(abs(self.mean), reach) >= 100 else 2
        return f"{self.mean:.{digits}f} ± {reach:.{digits}f}"


def write(runs: Path, curves: Path, metrics: Mapping[str, str], *, tasks: Sequence[str]) -> None:
    """Write the document and its pictures from the kept runs."""
    rows = _read(runs)
    tables = {task: _table_of(rows, task, metrics) for task in tasks}
    points = _read(curves)
    draw_curves(points, tasks, IMAGES / "silent_bugs.png")
    draw_repair(points, IMAGES / "silent_bugs_repair.png")
    DOCUMENT.write_text(_document(tables, metrics, rows, points), encoding="utf-8")
    print(f"{DOCUMENT.relative_to(ROOT)} and its pictures are written")


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def measured(rows: Sequence[Row], task: str, fault: str, metric: str) -> Interval | None:
    """The interval of a metric; None where there are fewer than two runs."""
    values = [float(r[metric]) for r in rows if r["task"] == task and r["fault"] == fault]
    return Interval.of(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Table:
    """One task's table, and the faults that its fixed metrics show and do not show."""

    text: str
    seen: list[str]
    unseen: list[str]


def _table_of(rows: Sequence[Row], task: str, metrics: Mapping[str, str]) -> Table:
    lines = [f"| | {' | '.join(COLUMNS.values())} | seen |", f"|---|{'---|' * (len(COLUMNS) + 1)}"]
    seen: list[str] = []
    unseen: list[str] = []
    for fault in (CORRECT, *metrics):
        cells, verdict = [], ""
        for metric in COLUMNS:
            interval, right = (measured(rows, task, one, metric) for one in (fault, CORRECT))
            if interval is None or right is None:
                break
            fixed = metric == metrics.get(fault)
            cells.append(f"**{interval}**" if fixed else str(interval))
            if fixed and fault != REPAIRED:
                apart = interval.apart(right)
                verdict = "yes" if apart else "no"
                (seen if apart else unseen).append(fault)
        if len(cells) == len(COLUMNS):
            lines.append(f"| {fault} | {' | '.join(cells)} | {verdict} |")
    return Table("\n".join(lines), seen, unseen)


def _document(
    tables: Mapping[str, Table],
    metrics: Mapping[str, str],
    rows: Sequence[Row],
    curves: Sequence[Row],
) -> str:
    symptoms = []
    for fault, text in SYMPTOMS.items():
        seen = "; ".join(task for task, table in tables.items() if fault in table.seen)
        metric = COLUMNS[metrics[fault]]
        symptoms.append(f"| {fault} | {text} | {metric} | {seen or 'nowhere'} |")
    tasks = [
        f"## {task}\n\n{table.text}\n\nSeen: {', '.join(table.seen) or 'none'}. Not to be seen:"
        f" {', '.join(table.unseen) or 'none'}.\n"
        for task, table in tables.items()
    ]
    return TEXT.read_text(encoding="utf-8").format(
        seeds=len({row["seed"] for row in rows}),
        symptoms="\n".join(symptoms),
        tasks="\n".join(tasks),
        repair=_repair_table(curves, list(tables)),
    )


def _repair_table(curves: Sequence[Row], tasks: Sequence[str]) -> str:
    """Explained variance as logged in the last tenth before the repair, and in that of the run."""

    def around(task: str, fault: str, end: float) -> str:
        total = max(int(row["env_steps"]) for row in curves if row["task"] == task)
        by_seed: dict[str, list[float]] = {}
        for row in curves:
            here = (end - 0.1) * total < int(row["env_steps"]) <= end * total
            if row["task"] == task and row["fault"] == fault and here:
                value = float(row["explained_variance_mc"])
                by_seed.setdefault(row["seed"], []).append(value)
        means = [float(np.mean(values)) for values in by_seed.values()]
        return str(Interval.of(means)) if len(means) > 1 else ""

    lines = [
        "| | before the repair | at the end | still broken at the end | correct at the end |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {task} | {around(task, REPAIRED, 0.5)} | {around(task, REPAIRED, 1.0)} |"
        f" {around(task, RESET, 1.0)} | {around(task, CORRECT, 1.0)} |"
        for task in tasks
    ]
    return "\n".join(lines)


def curve(
    rows: Sequence[Row], task: str, fault: str, quantity: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(env steps, mean, low, high) over the seeds, smoothed over five iterations."""
    by_seed: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["task"] == task and row["fault"] == fault:
            point = (int(row["env_steps"]), float(row[quantity]))
            by_seed.setdefault(row["seed"], []).append(point)
    if not by_seed:
        empty = np.array([])
        return empty, empty, empty, empty
    shortest = min(len(points) for points in by_seed.values())
    steps = np.array([at for at, _ in next(iter(by_seed.values()))][:shortest], dtype=float)
    values = np.array([[value for _, value in points[:shortest]] for points in by_seed.values()])
    values = np.array([_smooth(line) for line in values])
    mean = np.nanmean(values, axis=0)
    reach = np.zeros_like(mean)
    if len(values) > 1:
        reach = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values, axis=0, nan_policy="omit")
    return steps, mean, mean - reach, mean + reach


def _smooth(line: np.ndarray, width: int = 5) -> np.ndarray:
    """Means over the last few points."""
    return np.array([np.mean(line[max(0, k - width + 1) : k + 1]) for k in range(len(line))])


def draw_curves(rows: Sequence[Row], tasks: Sequence[str], path: Path) -> None:
    """Return, explained variance as logged, and mean advantage, on every task."""
    quantities = {
        "return": "return",
        "explained_variance_mc": "expl. var. λ = 1, as logged",
        "explained_variance_true": "expl. var. of the right returns",
        "mean_advantage": "mean advantage (std)",
    }
    figure = Figure(figsize=(4.0 * len(tasks), 2.6 * len(quantities)), layout="constrained")
    grid = figure.subplots(len(quantities), len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        for line, (quantity, label) in enumerate(quantities.items()):
            axis = grid[line][column]
            _lines(axis, rows, task, quantity, list(COLOURS), COLOURS)
            if line == 0:
                axis.set_title(task, fontsize=11)
            if column == 0:
                axis.set_ylabel(label)
            if quantity.startswith("explained"):
                axis.set_ylim(-0.5, 1.05)
            if line == len(quantities) - 1:
                axis.set_xlabel("env steps")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    _save(figure, path)


def draw_repair(rows: Sequence[Row], path: Path) -> None:
    """Explained variance as logged: correct, broken, and repaired half-way."""
    tasks = [
        task
        for task in dict.fromkeys(row["task"] for row in rows)
        if any(row["fault"] == REPAIRED and row["task"] == task for row in rows)
    ]
    colours = {CORRECT: COLOURS[CORRECT], RESET: COLOURS[RESET], REPAIRED: "#2563a8"}
    figure = Figure(figsize=(4.0 * len(tasks), 3.2), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        _lines(axis, rows, task, "explained_variance_mc", list(colours), colours)
        middle = max(int(row["env_steps"]) for row in rows if row["task"] == task) / 2
        axis.axvline(middle, color="#66727f", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_title(task, fontsize=11)
        axis.set_xlabel("env steps")
        axis.set_ylim(-0.5, 1.05)
    first = figure.axes[0]
    first.set_ylabel("expl. var. λ = 1, as logged")
    figure.legend(
        *first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    _save(figure, path)


def _lines(
    axis: Axes,
    rows: Sequence[Row],
    task: str,
    quantity: str,
    faults: Sequence[str],
    colours: Mapping[str, str],
) -> None:
    for fault in faults:
        steps, mean, low, high = curve(rows, task, fault, quantity)
        width = 2.2 if fault == CORRECT else 1.4
        axis.plot(steps, mean, color=colours[fault], linewidth=width, label=fault)
        axis.fill_between(steps, low, high, color=colours[fault], alpha=0.12, linewidth=0)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#e4e8ec", linewidth=0.7)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=110)
