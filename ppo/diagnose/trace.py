"""A trace: rows, what the estimator makes of them, and what can be said about that."""

from dataclasses import dataclass

from ppo.diagnose.checks import Check, check_rows
from ppo.diagnose.decompose import Addends, addends, realised_returns
from ppo.diagnose.rows import Estimate, Floats, Rows, estimate


@dataclass(frozen=True)
class Trace:
    """Everything that is printed, drawn and written of a trajectory.

    Attributes:
        source: where the rows came from, in words.
        rows: R of them.
        gamma: discount per env step.
        lambdas: that were asked for; the first is the one that is taken apart and checked.
        deltas: one-step residuals, [R].
        estimates: one for each lambda.
        parts: the addends of the first lambda's advantages.
        realised: discounted rewards to the end of each row's episode, [R].
        checks: in words.
    """

    source: str
    rows: Rows
    gamma: float
    lambdas: tuple[float, ...]
    deltas: Floats
    estimates: tuple[Estimate, ...]
    parts: Addends
    realised: Floats
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """No check of the contract failed."""
        return all(check.passed is not False for check in self.checks if check.of_contract)


def trace_rows(
    rows: Rows,
    *,
    source: str,
    gamma: float,
    lambdas: tuple[float, ...],
    batch_size: int,
    adjacency: float,
) -> Trace:
    """Estimate, take apart and check.

    Args:
        rows: R of them.
        source: where they came from, in words.
        gamma: discount per env step, in [0, 1].
        lambdas: one or more, in [0, 1].
        batch_size: rows of a minibatch.
        adjacency: relative tolerance between a next value and the value below it.

    Raises:
        ValueError: as `ppo.gae.compute_gae`.
    """
    first = lambdas[0]
    return Trace(
        source=source,
        rows=rows,
        gamma=gamma,
        lambdas=lambdas,
        deltas=estimate(rows, gamma=gamma, gae_lambda=0.0).advantages,
        estimates=tuple(estimate(rows, gamma=gamma, gae_lambda=each) for each in lambdas),
        parts=addends(rows, gamma=gamma, gae_lambda=first),
        realised=realised_returns(rows, gamma=gamma),
        checks=check_rows(
            rows, gamma=gamma, gae_lambda=first, batch_size=batch_size, adjacency=adjacency
        ),
    )
