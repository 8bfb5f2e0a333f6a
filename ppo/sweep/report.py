"""The report on a set of runs: report.md, report.html, results.csv and pictures."""

import base64
import csv
import html
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import markdown

from ppo.appendfile import replace_file
from ppo.errors import UserError
from ppo.sweep import pictures
from ppo.sweep.collect import Collected, RunRecord, collect
from ppo.sweep.compare import (
    Aggregate,
    CellResult,
    Improvement,
    TaskResult,
    aggregates,
    group,
    improvements,
)
from ppo.sweep.flat import as_text
from ppo.sweep.references import REFERENCES
from ppo.sweep.statistics import FEWEST_SEEDS, Interval, Summary
from ppo.sweep.verdict import number, verdict

IMAGES = "images"
# After the settings in which runs differ; what depends on the machine's speed comes last.
_RESULTS = (
    "seed",
    "env_steps",
    "final_return",
    "evaluation",
    "area",
    "explained_variance",
    "explained_variance_mc",
    "bootstrap_weight",
    "critic",
    "terminated",
    "episodes",
    "steps_per_s",
)


@dataclass(frozen=True)
class Report:
    """What is known of a set of runs, ready to be written.

    Attributes:
        title: of the report.
        collected: runs, and folders that are not used.
        tasks: the same runs by task and cell.
        improvements: of each lambda over 0.95.
        aggregates: over tasks; empty for one task.
    """

    title: str
    collected: Collected
    tasks: tuple[TaskResult, ...]
    improvements: tuple[Improvement, ...]
    aggregates: tuple[Aggregate, ...]

    def verdicts(self) -> dict[str, list[str]]:
        """Sentences by task."""
        return {task.task: verdict(task) for task in self.tasks}


def make_report(folders: Sequence[Path], *, title: str | None = None) -> Report:
    """Read the runs in folders and compare them.

    Raises:
        UserError: if there is no finished run.
    """
    collected = collect(folders)
    tasks = tuple(group(collected.runs))
    name = title or ", ".join(folder.resolve().name for folder in folders)
    return Report(name, collected, tasks, tuple(improvements(tasks)), tuple(aggregates(tasks)))


def write_report(report: Report, folder: Path) -> Path:
    """Write all of it; returns report.md.

    Raises:
        UserError: if a file cannot be written.
    """
    images = dict(_images(report))
    text = "\n".join(_page(report, list(images))) + "\n"
    try:
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
        for name, image in images.items():
            replace_file(folder / IMAGES / name, image)
        replace_file(folder / "results.csv", results_csv(report.tasks).encode())
        replace_file(folder / "report.html", as_html(text, report.title, images).encode())
        replace_file(folder / "report.md", text.encode())
    except OSError as error:
        raise UserError(f"{folder}: the report cannot be written: {error.strerror}") from error
    return folder / "report.md"


def results_csv(tasks: Sequence[TaskResult]) -> str:
    """One line for every run; the same runs give the same text, but for the last column."""
    keys = list(dict.fromkeys(k for task in tasks for cell in task.cells for k in cell.values))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", *keys, *_RESULTS])
    for task in tasks:
        for cell in task.cells:
            own = [as_text(cell.values[key]) if key in cell.values else "" for key in keys]
            writer.writerows(
                [task.task, *own, *(_cell(run, column) for column in _RESULTS)] for run in cell.runs
            )
    return text.getvalue()


def as_html(text: str, title: str, images: Mapping[str, bytes]) -> str:
    """The Markdown page as one file that needs no other; pictures are in it."""
    body = markdown.markdown(text, extensions=["tables"])

    def inline(match: re.Match[str]) -> str:
        encoded = base64.b64encode(images[match[1]]).decode()
        return f'src="data:image/png;base64,{encoded}"'

    body = re.sub(rf'src="{IMAGES}/([^"]+)"', inline, body)
    return _HTML.format(title=html.escape(title), body=body)


def _cell(run: RunRecord, column: str) -> str:
    value = getattr(run, column)
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)


def _images(report: Report) -> Iterator[tuple[str, bytes]]:
    for task in report.tasks:
        stem = re.sub(r"[^\w.-]+", "-", task.task)
        yield f"{stem}_curves.png", pictures.curves(task)
        yield f"{stem}_finals.png", pictures.finals(task)
    if report.improvements:
        cells = list(dict.fromkeys(cell.label for task in report.tasks for cell in task.cells))
        yield "improvement.png", pictures.improvement(report.improvements, cells)
    if report.aggregates:
        yield "profiles.png", pictures.profiles(report.aggregates)


