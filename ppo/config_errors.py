"""What is wrong with a configuration, in one line that names the place and what to do.

configs/hopper.yaml:31: ppo.gae_lamda: unknown key; did you mean ppo.gae_lambda?
--ppo.gamma: must be at most 1, not 1.5
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ppo.errors import ConfigError
from ppo.strict_yaml import KeyPath, dotted

# pydantic's name for what went wrong -> what the value must be. Its ctx fills the braces.
_MUST_BE = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list such as [64, 64]",
    "dict_type": "must be a section of keys and values",
    "model_type": "must be a section of keys and values",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "literal_error": "must be {expected}",
}
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        path: the key that is reported.
        message: what is wrong with it, and what to do.
        others: further keys that take part; where one of them was set on the command line, the
            report points there.
    """

    path: KeyPath
    message: str
    others: tuple[KeyPath, ...] = ()
    unknown_key: bool = False


@dataclass
class Origins:
    """Where each value came from: lines of a file, and overrides, which win."""

    source: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overrides: set[KeyPath] = field(default_factory=set)

    def override(self, path: KeyPath) -> None:
        """Notes that everything at and below `path` comes from the command line now."""
        for places in (self.lines, self.overrides):
            for place in [p for p in places if p[: len(path)] == path]:
                places.pop(place) if isinstance(places, dict) else places.discard(place)
        self.overrides.add(path)

    def locate(self, problem: Problem) -> str:
        """The place of a problem and the key it concerns, each followed by a colon."""
        path = problem.path
        if not self._was_overridden(path):
            path = next((other for other in problem.others if self._was_overridden(other)), path)
        for length in range(len(path), 0, -1):
            ancestor = path[:length]
            if ancestor in self.overrides:
                place = f"--{dotted(ancestor)}: "
                return place if ancestor == path else f"{place}{dotted(path)}: "
            if ancestor in self.lines:
                return f"{self.source}:{self.lines[ancestor]}: {dotted(path)}: "
        return f"{self.source}: {dotted(path)}: " if path else f"{self.source}: "

    def line_of(self, problem: Problem) -> int:
        """A number that sorts problems as a reader meets them."""
        path = problem.path
        known = (self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines)
        return next(known, 0)

    def _was_overridden(self, path: KeyPath) -> bool:
        return any(path[:length] in self.overrides for length in range(1, len(path) + 1))


def config_error(problems: Sequence[Problem], origins: Origins) -> ConfigError:
    """The first problem as one line; the number of further ones behind it.

    Unknown keys come first: a misspelt key is often the reason why another one is missing.
    """
    ordered = sorted(problems, key=lambda p: (not p.unknown_key, origins.line_of(p)))
    first = ordered[0]
    more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
    return ConfigError(one_line(origins.locate(first) + first.message + more))


def one_line(text: str) -> str:
    """Text with line breaks and other control characters made visible."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def problems_of(error: ValidationError, keys: Sequence[str]) -> list[Problem]:
    """Every problem that pydantic found.

    Args:
        error: raised by a model of the configuration.
        keys: all valid keys, dotted, to find the nearest one.
    """
    problems: list[Problem] = []
    for detail in error.errors(include_url=False):
        found = detail.get("ctx", {}).get("problems")
        problems += found if found else [_problem(detail, keys)]
    return problems


def _problem(detail: ErrorDetails, keys: Sequence[str]) -> Problem:
    path = tuple(part for part in detail["loc"] if part != "[key]")
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return Problem(path, unknown_key(dotted(path), keys), unknown_key=True)
    if kind == "missing":
        return Problem(path, "required, but missing")
    if kind == "value_error":
        return Problem(path, str(context["error"]))
    if kind not in _MUST_BE:
        return Problem(path, f"{detail['msg']}, not {show(value)}")
    limits = {name: _without_point_zero(limit) for name, limit in context.items()}
    message = f"{_MUST_BE[kind].format(**limits)}, not {show(value)}"
    return Problem(path, message + _hint(kind, value, context))


def _without_point_zero(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _hint(kind: str, value: Any, context: Mapping[str, Any]) -> str:
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return "; write it as 17, 0.5, 3e-4 or 1_000_000, without quotes"
    if kind == "string_type" and value is not None:
        return "; put it in quotes if it is meant"
    if kind == "literal_error" and isinstance(value, str):
        choices = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        close = difflib.get_close_matches(value.lower(), choices, n=1)
        return f"; did you mean {close[0]}?" if close else ""
    return ""


def show(value: Any) -> str:
    """A value as it stands in YAML, short enough for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return _shorten(repr(value).replace("inf", ".inf").replace("nan", ".nan"))
    if isinstance(value, str):
        return f"the text {_shorten(repr(value))}"
    if isinstance(value, Mapping):
        return "a section"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def unknown_key(name: str, keys: Sequence[str]) -> str:
    """Message for a key that does not exist, with the nearest one that does."""
    nearest = nearest_key(name, keys)
    if nearest is not None:
        return f"unknown key; did you mean {nearest}?"
    parent = name.rpartition(".")[0]
    siblings = _children(parent, keys)
    if parent and siblings:
        return f"unknown key; {parent} holds {', '.join(siblings)}"
    return f"unknown key; the top level holds {', '.join(_children('', keys))}"


def nearest_key(name: str, keys: Sequence[str]) -> str | None:
    """The valid key that was most likely meant; None where none resembles the name.

    Tried in turn: a longer name of the section (clip) or initials of one (lr), the same name in
    another section, a similar name in this section, in another one, the whole path.
    """
    parent, _, leaf = name.rpartition(".")
    siblings = _children(parent, keys)
    if parent in keys and not siblings:  # below a key that holds a value, not a section
        return parent
    shortened = [path for key, path in siblings.items() if key.startswith(f"{leaf}_")]
    initials = [path for key, path in siblings.items() if leaf == _initials(key)]
    for candidates in (initials, shortened):
        if candidates:
            return candidates[0]
    same_leaf = [key for key in keys if key.rpartition(".")[2] == leaf]
    if same_leaf:
        return difflib.get_close_matches(name, same_leaf, n=1, cutoff=0.0)[0]
    anywhere = {key.rpartition(".")[2]: key for key in reversed(keys)}
    for names in (siblings, anywhere):
        close = difflib.get_close_matches(leaf.lower(), names, n=1)
        if close:
            return names[close[0]]
    close = difflib.get_close_matches(name.lower(), [key for key in keys if key != parent], n=1)
    return close[0] if close else None


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_")) if "_" in name else ""


def _children(parent: str, keys: Iterable[str]) -> dict[str, str]:
    """Names of a section's keys, each with its whole path."""
    split = [(key.rpartition("."), key) for key in keys]
    return {leaf: key for (above, _, leaf), key in split if above == parent}
