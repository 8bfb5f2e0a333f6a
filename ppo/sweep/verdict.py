"""What a comparison of cells says, in sentences: the critic first, then lambda, then its limits."""

import math
from collections.abc import Sequence

from ppo.critic import HEALTHY
from ppo.sweep.compare import CellResult, TaskResult, can_tell
from ppo.sweep.statistics import FEWEST_SEEDS, MOST_SEEDS


def verdict(task: TaskResult) -> list[str]:
    """Sentences on one task."""
    lines = [_critic(task)]
    if len(task.cells) == 1:
        return lines
    fewest = min(len(cell.runs) for cell in task.cells)
    best = task.best
    if fewest < FEWEST_SEEDS:
        lines.append(
            f"**Too few seeds to say more.** {best.label} has the highest mean,"
            f" {number(best.final.mean)}, but the smallest cell has {_runs(fewest)}; intervals need"
            f" {FEWEST_SEEDS}."
        )
    else:
        lines += [_best(task), *_worse(task)]
    lines.append(_seeds(task))
    return lines


def number(value: float) -> str:
    """A return or a share at a glance."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def _critic(task: TaskResult) -> str:
    runs = [run for cell in task.cells for run in cell.runs]
    judged = [run for run in runs if can_tell(run)]
    if not judged:
        return (
            "**The critic cannot be judged**, for the lambda = 1 returns rest on bootstrapped"
            " values or have no spread: read what follows with that in mind."
        )
    healthy = sum(run.explained_variance_mc > HEALTHY for run in judged)
    poor = [cell for cell in task.cells if _poor(cell)]
    count = (
        f"in {healthy} of {len(judged)} runs V explains more than {HEALTHY:g} of the variance of"
        " the lambda = 1 returns"
    )
    if not task.critic_allows():
        return (
            f"**Fix the critic first**: {count}. Advantages made with such values are mostly"
            " noise or the critic's own error, and what follows is about both at once: check the"
            " bootstrap (`ppo trace`), the reward's scale, then give the critic more."
        )
    sentence = f"**The critic allows the question**: {count}"
    if poor:
        sentence += f"; not those of {_listed(poor)}, whose critic is part of what is compared"
    return f"{sentence}."


def _poor(cell: CellResult) -> bool:
    known = [run.explained_variance_mc for run in cell.runs if can_tell(run)]
    return bool(known) and sum(value > HEALTHY for value in known) * 2 <= len(known)


def _best(task: TaskResult) -> str:
    best, alike = task.best, task.like_best
    interval = best.final.interval
    spread = "" if interval is None else f" [{number(interval.low)}, {number(interval.high)}]"
    head = f"{best.label} has the highest mean final return, {number(best.final.mean)}{spread}"
    if not alike:
        return (
            f"**{best.label} is best** at this budget: {head}, and its difference from each of the"
            " others is clear of 0 (Welch's 95% interval)."
        )
    return (
        f"**{_listed([best, *alike])} cannot be told apart** at this budget: {head}, and Welch's"
        " 95% intervals of the differences hold 0."
    )


def _worse(task: TaskResult) -> list[str]:
    alike = {task.best, *task.like_best}
    worse = [cell for cell in task.cells if cell not in alike]
    if not worse:
        return []
    gaps = ", ".join(
        f"{cell.label} by {number(task.best.final.mean - cell.final.mean)}" for cell in worse
    )
    return [f"**Worse than the best**: {gaps}."]


def _seeds(task: TaskResult) -> str:
    second, needed = task.second, task.seeds_needed()
    if second is None:
        return ""
    pair = f"{task.best.label} from {second.label}"
    if needed is None:
        return f"To separate {pair}, more than {MOST_SEEDS:,} seeds, or it cannot be said."
    return (
        f"To separate {pair}, about {needed:,} seeds each would be needed, if these means and"
        " spreads were the truth (t-test, 5%, power 0.8)."
    )


def _listed(cells: Sequence[CellResult]) -> str:
    labels = [cell.label for cell in cells]
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
