"""Known ways to get an advantage wrong, and which of them a column of advantages looks like."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ppo.diagnose.rows import Flags, Floats, Rows, backward_sums

# Advantages that were written with few digits still count as the same.
TOLERANCE = 1e-4


class Gates(NamedTuple):
    """What an estimator does at every row, [R] each.

    Attributes:
        next_values: V that the row bootstraps from, 0 where it does not.
        continues: the chain goes on into the row below.
    """

    next_values: Floats
    continues: Flags


@dataclass(frozen=True)
class Fault:
    """A known way to get it wrong.

    Attributes:
        name: a few words.
        harm: what it does to training.
        gates: what such an estimator does.
    """

    name: str
    harm: str
    gates: Callable[[Rows], Gates]


def correct(rows: Rows) -> Gates:
    """The contract."""
    return Gates(np.where(rows.bootstraps, rows.next_values, 0.0), rows.continues)


def _time_limit_as_termination(rows: Rows) -> Gates:
    ended = rows.terminated | rows.truncated
    return Gates(np.where(ended, 0.0, rows.next_values), rows.continues)


def _end_without_bootstrap(rows: Rows) -> Gates:
    gates = correct(rows)
    return gates._replace(next_values=np.where(rows.cut, 0.0, gates.next_values))


def _chain_leaks(rows: Rows) -> Gates:
    """Truncations close nothing, and the row bootstraps from its neighbour in memory."""
    leaks = rows.truncated & ~rows.terminated & ~_last_of_env(rows)
    gates = correct(rows)
    return Gates(np.where(leaks, rows.successor_values, gates.next_values), rows.continues | leaks)


def _only_the_chain_leaks(rows: Rows) -> Gates:
    """The bootstrap is right, but the next episode's advantage is added to it."""
    ended = (rows.terminated | rows.truncated) & ~_last_of_env(rows)
    return Gates(correct(rows).next_values, rows.continues | ended)


def _nothing_closes(rows: Rows) -> Gates:
    """No end of an episode is heeded: one long chain of neighbours in memory."""
    ended = (rows.terminated | rows.truncated) & ~_last_of_env(rows)
    gates = correct(rows)
    return Gates(np.where(ended, rows.successor_values, gates.next_values), rows.continues | ended)


def _bootstraps_current(rows: Rows) -> Gates:
    return _at_truncations(rows, rows.values)


def _bootstraps_reset(rows: Rows) -> Gates:
    return _at_truncations(rows, rows.successor_values)


def _at_truncations(rows: Rows, values: Floats) -> Gates:
    gates = correct(rows)
    swapped = rows.truncated & rows.bootstraps
    return gates._replace(next_values=np.where(swapped, values, gates.next_values))


def _bootstraps_after_termination(rows: Rows) -> Gates:
    return Gates(rows.next_values, rows.continues)


def _truncated_wins(rows: Rows) -> Gates:
    gates = correct(rows)
    both = rows.terminated & rows.truncated
    return gates._replace(next_values=np.where(both, rows.next_values, gates.next_values))


def _flags_one_late(rows: Rows) -> Gates:
    return _shifted(rows, 1)


def _flags_one_early(rows: Rows) -> Gates:
    return _shifted(rows, -1)


def _shifted(rows: Rows, by: int) -> Gates:
    """Every row is treated by the flags of a neighbour in its own environment."""
    same = np.roll(rows.env, by) == rows.env
    terminated = np.roll(rows.terminated, by) & same
    ended = np.roll(rows.terminated | rows.truncated, by) & same
    return Gates(
        np.where(terminated, 0.0, rows.next_values),
        ~(ended | rows.cut | _last_of_env(rows)),
    )


def _last_of_env(rows: Rows) -> Flags:
    return np.append(rows.env[1:] != rows.env[:-1], True)


FAULTS = (
    Fault(
        "time limit treated as termination",
        "the critic learns that life ends at the limit, and states near it look worthless",
        _time_limit_as_termination,
    ),
    Fault(
        "leak across a reset",
        "an episode is credited with what the next one does",
        _chain_leaks,
    ),
    Fault(
        "leak across a reset",
        "an episode is credited with what the next one does",
        _only_the_chain_leaks,
    ),
    Fault(
        "leak across a reset",
        "an episode is credited with what the next one does",
        _nothing_closes,
    ),
    Fault(
        "bootstrap from the current state",
        "the last row of an episode is valued by where it started, not by where it led",
        _bootstraps_current,
    ),
    Fault(
        "bootstrap from the reset state",
        "the last row of an episode is valued by the first state of the next one",
        _bootstraps_reset,
    ),
    Fault(
        "bootstrap after a termination",
        "falling costs nothing: the future after it is counted as if it came",
        _bootstraps_after_termination,
    ),
    Fault(
        "truncated wins over terminated",
        "reaching the goal or falling on the last allowed step is taken for a time limit",
        _truncated_wins,
    ),
    Fault(
        "flags off by one (taken from the row before)",
        "the gates close one row late: the last row of an episode runs into the next one",
        _flags_one_late,
    ),
    Fault(
        "flags off by one (taken from the row after)",
        "the gates close one row early: the last reward of an episode reaches nobody",
        _flags_one_early,
    ),
    Fault(
        "rollout's end not bootstrapped",
        "the last row of every rollout is treated as a death",
        _end_without_bootstrap,
    ),
)


def advantages_with(rows: Rows, gates: Gates, *, gamma: float, gae_lambda: float) -> Floats:
    """Advantages of an estimator that treats the gates so, [R]."""
    delta = rows.rewards + gamma * gates.next_values - rows.values
    return backward_sums(delta, gamma * gae_lambda * gates.continues)


@dataclass(frozen=True)
class Likeness:
    """A known fault that given advantages look like."""

    fault: str
    harm: str


def faults_alike(
    given: Floats, rows: Rows, *, gamma: float, gae_lambda: float, tolerance: float = TOLERANCE
) -> list[Likeness]:
    """Every known fault that explains the given advantages in full, once by name.

    Rows on which two faults do not differ cannot tell them apart, so that there may be several.

    Args:
        given: advantages, [R].
        rows: what they were made of.
        gamma: discount per env step.
        gae_lambda: of the estimator.
        tolerance: relative, to the largest advantage.
    """
    right = advantages_with(rows, correct(rows), gamma=gamma, gae_lambda=gae_lambda)
    if same(given, right, tolerance):
        return []
    alike = {
        fault.name: Likeness(fault.name, fault.harm)
        for fault in FAULTS
        if same(
            given,
            advantages_with(rows, fault.gates(rows), gamma=gamma, gae_lambda=gae_lambda),
            tolerance,
        )
    }
    return list(alike.values())


def same(given: Floats, expected: Floats, tolerance: float) -> bool:
    """Whether two columns agree everywhere, relative to the largest number in the second."""
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-12)
    return bool((np.abs(given - expected) <= tolerance * scale).all())


def normalised_from(given: Floats, expected: Floats, tolerance: float = TOLERANCE) -> bool:
    """Whether the given column is the expected one, shifted and scaled as a whole."""
    if len(given) < 3 or np.ptp(given) == 0.0 or np.ptp(expected) == 0.0:
        return False
    slope, intercept = np.polyfit(expected, given, 1)
    return bool(slope > 0.0) and same(given, slope * expected + intercept, tolerance)
