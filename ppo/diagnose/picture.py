"""A trace as a picture: rewards, V against what was realised, residuals and advantages."""

import io
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ppo.diagnose.rows import Flags, Floats, Integers
from ppo.diagnose.trace import Trace

_DPI = 120
_MOST_ENVS = 3
_INK, _MUTED, _GRID = "#1f2933", "#66727f", "#e4e8ec"
_REWARD, _VALUE, _REALISED, _DELTA = "#2f855a", "#2563a8", "#d97706", "#9aa5b1"
_LAMBDAS = ("#7c4dab", "#2563a8", "#d97706", "#2f855a", "#c0392b", "#66727f")
_ENDS = {
    "terminated": ("#c0392b", "-"),
    "truncated": ("#d97706", "--"),
    "cut": ("#9aa5b1", ":"),
}


def picture_path(source: Path) -> Path:
    """Where the picture of a source belongs: in a run's folder, else beside the file."""
    if source.is_dir():
        return source / "trace.png"
    return source.with_suffix(".trace.png")


def picture_of(trace: Trace) -> bytes:
    """A PNG of a trace, with a column for each environment, three at the most."""
    envs = np.unique(trace.rows.env)[:_MOST_ENVS]
    figure = Figure(figsize=(max(9.0, 6.0 * len(envs)), 7.6), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(envs), sharex="col", squeeze=False)
    for column, env in enumerate(envs):
        _draw_env(trace, trace.rows.env == env, list(axes[:, column]))
        if len(envs) > 1:
            axes[2, column].set_xlabel(f"env step of environment {env}", fontsize=8, color=_MUTED)
    figure.suptitle(
        f"{trace.source}, gamma {trace.gamma:g}", fontsize=10, color=_INK, x=0.01, ha="left"
    )
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _draw_env(trace: Trace, chosen: Flags, axes: list[Axes]) -> None:
    rows, top, middle, bottom = trace.rows, *axes
    steps = rows.step[chosen]
    _line(top, steps, rows.rewards[chosen], _REWARD, "reward of the learner")
    _line(middle, steps, rows.values[chosen], _VALUE, "V(s)")
    _line(middle, steps, trace.realised[chosen], _REALISED, "realised discounted return")
    _line(bottom, steps, trace.deltas[chosen], _DELTA, "delta")
    for colour, gae_lambda, result in zip(_LAMBDAS, trace.lambdas, trace.estimates, strict=False):
        _line(bottom, steps, result.advantages[chosen], colour, f"A, lambda {gae_lambda:g}")
    bottom.axhline(0.0, color=_MUTED, linewidth=0.6)
    bottom.set_xlabel("env step", fontsize=8, color=_MUTED)
    for panel in axes:
        marks = _mark_ends(panel, trace, chosen)
        handles, labels = panel.get_legend_handles_labels()
        panel.legend(
            [*handles, *(marks.values() if panel is top else ())],
            [*labels, *(marks if panel is top else ())],
            fontsize=7,
            frameon=False,
            ncols=6,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.1,
        )
        panel.grid(color=_GRID, linewidth=0.6)
        panel.tick_params(labelsize=7, colors=_MUTED)
        panel.spines[["top", "right"]].set_visible(False)


def _line(axes: Axes, steps: Integers, values: Floats, colour: str, label: str) -> None:
    marker = "." if len(steps) <= 60 else ""
    axes.plot(steps, values, color=colour, linewidth=1.1, marker=marker, label=label)


def _mark_ends(axes: Axes, trace: Trace, chosen: Flags) -> dict[str, Line2D]:
    """A vertical line behind every row that is closed; one handle for each kind of end."""
    rows, seen = trace.rows, {}
    kinds = {
        "terminated": rows.terminated,
        "truncated": rows.truncated & ~rows.terminated,
        "cut": rows.cut & ~(rows.terminated | rows.truncated),
    }
    for name, flags in kinds.items():
        colour, style = _ENDS[name]
        for step in rows.step[flags & chosen]:
            seen[name] = axes.axvline(
                step + 0.5, color=colour, linestyle=style, linewidth=1.0, zorder=0.5
            )
    return seen
