"""Whether to compile the minibatch step, and doing so without ever failing a run."""

import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ppo.rollout import Batch
from ppo.update import (
    Coefficients,
    EpochFunction,
    Learner,
    StepFunction,
    StepMetrics,
    join,
    one_by_one,
)

# Compiling costs up to half a minute, once; a compiled step saves about a millisecond.
WORTHWHILE_GRADIENT_STEPS = 30_000

# Minibatches in one compiled call: each call costs as much as the arithmetic of a small step, and
# each minibatch in it five seconds of compiling.
GROUP_SIZES = (4, 3, 2, 1)


@dataclass(frozen=True)
class CompileChoice:
    """What was chosen and why, in words."""

    compiled: bool
    reason: str


def choose(
    setting: Literal["auto", "on", "off"], *, gradient_steps: int, device: torch.device
) -> CompileChoice:
    """Decide for a run of so many gradient steps."""
    if setting != "auto":
        return CompileChoice(setting == "on", f"compile: {setting}")
    if device.type == "cpu" and _cpp_compiler() is None:
        return CompileChoice(False, "no C++ compiler found")
    if gradient_steps < WORTHWHILE_GRADIENT_STEPS:
        return CompileChoice(
            False,
            f"{gradient_steps:,} gradient steps would not earn the compile time back",
        )
    return CompileChoice(True, f"{gradient_steps:,} gradient steps earn the compile time back")


def _cpp_compiler() -> str | None:
    candidates = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


class CompiledEpoch:
    """Gradient steps compiled at their first use, a few minibatches to a call.

    What does not fill such a group (a minibatch of another size at the end of an epoch) and
    everything after a failed compilation goes through the eager function, which computes the same.

    Args:
        step: the pure minibatch step.
        batch_size: rows of a full minibatch.
        n_minibatches: full minibatches of an epoch.
    """

    def __init__(self, step: StepFunction, *, batch_size: int, n_minibatches: int) -> None:
        self._eager = one_by_one(step)
        self._batch_size = batch_size
        self._group = next(size for size in GROUP_SIZES if n_minibatches % size == 0)
        self._compiled: EpochFunction | None = torch.compile(
            self._eager, fullgraph=True, dynamic=False, options={"cpp_wrapper": True}
        )

    def __call__(
        self, learner: Learner, minibatches: Sequence[Batch], coefficients: Coefficients
    ) -> tuple[Learner, StepMetrics]:
        """As the eager function."""
        parts = []
        done = 0
        n_full = sum(minibatch.size == self._batch_size for minibatch in minibatches)
        while self._compiled is not None and done + self._group <= n_full:
            group = tuple(minibatches[done : done + self._group])
            try:
                learner, metrics = self._compiled(learner, group, coefficients)
            except Exception as error:  # the compiler's failures have no common base class
                self._compiled = None
                _warn_of_failure(error)
                break
            parts.append(metrics)
            done += self._group
        if done < len(minibatches):
            learner, metrics = self._eager(learner, minibatches[done:], coefficients)
            parts.append(metrics)
        return learner, join(parts)


def _warn_of_failure(error: Exception) -> None:
    reason = str(error).strip().splitlines()
    warnings.warn(
        "compiling the update failed; going on without"
        f" ({type(error).__name__}: {reason[0] if reason else 'no reason given'})",
        RuntimeWarning,
        stacklevel=3,
    )
