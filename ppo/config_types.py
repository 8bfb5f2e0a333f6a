"""The kinds of values that the configuration's keys take, beyond what pydantic has.

Strict models take no text for a number and no number for text; what they would refuse although a
person means it (1e6 as a whole number, a list as a tuple) is converted here.
"""

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from ppo.config_errors import Problem, show
from ppo.finite import FLOAT32_MAX, FLOAT32_TINY
from ppo.strict_yaml import KeyPath

_DEVICE = re.compile(r"auto|cpu|cuda(?::(?:0|[1-9][0-9]*))?")
_NAME = re.compile(r"\w[\w.+=@-]*")
# gymnasium.make takes these beside the environment's own keyword arguments.
_NOT_KWARGS = {
    "id": "the environment's name is env.id",
    "max_episode_steps": "set env.max_episode_steps instead",
    "render_mode": "the commands that draw choose it; remove it",
    "disable_env_checker": "it belongs to the trainer; remove it",
}


def _whole(value: Any) -> Any:
    """Takes 1e6 for the whole number it is; leaves everything else to the type's own check."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _float32(value: float) -> float:
    """The networks and their optimiser count in float32."""
    if value and not FLOAT32_TINY <= abs(value) <= FLOAT32_MAX:
        raise ValueError(
            f"must be between {FLOAT32_TINY:.1e} and {FLOAT32_MAX:.1e}, which float32 can hold,"
            f" not {show(value)}"
        )
    return value


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise ValueError(f"must be auto, cpu, cuda or cuda:N, not {show(value)}")
    return value


def _name(value: str) -> str:
    if len(value) > 100 or not _NAME.fullmatch(value):
        raise ValueError(
            "becomes part of a folder's name, so it holds at most 100 letters, digits and . _ + = "
            f"@ -, and starts with a letter, digit or _, not {show(value)}"
        )
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


def _no_spaces(value: str) -> str:
    if any(char.isspace() for char in value):
        raise ValueError(f"must not contain white space, not {show(value)}")
    return value


def _plain_data(value: Any, path: KeyPath = ("env", "kwargs")) -> Any:
    """Data that YAML and a checkpoint can hold: tuples become lists, the rest stays or fails."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and not math.isnan(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain_data(item, (*path, i)) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain_data(item, (*path, key)) for key, item in value.items()}
    message = "must be plain data (numbers, text, true, false, null, lists and sections of those)"
    problems = [Problem(path, f"{message}, not {show(value)}")]
    raise PydanticCustomError("plain_data", "not plain data", {"problems": problems})


def _env_kwargs(value: Any) -> Any:
    if value is None:  # `kwargs:` with nothing below it
        return {}
    if not isinstance(value, dict):
        return value
    problems = [
        Problem(("env", "kwargs", name), f"not an argument of the environment: {advice}")
        for name, advice in _NOT_KWARGS.items()
        if name in value
    ]
    if problems:
        raise PydanticCustomError("reserved", "reserved names", {"problems": problems})
    return _plain_data(value)


Whole = Annotated[int, BeforeValidator(_whole)]
Positive = Annotated[float, Field(gt=0.0), AfterValidator(_float32)]
NonNegative = Annotated[float, Field(ge=0.0), AfterValidator(_float32)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[Whole, Field(ge=1, le=2**31 - 1)]
# Env steps are counted in 64 bits and written as floats in places: exact up to 2**53.
EnvSteps = Annotated[Whole, Field(ge=1, le=2**53)]
EverySteps = Annotated[Whole, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(min_length=1), AfterValidator(_no_nul)]
EnvId = Annotated[Text, AfterValidator(_no_spaces)]
EnvKwargs = Annotated[dict[str, Any], BeforeValidator(_env_kwargs)]
HiddenSizes = Annotated[tuple[Annotated[Count, Field(le=65_536)], ...], BeforeValidator(_as_tuple)]
Device = Annotated[str, AfterValidator(_device)]
Name = Annotated[str, AfterValidator(_name)]
