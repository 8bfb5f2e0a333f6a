"""What can be said of a trace in words: whether the contract holds, and the sizes make sense."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ppo.diagnose.decompose import addends, realised_returns
from ppo.diagnose.faults import TOLERANCE, faults_alike, normalised_from, same
from ppo.diagnose.rows import Estimate, Floats, Rows, estimate
from ppo.losses import explained_variance, normalize_advantages

# Beyond this, advantages say more about the critic than about the actions.
PLAUSIBLE_RATIO = 3.0
# A critic that is right on average leaves advantages of both signs.
LOPSIDED_SHARE = 0.9
FEW_ROWS = 8


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what is checked.
        passed: None where these rows cannot tell.
        words: what was found, in a sentence.
        of_contract: a failure is a fault of the estimator; of the others, it is a sign to look at.
    """

    name: str
    passed: bool | None
    words: str
    of_contract: bool = True


def check_rows(
    rows: Rows, *, gamma: float, gae_lambda: float, batch_size: int, adjacency: float
) -> list[Check]:
    """All checks of a trace.

    Args:
        rows: with their own advantages and targets, or without.
        gamma: discount per env step.
        gae_lambda: of the estimator.
        batch_size: rows of a minibatch, whose normalised advantages are looked at.
        adjacency: relative tolerance between a next value and the value below it.
    """
    own = estimate(rows, gamma=gamma, gae_lambda=gae_lambda)
    advantages = own.advantages if rows.advantages is None else rows.advantages
    judged = Estimate(
        advantages, advantages + rows.values if rows.targets is None else rows.targets
    )
    return [
        *_advantages_that_came(rows, own, gamma=gamma, gae_lambda=gae_lambda),
        _gates(rows, judged.advantages, gamma=gamma),
        _addends(rows, judged.advantages, gamma=gamma, gae_lambda=gae_lambda),
        _targets(rows, judged, gamma=gamma, gae_lambda=gae_lambda),
        _adjacency(rows, adjacency),
        _sizes(rows, judged.advantages, gamma=gamma),
        _signs(judged.advantages),
        _critic(rows, gamma=gamma),
        _minibatches(judged.advantages, batch_size),
    ]


def _advantages_that_came(
    rows: Rows, own: Estimate, *, gamma: float, gae_lambda: float
) -> Iterator[Check]:
    """Advantages of somebody else's against the contract's."""
    if rows.advantages is None:
        return
    name, given = "advantages that came", rows.advantages
    difference = np.abs(given - own.advantages)
    worst = int(difference.argmax())
    where = (
        f"largest difference {difference[worst]:.3g} at step {rows.step[worst]} of environment"
        f" {rows.env[worst]} ({given[worst]:.4g} against {own.advantages[worst]:.4g})"
    )
    if same(given, own.advantages, TOLERANCE):
        yield Check(name, True, f"they are the contract's; {where}")
        return
    alike = faults_alike(given, rows, gamma=gamma, gae_lambda=gae_lambda)
    if alike:
        seen = "; or ".join(f"{fault.fault}: {fault.harm}" for fault in alike)
        yield Check(name, False, f"they look like this fault: {seen}; {where}")
    elif normalised_from(given, own.advantages):
        yield Check(
            name,
            None,
            "they are the contract's, shifted and scaled: normalised before they were written;"
            " write them raw to have them checked",
        )
    else:
        yield Check(
            name,
            False,
            f"they are not the contract's, and like no fault that is known; {where}; are gamma"
            f" {gamma:g} and lambda {gae_lambda:g} those that they were made with?",
        )


def _gates(rows: Rows, advantages: Floats, *, gamma: float) -> Check:
    """A closed row's advantage is its own residual, whatever comes below it."""
    name, closed = "gates at every boundary", ~rows.continues
    bootstrap = np.where(rows.bootstraps, rows.next_values, 0.0)
    expected = rows.rewards + gamma * bootstrap - rows.values
    scale = max(float(np.abs(expected).max()), 1e-12)
    wrong = closed & (np.abs(advantages - expected) > TOLERANCE * scale)
    counts = ", ".join(
        f"{int(flags.sum())} {word}"
        for word, flags in (
            ("terminated", rows.terminated),
            ("truncated", rows.truncated & rows.bootstraps),
            ("cut", rows.cut & rows.bootstraps & ~rows.truncated),
        )
        if flags.any()
    )
    if not wrong.any():
        return Check(name, True, f"each of them is its own one-step residual ({counts})")
    row = int(np.flatnonzero(wrong)[0])
    return Check(
        name,
        False,
        f"{int(wrong.sum())} of {int(closed.sum())} are not their own one-step residual, first"
        f" step {rows.step[row]} of environment {rows.env[row]}: A is {advantages[row]:.4g},"
        f" r + gamma V(next) - V is {expected[row]:.4g}",
    )


