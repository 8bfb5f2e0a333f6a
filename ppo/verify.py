"""`ppo.check_rollout`: hold a rollout against the contract, on live data."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

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


class Reached(NamedTuple):
    """What every row really led to.

    Attributes:
        observations: as the network would see them, float32 [T, N, D].
        values: V of them, by the critic that collected, [T, N].
    """

    observations: Tensor
    values: Tensor


class Witness:
    """Keeps, beside the collector, what every row really led to.

    It normalises the raw states that the environments said were reached, and never reads what the
    collector made of them. A state in which somebody goes on to act is normalised with the
    statistics of that next row, and any other with those of the row that reached it.
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

    def reached(self) -> Reached:
        """All rows so far, valued by the critic as it is now."""
        self.before_acting()
        observations = torch.from_numpy(np.stack(self._reached)).to(self._agent.device)
        with torch.inference_mode():
            return Reached(observations, self._agent.networks.value(observations))


def check_rollout(rollout: Rollout, reached: Reached) -> None:
    """Hold a rollout against the contract; used by `ppo.check_rollout` on live data.

    Args:
        rollout: what the collector made.
        reached: what each row really led to, made afresh from what the environments returned.
            Its values may differ from `next_values` by 1e-5 of the value, or of 1 where that is
            larger.

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
    difference = (reached.values - rollout.next_values).abs()
    wrong = (difference > RELATIVE_TOLERANCE * scale) & rollout.valid
    if bool(wrong.any()):
        raise ContractError(
            "check_rollout: next_values is not the value of the observation that the row led to,"
            f" at {_place(wrong)}: {float(rollout.next_values[wrong][0])}"
            f" against {float(reached.values[wrong][0])}"
        )
    _check_boundaries(rollout, reached.observations)


def _check_boundaries(rollout: Rollout, reached: Tensor) -> None:
    """A row may only continue into a neighbour that starts where it ended."""
    ended = rollout.terminated | rollout.truncated
    continues = (~ended & rollout.valid)[:-1]
    same_state = (reached[:-1] == rollout.observations[1:]).flatten(2).all(-1)
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
