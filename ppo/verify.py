"""`ppo.check_rollout`: hold a rollout against the contract, on live data."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppo.agent import Agent
from ppo.envs import EnvStep
from ppo.errors import ContractError
from ppo.rollout import Rollout

RELATIVE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class _Arrival:
    reached: NDArray[Any]
    closes: NDArray[np.bool_]
    at_arrival: NDArray[np.float32]


class Witness:
    """Keeps, beside the collector, what every row really led to.

    It looks at the raw states that the environments returned, never at what the collector made of
    them. A state in which somebody goes on to act is normalised with the statistics of that next
    row, and any other with those of the row that reached it.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._pending: _Arrival | None = None
        self._reached: list[NDArray[np.float32]] = []

    def saw_step(self, step: EnvStep, closes: NDArray[np.bool_]) -> None:
        """After a vector step; `closes` marks the rows whose chain ends here, [N]."""
        reached = step.reached.copy()
        self._pending = _Arrival(reached, closes.copy(), self._agent.normalize(reached))

    def before_acting(self) -> None:
        """Before the next vector step, once its observations are in the statistics."""
        if self._pending is not None:
            arrival, self._pending = self._pending, None
            seen = self._agent.normalize(arrival.reached)
            self._reached.append(np.where(arrival.closes[:, None], arrival.at_arrival, seen))

    def values(self) -> Tensor:
        """V of what every row led to, [T, N], by the critic as it is now."""
        self.before_acting()
        with torch.inference_mode():
            reached = torch.from_numpy(np.stack(self._reached)).to(self._agent.device)
            return self._agent.networks.value(reached)


def check_rollout(
    rollout: Rollout, revalued: Tensor, *, relative_tolerance: float = RELATIVE_TOLERANCE
) -> None:
    """Hold a rollout against the contract; used by `ppo.check_rollout` on live data.

    Args:
        rollout: what the collector made.
        revalued: V of the observation that each row really led to, computed afresh from what the
            environments returned, [T, N].
        relative_tolerance: of the difference between `revalued` and `next_values`, relative to
            the larger of 1 and the value.

    Raises:
        ContractError: naming the row and what is wrong with it.
    """
    for name in ("terminated", "truncated", "valid"):
        dtype = getattr(rollout, name).dtype
        if dtype != torch.bool:
            raise ContractError(f"check_rollout: {name} must be bool, not {dtype}")
    for field in fields(rollout):
        tensor: Tensor = getattr(rollout, field.name)
        if not bool(torch.isfinite(tensor).all()):
            where = _place(
                ~torch.isfinite(tensor).flatten(2).all(-1)
                if tensor.ndim > 2
                else ~torch.isfinite(tensor)
            )
            raise ContractError(f"check_rollout: {field.name} is not finite at {where}")
    scale = rollout.next_values.abs().clamp(min=1.0)
    wrong = ((revalued - rollout.next_values).abs() > relative_tolerance * scale) & rollout.valid
    if bool(wrong.any()):
        raise ContractError(
            "check_rollout: next_values is not the value of the observation that the row led to,"
            f" at {_place(wrong)}: {float(rollout.next_values[wrong][0])}"
            f" against {float(revalued[wrong][0])}"
        )
    _check_boundaries(rollout)


def _check_boundaries(rollout: Rollout) -> None:
    """A row may only continue into a neighbour that starts where it ended."""
    ended = rollout.terminated | rollout.truncated
    continues = (~ended & rollout.valid)[:-1]
    same_state = (rollout.next_observations[:-1] == rollout.observations[1:]).flatten(2).all(-1)
    leaks = continues & ~(same_state & rollout.valid[1:])
    if bool(leaks.any()):
        raise ContractError(
            f"check_rollout: the row at {_place(leaks)} claims to continue, but the next row does"
            " not start where it ended: an episode boundary is not closed"
        )
    phantom = ended & ~rollout.valid
    if bool(phantom.any()):
        raise ContractError(
            f"check_rollout: the row at {_place(phantom)} ends an episode, but nobody acted in it"
        )


def _place(mask: Tensor) -> str:
    row, env = mask.nonzero()[0].tolist()
    return f"row {row} of environment {env}"
