"""How a run's numbers are shown to a person: one line, or a panel that fits its terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ppo.critic import HEALTHY, MOST_WEIGHT, SICK

Format = Callable[[float], str]

MAX_WIDTH = 120
_REWARD_PREFIX = "rollout/reward_"
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Status:
    """What the view knows at one moment.

    Attributes:
        title: the run.
        env_steps: done so far, of `total_timesteps`.
        fps: env steps per second of this process; None before it is known.
        elapsed: seconds of this process.
        metrics: finite values by tag; what has none is shown as a dash.
        returns: mean return over time, for the trend.
    """

    title: str
    env_steps: int
    total_timesteps: int
    fps: float | None
    elapsed: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    returns: Sequence[float] = ()

    @property
    def fraction(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        return min(1.0, self.env_steps / max(1, self.total_timesteps))

    @property
    def seconds_left(self) -> float | None:
        """Until the end at the present rate; None where that is not known."""
        left = max(0, self.total_timesteps - self.env_steps)
        return left / self.fps if self.fps else None


def number(value: float) -> str:
    """A number at a glance: three or four digits that matter."""
    size = abs(value)
    if size >= 1e7:
        return f"{value:.2e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 10:
        return f"{value:.2f}"
    if size >= 0.1:
        return f"{value:.3f}"
    return f"{value:.3g}" if size >= 0.001 or size == 0 else scientific(value)


def fixed(value: float) -> str:
    """Two decimals, for what has 1 as its measure."""
    return f"{value:.2f}"


def percent(value: float) -> str:
    """A share as a percentage."""
    return f"{100 * value:.0f}%" if value in {0, 1} or value >= 0.1 else f"{100 * value:.1f}%"


def scientific(value: float) -> str:
    """Like 3e-4, with the digits that are there, three at most."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def duration(seconds: float | None, *, dash: str = "-") -> str:
    """h:mm:ss or m:ss."""
    if seconds is None or not math.isfinite(seconds):
        return dash
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


@dataclass(frozen=True)
class Reading:
    """One labelled number."""

    label: str
    tag: str
    format: Format = number


# The order matters where there is little room: what comes first stays.
_EPISODES = (
    Reading("return", "rollout/ep_rew_mean"),
    Reading("length", "rollout/ep_len_mean"),
    Reading("terminated", "rollout/terminated_share", percent),
    Reading("time limit", "rollout/truncated_share", percent),
    Reading("evaluation", "eval/mean_reward"),
)
_CRITIC = (
    Reading("expl. var. λ", "train/explained_variance", fixed),
    Reading("expl. var. λ=1", "train/explained_variance_mc", fixed),
    Reading("bootstrap w.", "train/bootstrap_weight", fixed),
    Reading("value loss", "train/value_loss"),
    Reading("gradient norm", "train/grad_norm"),
    Reading("learning rate", "train/learning_rate", scientific),
)
_POLICY = (
    Reading("KL", "train/approx_kl"),
    Reading("clip fraction", "train/clip_fraction", percent),
    Reading("clip range", "train/clip_range"),
    Reading("std", "train/std"),
    Reading("policy loss", "train/policy_gradient_loss"),
    Reading("entropy loss", "train/entropy_loss"),
)
_COMPACT = (*_EPISODES[:2], *_CRITIC[:3], *_POLICY[:2], _POLICY[3], *_CRITIC[4:], _EPISODES[4])
_LINE = (
    Reading("return", "rollout/ep_rew_mean"),
    Reading("length", "rollout/ep_len_mean"),
    Reading("ev", "train/explained_variance", fixed),
    Reading("ev(lam=1)", "train/explained_variance_mc", fixed),
    Reading("weight", "train/bootstrap_weight", fixed),
    Reading("kl", "train/approx_kl"),
    Reading("clip", "train/clip_fraction", percent),
    Reading("std", "train/std"),
    Reading("lr", "train/learning_rate", scientific),
    Reading("grad", "train/grad_norm"),
)


def plain_line(status: Status) -> str:
    """The status as one line of ASCII."""
    parts = [
        f"{math.floor(100 * status.fraction):3d}%",
        f"{status.env_steps:,}/{status.total_timesteps:,} steps",
        f"{_rate(status, '-')}/s",
        f"{duration(status.seconds_left)} left",
    ]
    parts += [f"{r.label} {_value(r, status.metrics, '-')}" for r in _LINE]
    if "eval/mean_reward" in status.metrics:
        parts.append(f"eval {number(status.metrics['eval/mean_reward'])}")
    return "  ".join(parts)


