"""Pictures of a report, as PNG files in memory."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ppo.sweep.collect import BINS
from ppo.sweep.compare import Aggregate, CellResult, Improvement, TaskResult
from ppo.sweep.statistics import curve_interval, performance_profile

_INK, _MUTED, _GRID = "#1f2933", "#66727f", "#e4e8ec"
_COLOURS = ("#2563a8", "#d97706", "#2f855a", "#c0392b", "#7c4dab", "#0f766e", "#a16207", "#475569")
_DPI = 110


def curves(task: TaskResult) -> bytes:
    """Learning curves: mean over seeds, and its 95% interval; single runs below 5 seeds."""
    figure = Figure(figsize=(8.6, 4.4), layout="constrained")
    axis = figure.subplots()
    for place, cell in enumerate(task.cells):
        _curve(axis, cell, _colour(place))
    enough = curve_interval([run.curve for run in task.cells[0].runs]) is not None
    _dress(axis, f"{task.task}: " + ("mean and 95% interval" if enough else "mean and single runs"))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_xlim(left=0)
    axis.set_xlabel("env steps", color=_MUTED)
    axis.set_ylabel("episode return (stochastic policy)", color=_INK)
    _legend(figure, axis, len(task.cells))
    return _png(figure)


def finals(task: TaskResult) -> bytes:
    """Final return of every run as a dot, mean with interval beside it."""
    figure = Figure(figsize=(8.6, 1.1 + 0.42 * len(task.cells)), layout="constrained")
    axis = figure.subplots()
    for place, cell in enumerate(task.cells):
        axis.plot(
            cell.finals, [place] * len(cell.finals), "o", color=_colour(place), alpha=0.4, ms=4
        )
        _whisker(axis, place + 0.22, cell.final.mean, cell.final.interval, _colour(place))
    _dress(axis, f"{task.task}: final return of each run, and the mean with its 95% interval")
    _name_rows(axis, [cell.label for cell in task.cells])
    return _png(figure)


def improvement(found: Sequence[Improvement], cells: Sequence[str]) -> bytes:
    """Probability of improvement over lambda = 0.95; cells have the colours of the curves."""
    figure = Figure(figsize=(8.6, 1.1 + 0.42 * len(found)), layout="constrained")
    axis = figure.subplots()
    for place, each in enumerate(found):
        colour = _colour(cells.index(each.cell))
        _whisker(axis, place, each.probability, each.interval, colour)
    axis.axvline(0.5, color=_MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axis.set_xlim(-0.03, 1.03)
    _dress(axis, "Probability of improvement over lambda = 0.95")
    _name_rows(axis, [each.cell for each in found])
    return _png(figure)


def profiles(found: Sequence[Aggregate]) -> bytes:
    """Share of runs above each normalised return, mean over tasks."""
    scores = np.concatenate([sample for each in found for sample in each.samples])
    marks = np.linspace(min(0.0, float(scores.min())), float(scores.max()) * 1.05, 200)
    figure = Figure(figsize=(8.6, 4.0), layout="constrained")
    axis = figure.subplots()
    for place, each in enumerate(found):
        shares = performance_profile(each.samples, marks)
        axis.plot(marks, shares, color=_colour(place), linewidth=1.8, label=each.label)
    _dress(axis, "Performance profile")
    axis.set_xlabel("normalised final return", color=_MUTED)
    axis.set_ylabel("share of runs above it", color=_INK)
    _legend(figure, axis, len(found))
    return _png(figure)


def _curve(axis: Axes, cell: CellResult, colour: str) -> None:
    lines = [run.curve for run in cell.runs]
    x = (np.arange(BINS) + 1) * cell.runs[0].env_steps / BINS
    axis.plot(x, np.mean(lines, axis=0), color=colour, linewidth=1.8, label=cell.label)
    interval = curve_interval(lines)
    if interval is None:
        for line in lines:
            axis.plot(x, line, color=colour, linewidth=0.7, alpha=0.4)
    else:
        axis.fill_between(x, *interval, color=colour, alpha=0.15, linewidth=0)


def _whisker(
    axis: Axes, y: float, middle: float, interval: tuple[float, float] | None, colour: str
) -> None:
    if interval is not None:
        axis.plot(interval, [y, y], color=colour, linewidth=2)
    axis.plot([middle], [y], "D", color=colour, ms=5)


def _name_rows(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)


def _legend(figure: Figure, axis: Axes, count: int) -> None:
    figure.legend(
        *axis.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(count, 4),
        frameon=False,
        fontsize=9,
    )


def _dress(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, color=_INK)
    axis.grid(visible=True, color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_MUTED, labelsize=9, length=0)
    axis.spines[["top", "right"]].set_visible(False)


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def _png(figure: Figure) -> bytes:
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(image, dpi=_DPI, format="png")
    return image.getvalue()
