"""Which spaces are supported, and how an observation becomes one vector of floats."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from ppo.errors import UserError


@dataclass(frozen=True)
class ObservationForm:
    """How one environment's observations are turned into vectors.

    Attributes:
        nested: whether the space has to go through Gymnasium's FlattenObservation first.
        shape: what the environment's array must have, once flattened if nested.
        space: the vectors' space, [D].
        scale: what to divide by, [D]; None where nothing is scaled.
    """

    nested: bool
    shape: tuple[int, ...]
    space: spaces.Box
    scale: NDArray[Any] | None


def observation_form(space: Space[Any], env_id: str) -> ObservationForm:
    """The form of an observation space.

    Raises:
        UserError: if the space has no vector form.
    """
    _check_observation_space(space, env_id)
    nested = not isinstance(space, spaces.Box)
    flat = spaces.flatten_space(space)
    if not isinstance(flat, spaces.Box) or flat.shape[0] == 0:
        raise UserError(f"{env_id}: its observation has no numbers in it ({_short(space)})")
    wide = flat.dtype.kind == "f" and flat.dtype.itemsize >= np.dtype(np.float64).itemsize
    dtype: type[np.floating[Any]] = np.float64 if wide else np.float32
    divisors = _divisors(space)
    low = np.asarray(flat.low, dtype=np.float64) / divisors
    high = np.asarray(flat.high, dtype=np.float64) / divisors
    return ObservationForm(
        nested=nested,
        shape=flat.shape if nested else space.shape or (),
        space=spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype),
        scale=divisors.astype(dtype) if np.any(divisors != 1) else None,
    )


def check_action_space(space: Space[Any], env_id: str) -> None:
    """Accept the action spaces that `ppo.distributions.make_head` has a distribution for.

    Said again here, without torch, so that a process that only steps environments starts fast.

    Raises:
        UserError: if the space is none of them.
    """
    match space:
        case spaces.Box() if space.dtype.kind == "f" and np.prod(space.shape) > 0:
            return
        case spaces.Discrete():
            return
        case spaces.MultiDiscrete():
            return
    raise UserError(
        f"{env_id}: its action space {_short(space)} is not supported; "
        "supported are Box of floats, Discrete and MultiDiscrete"
    )


def _check_observation_space(space: Space[Any], env_id: str) -> None:
    match space:
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return
        case spaces.Dict():
            parts = tuple(space.spaces.values())
        case spaces.Tuple():
            parts = tuple(space.spaces)
        case _:
            raise UserError(
                f"{env_id}: its observation space {_short(space)} is not supported; supported are "
                "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
            )
    for part in parts:
        _check_observation_space(part, env_id)


def _divisors(space: Space[Any]) -> NDArray[np.float64]:
    """255 where a byte of an image stands, 1 elsewhere, in the order of the flat vector, [D]."""
    match space:
        case spaces.Dict():
            return _joined([_divisors(part) for part in space.spaces.values()])
        case spaces.Tuple():
            return _joined([_divisors(part) for part in space.spaces])
        case spaces.Box() if (
            space.dtype == np.uint8 and np.all(space.low == 0) and np.all(space.high == 255)
        ):
            return np.full(spaces.flatdim(space), 255.0)
    return np.ones(spaces.flatdim(space))


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *parts])


def _short(space: Space[Any]) -> str:
    words = " ".join(str(space).split())
    return words if len(words) <= 120 else f"{words[:117]}..."


def space_with_time(space: spaces.Box) -> spaces.Box:
    """The space of observations [D] that end with the remaining fraction of a time limit."""
    return spaces.Box(
        np.append(space.low, space.dtype.type(0)),
        np.append(space.high, space.dtype.type(1)),
        dtype=space.dtype.type,
    )