def _addends(rows: Rows, advantages: Floats, *, gamma: float, gae_lambda: float) -> Check:
    parts = addends(rows, gamma=gamma, gae_lambda=gae_lambda)
    difference = float(np.abs(sum(parts) - advantages).max())
    shares = [float(np.abs(part).mean()) for part in parts]
    total = max(sum(shares), 1e-12)
    words = ", ".join(
        f"{share / total:.0%} {part}"
        for share, part in zip(shares, ("rewards", "bootstrapped values", "V(s)"), strict=True)
    )
    return Check(
        "three addends sum to A",
        same(np.asarray(sum(parts)), advantages, TOLERANCE),
        f"largest difference {difference:.2g}; by size they are {words}",
    )


def _targets(rows: Rows, judged: Estimate, *, gamma: float, gae_lambda: float) -> Check:
    name, difference = "target = A + V", judged.targets - judged.advantages - rows.values
    worst = int(np.abs(difference).argmax())
    if same(judged.targets, judged.advantages + rows.values, TOLERANCE):
        return Check(name, True, f"largest difference {abs(difference[worst]):.2g}")
    alike = faults_alike(judged.targets - rows.values, rows, gamma=gamma, gae_lambda=gae_lambda)
    source = f" (its own looks like: {alike[0].fault})" if alike else ""
    return Check(
        name,
        False,
        f"target from another bootstrap{source}: at step {rows.step[worst]} of environment"
        f" {rows.env[worst]} the target is {judged.targets[worst]:.4g}, A + V is"
        f" {judged.advantages[worst] + rows.values[worst]:.4g}; actor and critic are taught"
        " different futures",
    )


def _adjacency(rows: Rows, tolerance: float) -> Check:
    name, going_on = "values of neighbours", rows.continues
    if not going_on.any():
        return Check(name, None, "no row continues into another")
    below = rows.successor_values
    apart = np.abs(rows.next_values - below)[going_on] / np.maximum(np.abs(below[going_on]), 1.0)
    return Check(
        name,
        bool(apart.max() <= tolerance),
        f"V(next) of a row that continues is V(s) of the row below it in all"
        f" {int(going_on.sum())} places, to {apart.max():.1g} (relative)",
    )


def _sizes(rows: Rows, advantages: Floats, *, gamma: float) -> Check:
    name, returns = "sizes", realised_returns(rows, gamma=gamma)
    spread, scale = float(advantages.std()), float(returns.std())
    if len(rows) < FEW_ROWS or scale < 1e-12:
        return Check(
            name, None, "too few rows, or realised returns without spread", of_contract=False
        )
    return Check(
        name,
        spread <= PLAUSIBLE_RATIO * scale,
        f"A has a standard deviation of {spread:.3g}, realised discounted returns of {scale:.3g};"
        f" V goes from {rows.values.min():.3g} to {rows.values.max():.3g}, returns from"
        f" {returns.min():.3g} to {returns.max():.3g}",
        of_contract=False,
    )


def _signs(advantages: Floats) -> Check:
    name, positive = "signs", float((advantages > 0.0).mean())
    words = (
        f"A is positive in {positive:.0%} of {len(advantages)} rows, mean {advantages.mean():.3g}"
    )
    if len(advantages) < FEW_ROWS:
        return Check(name, None, f"{words}; too few rows to tell", of_contract=False)
    lopsided = max(positive, float((advantages < 0.0).mean())) > LOPSIDED_SHARE
    return Check(
        name,
        not lopsided,
        f"{words}" + ("; V is off in one direction nearly everywhere" if lopsided else ""),
        of_contract=False,
    )


def _critic(rows: Rows, *, gamma: float) -> Check:
    """Explained variance against the lambda = 1 returns, which hold no value but at the ends."""
    name = "critic"
    targets = estimate(rows, gamma=gamma, gae_lambda=1.0).targets
    explained = explained_variance(torch.from_numpy(rows.values), torch.from_numpy(targets))
    if len(rows) < FEW_ROWS or not np.isfinite(explained):
        return Check(name, None, "too few rows, or returns without spread", of_contract=False)
    return Check(
        name,
        explained >= 0.0,
        f"V explains {explained:.2f} of the variance of the lambda = 1 returns of these rows"
        + ("" if explained >= 0.0 else ": a constant would do better"),
        of_contract=False,
    )


def _minibatches(advantages: Floats, batch_size: int) -> Check:
    """What the policy loss would see of them, in a fixed order that stands for a shuffled one."""
    order = np.random.default_rng(0).permutation(len(advantages))
    parts = torch.split(torch.from_numpy(advantages[order]), batch_size)
    whole = [normalize_advantages(part) for part in parts if len(part) > 1 and part.std() > 0.0]
    name = "normalised advantages of each minibatch"
    if not whole:
        return Check(name, None, "no minibatch has two different advantages")
    means = max(abs(float(part.mean())) for part in whole)
    stds = [float(part.std()) for part in whole]
    largest = max(float(part.abs().max()) for part in whole)
    return Check(
        name,
        means < 1e-3 and all(abs(std - 1.0) < 1e-2 for std in stds),
        f"{len(whole)} of {batch_size} rows at most: mean within {means:.1g} of 0, standard"
        f" deviation {min(stds):.3f} to {max(stds):.3f}, largest {largest:.1f}",
    )