def _page(report: Report, images: Sequence[str]) -> Iterator[str]:
    runs = report.collected.runs
    yield f"# {report.title}\n"
    yield (
        f"{len(runs)} finished runs on {len(report.tasks)} task(s). A final return is the mean over"
        " the training episodes (stochastic policy) that ended in the last tenth of a run; never a"
        " maximum. Intervals are 95%, by percentile bootstrap over seeds"
        f"{' within each task' if report.aggregates else ''}; there are none below"
        f" {FEWEST_SEEDS} seeds.\n"
    )
    for name, sentences in report.verdicts().items():
        yield f"## Verdict: {name}\n"
        yield from (f"{sentence}\n" for sentence in sentences if sentence)
    pictured = iter(images)
    for task in report.tasks:
        yield f"## {task.task}\n"
        yield f"![Learning curves]({IMAGES}/{next(pictured)})\n"
        yield from _tables(task)
        yield f"![Final returns]({IMAGES}/{next(pictured)})\n"
    if report.improvements:
        yield "## Improvement over lambda = 0.95\n"
        yield (
            "How likely a run with this lambda ends higher than one with 0.95; 0.5 is a draw. An"
            " interval that holds 0.5 settles nothing.\n"
        )
        yield from _improvement_table(report.improvements)
        yield f"![Probability of improvement]({IMAGES}/{next(pictured)})\n"
    if report.aggregates:
        yield from _across(report, next(pictured))
    if report.collected.left_out:
        yield "## Not used\n"
        for path, reason in report.collected.left_out.items():
            yield f"- `{path.name}`: {reason}"
        yield ""
    yield "Every run is in [results.csv](results.csv)."


def _tables(task: TaskResult) -> Iterator[str]:
    yield from _table(
        (
            "cell",
            "runs",
            "final return, mean",
            "std",
            "IQM",
            "95%",
            "evaluation, mean",
            "std",
            "IQM",
            "95%",
            "area, mean",
        ),
        [
            (
                cell.label,
                str(len(cell.runs)),
                *_summary(cell.final),
                *_summary(cell.evaluation),
                number(cell.area.mean),
            )
            for cell in task.cells
        ],
    )
    yield (
        "The evaluation is that at the end, by the config (deterministic by default). The area"
        " under the learning curve is divided by the budget: a mean return.\n"
    )
    yield from _table(
        (
            "cell",
            "expl. var. λ",
            "expl. var. λ = 1",
            "bootstrap weight",
            "critics",
            "episodes of the last tenth",
            "terminated",
            "time limit",
            "env steps/s",
        ),
        [_health(cell) for cell in task.cells],
    )
    yield "Medians over seeds of each run's median over the last 20 iterations.\n"


def _health(cell: CellResult) -> tuple[str, ...]:
    kinds = [run.critic for run in cell.runs]
    critics = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(sorted(kinds)))
    episodes = sum(run.episodes for run in cell.runs)
    fallen = sum(run.terminated * run.episodes for run in cell.runs) / episodes
    return (
        cell.label,
        number(cell.median("explained_variance")),
        number(cell.median("explained_variance_mc")),
        number(cell.median("bootstrap_weight")),
        critics,
        f"{episodes:,}",
        f"{fallen:.0%}",
        f"{1 - fallen:.0%}",
        number(cell.median("steps_per_s")),
    )


def _improvement_table(found: Sequence[Improvement]) -> Iterator[str]:
    yield from _table(
        ("cell", "over", "probability", "95%"),
        [(e.cell, e.over, f"{e.probability:.2f}", _interval(e.interval)) for e in found],
    )


def _across(report: Report, image: str) -> Iterator[str]:
    yield "## Across tasks\n"
    yield (
        "Final returns on a scale that is the same for all cells: 0 is the first reference, 1 the"
        " second.\n"
    )
    known = [task.task for task in report.tasks if task.task in REFERENCES]
    yield from _table(
        ("task", "0: random actions", "1: published", "source"),
        [
            (
                task,
                f"{REFERENCES[task].random:g}",
                f"{REFERENCES[task].published:g}",
                REFERENCES[task].source,
            )
            for task in known
        ],
    )
    without = [task.task for task in report.tasks if task.task not in REFERENCES]
    if without:
        yield f"Left out for want of a reference: {', '.join(without)}.\n"
    yield from _table(
        ("cell", "mean", "95%", "IQM", "95%"),
        [
            (
                each.label,
                f"{each.mean:.3f}",
                _interval(each.mean_interval),
                f"{each.iqm:.3f}",
                _interval(each.iqm_interval),
            )
            for each in report.aggregates
        ],
    )
    yield f"![Performance profiles]({IMAGES}/{image})\n"


def _summary(summary: Summary) -> tuple[str, ...]:
    return (
        number(summary.mean),
        number(summary.std),
        number(summary.iqm),
        _interval(summary.interval),
    )


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"[{number(interval.low)}, {number(interval.high)}]"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|---|{'---:|' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 70rem; margin: 2rem auto;
padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }}
th, td {{ padding: .25rem .7rem; border-bottom: 1px solid #e4e8ec }}
img {{ max-width: 100% }} code {{ background: #f3f5f7; padding: 0 .2rem }}
</style></head><body>
{body}
</body></html>
"""
