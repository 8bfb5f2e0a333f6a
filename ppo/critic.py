"""Is the critic good enough for its advantages to mean something? And what to do where it is not.

The measure is the explained variance of V against the lambda = 1 returns of the rows that it
valued, before the update. One rollout says little, so the verdict is on the median of several;
where those returns consist of bootstrapped values for more than half, V would be compared with
itself, and there is no verdict.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ppo.config_models import CriticConfig

WINDOW = 20  # iterations
FEWEST = 5  # iterations that a verdict needs
HEALTHY, SICK = 0.5, 0.3
MOST_WEIGHT = 0.5
GATED_FROM = 0.1  # share of the budget before which no critic is expected to be any good

Kind = Literal["healthy", "weak", "sick", "cannot tell"]

_MEANING = {
    "healthy": "lambda is worth tuning",
    "weak": "lambda can wait: give the critic more value epochs, a larger learning rate or network",
    "sick": "look at the bootstrap and the critic, not at lambda",
}
_ADVICE = (
    "the advantages are mostly noise or the critic's own error. Check the bootstrap first (ppo"
    " trace, ppo.check_rollout: true), then the reward's scale (normalize.rewards), then give the"
    " critic more (critic.learning_rate, critic.gate: value_epochs); lambda comes last"
)


class Reading(NamedTuple):
    """One iteration's measurements of the critic that collected.

    Attributes:
        explained_variance: against the lambda = 1 returns; NaN where these have no spread.
        bootstrap_weight: mean gamma^L that these returns give to a bootstrapped value.
    """

    explained_variance: float
    bootstrap_weight: float


@dataclass(frozen=True)
class CriticVerdict:
    """What can be said about a critic.

    Attributes:
        kind: healthy, weak, sick or cannot tell.
        reason: why one cannot tell; empty where one can.
        explained_variance: median over the last iterations; None where there is none.
        bootstrap_weight: median over the same; None where there is none.
        iterations: over how many.
    """

    kind: Kind
    reason: str
    explained_variance: float | None
    bootstrap_weight: float | None
    iterations: int

    def describe(self) -> str:
        """The verdict in words, with its numbers."""
        if self.kind == "cannot tell":
            return f"cannot tell: {self.reason}"
        return (
            f"{self.kind}: explained variance against the lambda = 1 returns"
            f" {self.explained_variance:.2f}, bootstrap weight {self.bootstrap_weight:.2f} (medians"
            f" of the last {self.iterations} iterations); {_MEANING[self.kind]}"
        )


def judge(readings: Sequence[Reading]) -> CriticVerdict:
    """The verdict on a run's readings, oldest first; only the last `WINDOW` count."""
    recent = list(readings)[-WINDOW:]
    weights = [reading.bootstrap_weight for reading in recent]
    explained = [r.explained_variance for r in recent if math.isfinite(r.explained_variance)]
    weight = float(np.median(weights)) if weights else None
    median = float(np.median(explained)) if explained else None

    def verdict(kind: Kind, reason: str = "") -> CriticVerdict:
        return CriticVerdict(kind, reason, median, weight, len(recent))

    if len(recent) < FEWEST:
        return verdict("cannot tell", f"{len(recent)} iterations are too few, {FEWEST} are needed")
    if median is None or 2 * len(explained) < len(recent):
        return verdict(
            "cannot tell",
            "the lambda = 1 returns have no spread that a critic could explain",
        )
    if weight is not None and weight > MOST_WEIGHT:
        return verdict(
            "cannot tell",
            f"{weight:.0%} of the lambda = 1 returns' weight lies on bootstrapped values, so they"
            " say what the critic says; a larger ppo.n_steps makes rollouts longer",
        )
    if median > HEALTHY:
        return verdict("healthy")
    return verdict("sick" if median < SICK else "weak")


@dataclass(frozen=True)
class Decision:
    """What an iteration is to do.

    Attributes:
        policy_learns: False for value updates only.
        extra_value_epochs: value updates alone after the usual epochs.
        message: for the user, if there is something new to say.
    """

    policy_learns: bool = True
    extra_value_epochs: int = 0
    message: str | None = None

    def value_only_epochs(self, n_epochs: int) -> int:
        """Epochs of this iteration in which the critic alone learns."""
        return self.extra_value_epochs if self.policy_learns else n_epochs


@dataclass
class CriticWatch:
    """The readings of a run, and what its gate has done so far.

    Attributes:
        readings: of the last iterations.
        warned: the user has been told that the critic is poor.
        held: iterations in a row for which the policy has been held.
    """

    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=WINDOW))
    warned: bool = False
    held: int = 0

    def verdict(self) -> CriticVerdict:
        """On the critic as the last iterations saw it."""
        return judge(list(self.readings))

    def decide(self, settings: CriticConfig, *, iterations: int, done: float) -> Decision:
        """What to do in this iteration, whose reading is in already.

        Args:
            settings: the `critic` block.
            iterations: done before this one.
            done: share of the budget that was used before this iteration.
        """
        if iterations < settings.warmup_iterations:
            return Decision(policy_learns=False)
        verdict = self.verdict()
        if (
            settings.gate == "off"
            or done < GATED_FROM
            or verdict.kind == "cannot tell"
            or verdict.explained_variance is None
        ):
            return Decision()
        if verdict.explained_variance >= settings.min_explained_variance:
            self.held = 0
            return Decision()
        return self._act_on(verdict, settings)

    def _act_on(self, verdict: CriticVerdict, settings: CriticConfig) -> Decision:
        news = None if self.warned else self._words(verdict, settings)
        self.warned = True
        match settings.gate:
            case "value_epochs":
                return Decision(True, settings.extra_value_epochs, news)
            case "hold_policy" if self.held < settings.max_held_iterations:
                self.held += 1
                return Decision(False, 0, news)
            case "hold_policy" if self.held == settings.max_held_iterations:
                self.held += 1  # said once
                return Decision(
                    message=f"the policy was held for {settings.max_held_iterations} iterations"
                    " (critic.max_held_iterations) and the critic is still below"
                    f" {settings.min_explained_variance:g}; going on with both"
                )
        return Decision(message=news)

    def _words(self, verdict: CriticVerdict, settings: CriticConfig) -> str:
        does = {
            "value_epochs": f"; {settings.extra_value_epochs} more value epochs an iteration"
            " until it is better",
            "hold_policy": "; the policy is held until it is better, for"
            f" {settings.max_held_iterations} iterations at most",
        }
        return (
            f"the critic explains {verdict.explained_variance:.2f} of the variance of the lambda ="
            f" 1 returns (median of the last {verdict.iterations} iterations; 1 is all of it, 0 no"
            f" better than a constant), less than critic.min_explained_variance"
            f" {settings.min_explained_variance:g}: {_ADVICE}{does.get(settings.gate, '')}"
        )

    def state(self) -> dict[str, object]:
        """Plain Python, for a checkpoint."""
        return {
            "readings": [[float(number) for number in reading] for reading in self.readings],
            "warned": self.warned,
            "held": self.held,
        }

    @classmethod
    def from_state(
        cls, *, readings: Iterable[Sequence[float]], warned: bool, held: int
    ) -> "CriticWatch":
        """What `state` gave."""
        kept = (Reading(*(float(number) for number in reading)) for reading in readings)
        return cls(deque(kept, maxlen=WINDOW), bool(warned), int(held))
