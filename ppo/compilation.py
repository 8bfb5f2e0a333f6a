"""Whether to compile the minibatch step, and doing so without ever failing a run."""

import os
import shutil
import warnings
from dataclasses import dataclass
from typing import Literal

import torch

from ppo.rollout import Batch
from ppo.update import Coefficients, Learner, StepFunction, StepMetrics

# Compiling costs up to half a minute, once; a compiled step saves about a millisecond.
WORTHWHILE_GRADIENT_STEPS = 30_000


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


class CompiledStep:
    """A minibatch step that is compiled at its first use, for one size of minibatch.

    Minibatches of another size (a shorter last one) and everything after a failed compilation go
    through the eager function, which computes the same.
    """

    def __init__(self, step: StepFunction, *, batch_size: int) -> None:
        self._eager = step
        self._batch_size = batch_size
        self._compiled: StepFunction | None = torch.compile(step, fullgraph=True, dynamic=False)

    def __call__(
        self, learner: Learner, minibatch: Batch, coefficients: Coefficients
    ) -> tuple[Learner, StepMetrics]:
        """As the eager step."""
        if self._compiled is None or minibatch.size != self._batch_size:
            return self._eager(learner, minibatch, coefficients)
        try:
            return self._compiled(learner, minibatch, coefficients)
        except Exception as error:  # the compiler's failures have no common base class
            self._compiled = None
            reason = str(error).strip().splitlines()
            warnings.warn(
                "compiling the update failed; going on without"
                f" ({type(error).__name__}: {reason[0] if reason else 'no reason given'})",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._eager(learner, minibatch, coefficients)
