"""Whether to compile the minibatch step, and doing so without ever failing a run."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ppo.errors import UserError
from ppo.native.build import cpp_compiler
from ppo.rollout import Batch
from ppo.update import Coefficients, EpochFunction, Learner, StepMetrics

# Compiling costs two seconds, once; a compiled step saves one or two milliseconds.
WORTHWHILE_GRADIENT_STEPS = 2_000


@dataclass(frozen=True)
class CompileChoice:
    """What was chosen and why, in words."""

    compiled: bool
    reason: str


def choose(
    setting: Literal["auto", "on", "off"], *, gradient_steps: int, device: torch.device
) -> CompileChoice:
    """Decide for a run of so many gradient steps.

    It does not depend on what was compiled before: a run and its repetition round alike.
    """
    if setting == "off":
        return CompileChoice(False, "compile: off")
    if device.type != "cpu":
        return CompileChoice(False, "compiled steps are for the CPU")
    if setting == "on":
        return CompileChoice(True, "compile: on")
    if cpp_compiler() is None:
        return CompileChoice(False, "no C++ compiler found")
    if gradient_steps < WORTHWHILE_GRADIENT_STEPS:
        return CompileChoice(
            False,
            f"{gradient_steps:,} gradient steps would not earn the compile time back",
        )
    return CompileChoice(True, f"{gradient_steps:,} gradient steps earn the compile time back")


class CompiledEpoch:
    """Gradient steps by a function that is built at their first use, or eagerly if that fails.

    Args:
        build: makes the compiled function.
        eager: computes the same.

    Attributes:
        seconds_compiling: that building took; 0 before it.
    """

    def __init__(self, build: Callable[[], EpochFunction], eager: EpochFunction) -> None:
        self._build, self._eager = build, eager
        self._function: EpochFunction | None = None
        self.seconds_compiling = 0.0

    def __call__(
        self, learner: Learner, batch: Batch, order: Tensor, coefficients: Coefficients
    ) -> tuple[Learner, StepMetrics]:
        """As the eager function."""
        if self._function is None:
            begun = time.perf_counter()
            try:
                self._function = self._build()
            except UserError as error:
                self._function = self._eager
                warnings.warn(
                    f"compiling the update failed; going on without ({error})",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self.seconds_compiling = time.perf_counter() - begun
        return self._function(learner, batch, order, coefficients)
