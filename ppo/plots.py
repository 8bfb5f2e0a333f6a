"""learning_curve.png: how a run went, drawn from what it logged."""

import io
import logging
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from ppo.appendfile import replace_file, writing
from ppo.critic import HEALTHY, SICK, WINDOW, judge
from ppo.csvlog import KEY, Row, number_in, read_table
from ppo.errors import UserError
from ppo.logger import EPISODES_FILE, PROGRESS_FILE, critic_readings

# Its notes on font caches are nothing that a person who trains can act on.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

CURVE_FILE = "learning_curve.png"
_DPI = 120
_WINDOW = 100  # episodes in the running mean
_MOST_DOTS = 20_000
_INK, _MUTED, _GRID = "#1f2933", "#66727f", "#e4e8ec"
_BLUE, _ORANGE, _GREEN, _VIOLET, _RED = "#2563a8", "#d97706", "#2f855a", "#7c4dab", "#c0392b"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One logged quantity: x in global env steps, both [K], finite."""

    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.x)


def learning_curve(run_dir: Path) -> Path:
    """Draw the run's learning curve beside its logs.

    Shows episode returns with their running mean and the evaluations; below them both explained
    variances, the episode length, KL and clip fraction. What was not logged stays empty.

    Args:
        run_dir: a run's folder, finished or not.

    Returns:
        The path of the PNG.

    Raises:
        UserError: if the folder is not there, or the file cannot be written.
    """
    if not run_dir.is_dir():
        raise UserError(f"there is no run at {run_dir}; give the folder of a run")
    episodes = read_table(run_dir / EPISODES_FILE).rows
    progress = read_table(run_dir / PROGRESS_FILE).rows
    path = run_dir / CURVE_FILE
    image = io.BytesIO()
    _figure(run_dir.resolve().name, episodes, progress).savefig(image, format="png")
    with writing(path):
        replace_file(path, image.getvalue())
    return path


def series(rows: Sequence[Row], column: str) -> Series:
    """The finite values of one column."""
    points = [(float(row[KEY]), number_in(row.get(column))) for row in rows]
    kept = np.array([point for point in points if math.isfinite(point[1])], dtype=np.float64)
    kept = kept.reshape(-1, 2)
    return Series(kept[:, 0], kept[:, 1])


def running_mean(values: Array, window: int) -> Array:
    """Mean of the last `window` values at each place, of fewer at the beginning, [K]."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    means: Array = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def running_median(values: Array, window: int) -> Array:
    """Median of the last `window` values at each place, of fewer at the beginning, [K]."""
    ends = range(1, len(values) + 1)
    return np.array([np.median(values[max(0, end - window) : end]) for end in ends])


