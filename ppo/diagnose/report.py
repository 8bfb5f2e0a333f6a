"""A trace as a table for people, as records for programs, and as CSV."""

import csv
import io
from dataclasses import asdict
from typing import Any

import numpy as np

from ppo.diagnose.checks import Check
from ppo.diagnose.rows import Rows
from ppo.diagnose.trace import Trace

# Rows shown before and after the end of an episode.
_BEFORE, _AFTER = 3, 1


def describe_trace(trace: Trace, *, most_rows: int) -> str:
    """Header, table of at most so many rows (0 for all), and the checks in words."""
    rows = trace.rows
    head = (
        f"{trace.source}\n{len(rows)} rows of {len(np.unique(rows.env))} environment(s),"
        f" gamma {trace.gamma:g}, lambda {', '.join(f'{each:g}' for each in trace.lambdas)}\n"
    )
    return "\n".join([head, *_table(trace, most_rows), "", *_checks(trace)])


def how_ended(rows: Rows, row: int) -> str:
    """How a row ended, in a word; terminated wins."""
    for name, flags in (
        ("terminated", rows.terminated),
        ("truncated", rows.truncated),
        ("cut", rows.cut),
    ):
        if flags[row]:
            return name
    return ""


def _columns(trace: Trace) -> dict[str, Any]:
    """Every column by its title, [R] each: numbers as floats, the others as text."""
    rows, several = trace.rows, len(trace.lambdas) > 1
    scaled = not np.array_equal(trace.rows.rewards, trace.rows.env_rewards)

    def titled(name: str, gae_lambda: float) -> str:
        return f"{name}({gae_lambda:g})" if several else name

    columns: dict[str, Any] = {
        "env": [str(env) for env in rows.env],
        "episode": [str(episode) for episode in rows.episode],
        "step": [str(step) for step in rows.step],
        **({"r(env)": rows.env_rewards} if scaled else {}),
        "r": rows.rewards,
        "V": rows.values,
        "V(next)": rows.next_values,
        "boot": ["1" if gate else "0" for gate in rows.bootstraps],
        "cont": ["1" if gate else "0" for gate in rows.continues],
        "end": [how_ended(rows, row) for row in range(len(rows))],
        "delta": trace.deltas,
    }
    for gae_lambda, result in zip(trace.lambdas, trace.estimates, strict=True):
        columns[titled("A", gae_lambda)] = result.advantages
        columns[titled("target", gae_lambda)] = result.targets
    columns |= {
        "= rewards": trace.parts.rewards,
        "+ values": trace.parts.bootstrapped,
        "- V": trace.parts.minus_value,
    }
    if rows.advantages is not None:
        columns["A came"] = rows.advantages
        columns["differs"] = rows.advantages - trace.estimates[0].advantages
    return columns


def _table(trace: Trace, most_rows: int) -> list[str]:
    columns = _columns(trace)
    shown = _selected(trace.rows, most_rows)
    cells = {
        title: [
            values[row] if isinstance(values[row], str) else _number(values[row]) for row in shown
        ]
        for title, values in columns.items()
    }
    widths = {title: max(len(title), *map(len, texts)) for title, texts in cells.items()}
    lines = ["  ".join(title.rjust(widths[title]) for title in columns)]
    for place, row in enumerate(shown):
        if place and row != shown[place - 1] + 1:
            lines.append(f"... {row - shown[place - 1] - 1} rows")
        lines.append("  ".join(texts[place].rjust(widths[title]) for title, texts in cells.items()))
    hidden = len(trace.rows) - 1 - shown[-1]
    return [*lines, f"... {hidden} rows"] if hidden else lines


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) >= 1e-12 else "0"


def _selected(rows: Rows, most: int) -> list[int]:
    """Indices of the rows to show: the first ones, and those around the ends of episodes."""
    size = len(rows)
    if most == 0 or size <= most:
        return list(range(size))
    wanted = dict.fromkeys(range(max(most // 3, 1)))
    episodes = np.flatnonzero(rows.terminated | rows.truncated).tolist()
    cuts = np.flatnonzero(rows.cut).tolist()
    for end in [*episodes, *cuts]:
        around = range(max(end - _BEFORE, 0), min(end + _AFTER + 1, size))
        if len(wanted | dict.fromkeys(around)) > most:
            break
        wanted |= dict.fromkeys(around)
    return sorted(int(row) for row in wanted)


def _checks(trace: Trace) -> list[str]:
    width = max(len(check.name) for check in trace.checks)
    return [f"{_mark(check):<6}{check.name:<{width}}  {check.words}" for check in trace.checks]


def _mark(check: Check) -> str:
    if check.passed is None:
        return "-"
    if check.passed:
        return "ok"
    return "FAULT" if check.of_contract else "look"


def as_record(trace: Trace) -> dict[str, Any]:
    """The whole trace as plain Python, for JSON."""
    rows = trace.rows
    columns = {
        "env": rows.env,
        "episode": rows.episode,
        "step": rows.step,
        "env_reward": rows.env_rewards,
        "reward": rows.rewards,
        "value": rows.values,
        "next_value": rows.next_values,
        "bootstrap": rows.bootstraps,
        "continue": rows.continues,
        "terminated": rows.terminated,
        "truncated": rows.truncated,
        "cut": rows.cut,
        "delta": trace.deltas,
        "rewards_addend": trace.parts.rewards,
        "bootstrapped_addend": trace.parts.bootstrapped,
        "value_addend": trace.parts.minus_value,
        "realised_return": trace.realised,
    }
    return {
        "source": trace.source,
        "gamma": trace.gamma,
        "rows": {name: values.tolist() for name, values in columns.items()},
        "estimates": [
            {
                "gae_lambda": gae_lambda,
                "advantage": result.advantages.tolist(),
                "target": result.targets.tolist(),
            }
            for gae_lambda, result in zip(trace.lambdas, trace.estimates, strict=True)
        ],
        "checks": [asdict(check) for check in trace.checks],
        "passed": trace.passed,
    }


def as_csv(trace: Trace) -> str:
    """The rows with the first lambda's advantages and targets; `ppo trace` reads it again."""
    rows, first = trace.rows, trace.estimates[0]
    columns = {
        "env": rows.env.tolist(),
        "episode": rows.episode.tolist(),
        "step": rows.step.tolist(),
        "env_reward": rows.env_rewards.tolist(),
        "reward": rows.rewards.tolist(),
        "value": rows.values.tolist(),
        "next_value": rows.next_values.tolist(),
        "terminated": rows.terminated.astype(int).tolist(),
        "truncated": rows.truncated.astype(int).tolist(),
        "cut": rows.cut.astype(int).tolist(),
        "delta": trace.deltas.tolist(),
        "advantage": first.advantages.tolist(),
        "target": first.targets.tolist(),
        "rewards_addend": trace.parts.rewards.tolist(),
        "bootstrapped_addend": trace.parts.bootstrapped.tolist(),
        "value_addend": trace.parts.minus_value.tolist(),
    }
    for gae_lambda, result in zip(trace.lambdas[1:], trace.estimates[1:], strict=True):
        columns[f"advantage_{gae_lambda:g}"] = result.advantages.tolist()
        columns[f"target_{gae_lambda:g}"] = result.targets.tolist()
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return stream.getvalue()