@dataclass(frozen=True)
class Dashboard:
    """The status as a panel; it takes the form that fits the terminal it is drawn on."""

    status: Status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw at most as many lines as the terminal has."""
        width = min(options.max_width, MAX_WIDTH)
        ascii_only = not options.encoding.startswith("utf")
        head = _head(self.status, width, ascii_only)
        room = console.height - len(head) - 1
        yield from (console.render(Group(*head), options.update(width=width)))
        for body, height in _bodies(self.status, width, room, ascii_only):
            if height <= room:
                yield from console.render(body, options.update(width=width))
                return


def _head(status: Status, width: int, ascii_only: bool) -> list[RenderableType]:
    steps = f"{status.env_steps:,} of {status.total_timesteps:,} steps"
    rate = f"{_rate(status, _dash(ascii_only))} steps/s"
    left = f"{duration(status.seconds_left, dash=_dash(ascii_only))} left"
    elapsed = f"{duration(status.elapsed)} elapsed"
    share = f"{math.floor(1000 * status.fraction) / 10:.1f}%"
    bar = Table.grid(expand=True, padding=(0, 1, 0, 0))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", width=6)
    bar.add_row(
        ProgressBar(total=1.0, completed=status.fraction, complete_style="cyan"),
        Text(share, style="bold"),
    )
    facts = [steps, rate, left, elapsed]
    while len("   ".join(facts)) > width and len(facts) > 1:
        facts.pop()
    title = Text(status.title, style="bold", no_wrap=True, overflow="ellipsis")
    line = Text("   ".join(facts), no_wrap=True, overflow="ellipsis")
    line.highlight_regex(r"[\d,:]+(?= |$)", "cyan")
    return [title, bar, line]


def _bodies(
    status: Status, width: int, room: int, ascii_only: bool
) -> list[tuple[RenderableType, int]]:
    """What may stand below the bar, richest first, each with its height in lines."""
    groups: list[tuple[str, list[tuple[str, Text]]]] = [
        ("Episodes", _rows(_EPISODES, status, ascii_only)),
        ("Critic and optimiser", _rows(_CRITIC, status, ascii_only)),
        ("Policy", _rows(_POLICY, status, ascii_only)),
    ]
    if len(status.returns) > 1 and not ascii_only:
        trend = Text(sparkline(status.returns, 9), style="green")
        groups[0][1].insert(1, ("trend", trend))
    terms = _reward_terms(status, ascii_only)
    found: list[tuple[RenderableType, int]] = []
    if width >= 104 and terms:
        found.append(_panels([*groups, ("Reward per episode", terms[:6])], 4))
    if width >= 76:
        panels, height = _panels(groups, 3)
        if terms:
            found.append((Group(panels, _terms_line(terms)), height + 1))
        found.append((panels, height))
    elif width >= 50:
        found.append(_panels(groups, 2))
    compact = _rows(_COMPACT, status, ascii_only)[: max(0, room)]
    if compact:
        found.append((_grid(compact, expand=False), len(compact)))
    return found


def _panels(
    groups: Sequence[tuple[str, list[tuple[str, Text]]]], columns: int
) -> tuple[RenderableType, int]:
    grid = Table.grid(expand=True)
    for _ in range(columns):
        grid.add_column(ratio=1)
    total = 0
    for start in range(0, len(groups), columns):
        line = groups[start : start + columns]
        height = 2 + max(len(rows) for _, rows in line)
        total += height
        grid.add_row(
            *(
                Panel(
                    _grid(rows, expand=True),
                    title=Text(title, style="bold"),
                    title_align="left",
                    height=height,
                    border_style="bright_black",
                )
                for title, rows in line
            )
        )
    return grid, total


def _grid(rows: Sequence[tuple[str, Text]], *, expand: bool) -> Table:
    grid = Table.grid(expand=expand, padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis", style="bright_black", ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _rows(readings: Sequence[Reading], status: Status, ascii_only: bool) -> list[tuple[str, Text]]:
    return [
        (
            reading.label.replace("λ", "lam") if ascii_only else reading.label,
            Text(
                _value(reading, status.metrics, _dash(ascii_only)),
                style=_style(reading.tag, status.metrics),
            ),
        )
        for reading in readings
    ]


def _reward_terms(status: Status, ascii_only: bool) -> list[tuple[str, Text]]:
    tags = [tag for tag in status.metrics if tag.startswith(_REWARD_PREFIX)]
    readings = [Reading(tag.removeprefix(_REWARD_PREFIX), tag) for tag in tags]
    return _rows(readings, status, ascii_only)


def _terms_line(terms: Sequence[tuple[str, Text]]) -> Text:
    line = Text(" reward per episode  ", style="bright_black", no_wrap=True, overflow="ellipsis")
    for label, value in terms:
        line.append(f" {label} ", style="bright_black").append(value.plain, style="default")
        line.append(" ")
    return line


def _value(reading: Reading, metrics: Mapping[str, float], dash: str) -> str:
    value = metrics.get(reading.tag)
    return dash if value is None else reading.format(value)


def _style(tag: str, metrics: Mapping[str, float]) -> str:
    if tag == "rollout/ep_rew_mean":
        return "bold green"
    if tag != "train/explained_variance_mc" or tag not in metrics:
        return ""
    if metrics.get("train/bootstrap_weight", 0.0) > MOST_WEIGHT:
        return ""  # these returns are mostly the critic's own values: no verdict
    value = metrics[tag]
    return "green" if value > HEALTHY else "red" if value < SICK else "yellow"


def sparkline(values: Sequence[float], width: int) -> str:
    """Bars for the course of `values`, oldest first, at most `width` characters."""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [math.fsum(values[low:high]) / (high - low) for low, high in pairwise(edges)]
    low, high = min(means), max(means)
    spread = (high - low) or 1.0
    return "".join(_BARS[min(7, int(8 * (mean - low) / spread))] for mean in means)


def _rate(status: Status, dash: str) -> str:
    return dash if status.fps is None else f"{status.fps:,.0f}"


def _dash(ascii_only: bool) -> str:
    return "-" if ascii_only else "–"