def _figure(title: str, episodes: Sequence[Row], progress: Sequence[Row]) -> Figure:
    layout = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
    figure = Figure(figsize=(10, 9), dpi=_DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic(
        [["return", "return"], ["critic", "length"], ["kl", "clip"]],
        height_ratios=[2.1, 1.15, 0.9],
    )
    end = max([1.0, *(float(row[KEY]) for row in [*episodes, *progress])])
    _draw_returns(axes["return"], episodes, progress)
    _draw_critic(axes["critic"], progress)
    _draw_length(axes["length"], episodes)
    _draw_line(axes["kl"], "KL per update", series(progress, "train/approx_kl"), _RED)
    _draw_line(axes["clip"], "Clip fraction", series(progress, "train/clip_fraction"), _ORANGE)
    axes["clip"].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    for axis in axes.values():
        _finish(axis, end)
    axes["return"].set_title(title, loc="left", fontsize=14, fontweight="bold", color=_INK, pad=12)
    for name in ("kl", "clip"):
        axes[name].set_xlabel("env steps", color=_MUTED, fontsize=9)
    return figure


def _draw_returns(axis: Axes, episodes: Sequence[Row], progress: Sequence[Row]) -> None:
    returns = series(episodes, "return")
    _scatter_with_mean(axis, returns, _BLUE)
    evaluation = series(progress, "eval/mean_reward")
    if len(evaluation):
        spread = dict(zip(*_columns(series(progress, "eval/std_reward")), strict=True))
        axis.errorbar(
            evaluation.x,
            evaluation.y,
            yerr=[spread.get(x, 0.0) for x in evaluation.x],
            color=_ORANGE,
            marker="o",
            markersize=5,
            linewidth=1.2,
            elinewidth=1.2,
            capsize=3,
            label="evaluation, mean ± std",
            zorder=4,
        )
    axis.set_ylabel("episode return", color=_INK, fontsize=11)
    if len(returns) or len(evaluation):
        _legend(axis, "upper left")
    else:
        _nothing(axis, "no episode has ended yet")


def _draw_critic(axis: Axes, progress: Sequence[Row]) -> None:
    lam = series(progress, "train/explained_variance")
    full = series(progress, "train/explained_variance_mc")
    _head(axis, f"Explained variance of the critic{_critic_note(progress)}")
    if not len(lam) and not len(full):
        _nothing(axis, "nothing logged yet")
        return
    for line, colour, label in ((lam, _VIOLET, "λ targets"), (full, _GREEN, "λ = 1 returns")):
        axis.plot(line.x, line.y, color=colour, linewidth=0.8, alpha=0.3)
        axis.plot(
            line.x,
            running_median(line.y, WINDOW),
            color=colour,
            linewidth=1.8,
            label=label,
            marker=_lone_marker(line),
        )
    for mark in (SICK, HEALTHY):
        axis.axhline(mark, color=_MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axis.annotate(
            f"{mark}",
            (1.0, mark),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=_MUTED,
        )
    axis.set_ylim(max(-1.0, min([0.0, *lam.y, *full.y]) - 0.05), 1.05)
    _legend(axis, "lower right")


def _critic_note(progress: Sequence[Row]) -> str:
    """The number that a verdict rests on, or why there is none."""
    readings = critic_readings(progress)
    if not readings:
        return ""
    verdict = judge(readings)
    if verdict.kind == "cannot tell":
        return " (cannot tell)"
    return f" ({verdict.kind}: recent median {verdict.explained_variance:.2f})"


def _draw_length(axis: Axes, episodes: Sequence[Row]) -> None:
    lengths = series(episodes, "length")
    fallen = [row.get("ended") == "terminated" for row in episodes]
    title = "Episode length"
    if fallen:
        recent = fallen[-_WINDOW:]
        title += f" ({100 * statistics.fmean(recent):.0f}% of {_recent(len(recent))} terminated)"
    _head(axis, title)
    _scatter_with_mean(axis, lengths, _BLUE)
    if len(lengths):
        axis.set_ylim(0, 1.08 * float(lengths.y.max()))
    else:
        _nothing(axis, "no episode has ended yet")


def _draw_line(axis: Axes, title: str, line: Series, colour: str) -> None:
    _head(axis, title)
    axis.plot(line.x, line.y, color=colour, linewidth=1.2, marker=_lone_marker(line))
    if len(line):
        axis.set_ylim(bottom=min(0.0, float(line.y.min())))
    else:
        _nothing(axis, "nothing logged yet")


def _scatter_with_mean(axis: Axes, points: Series, colour: str) -> None:
    """Every value as a faint dot, and the mean of the last 100 as a line."""
    if not len(points):
        return
    stride = math.ceil(len(points) / _MOST_DOTS)
    alpha = float(np.clip(60 / len(points) ** 0.75, 0.08, 0.45))
    axis.plot(
        points.x[::stride],
        points.y[::stride],
        linestyle="none",
        marker="o",
        markersize=3.2,
        markeredgewidth=0,
        color=colour,
        alpha=alpha,
        label="one episode",
        zorder=2,
    )
    mean = running_mean(points.y, _WINDOW)
    label = f"mean of {_recent(len(points))}: {mean[-1]:,.5g}"
    # Several episodes may end at one env step: the line goes through the last of them.
    last = np.append(points.x[1:] != points.x[:-1], True)
    axis.plot(points.x[last], mean[last], color=colour, linewidth=2, label=label, zorder=3)


def _recent(count: int) -> str:
    return f"the last {_WINDOW}" if count >= _WINDOW else f"all {count}"


def _finish(axis: Axes, end: float) -> None:
    axis.set_xlim(0, 1.015 * end)  # room for a marker at the very end
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.grid(visible=True, color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_MUTED, labelsize=9, length=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#c3cad1")


def _head(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, color=_INK)


def _legend(axis: Axes, place: Literal["upper left", "lower right"]) -> None:
    legend = axis.legend(loc=place, fontsize=9, frameon=True, framealpha=0.85, edgecolor="none")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _nothing(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=_MUTED)
    axis.yaxis.set_major_locator(NullLocator())


def _lone_marker(line: Series) -> str:
    """A line of one point would show nothing."""
    return "o" if len(line) == 1 else ""


def _columns(values: Series) -> tuple[list[float], list[float]]:
    return values.x.tolist(), values.y.tolist()
