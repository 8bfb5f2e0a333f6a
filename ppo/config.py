"""Reads a configuration: a YAML file and command-line overrides, one parser, one validation.

Whatever cannot work is refused here, before any environment is made, in one line:

    configs/hopper.yaml:31: ppo.gae_lamda: unknown key; did you mean ppo.gae_lambda?
    --ppo.gamma: must be at most 1, not 1.5
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppo.config_errors import (
    Origins,
    Problem,
    config_error,
    one_line,
    problems_of,
    show,
    unknown_key,
)
from ppo.config_models import (
    AdaptiveKL,
    CheckpointConfig,
    Config,
    CriticConfig,
    EnvConfig,
    EvalConfig,
    LoggingConfig,
    NormalizeConfig,
    PolicyConfig,
    PPOConfig,
    config_keys,
    section_models,
)
from ppo.errors import ConfigError
from ppo.strict_yaml import Document, KeyPath, YamlFault, dotted, parse

__all__ = [
    "AdaptiveKL",
    "CheckpointConfig",
    "Config",
    "CriticConfig",
    "EnvConfig",
    "EvalConfig",
    "LoggingConfig",
    "NormalizeConfig",
    "PPOConfig",
    "PolicyConfig",
    "config_keys",
    "from_mapping",
    "load_config",
    "refuse_changes",
]

_KWARGS: KeyPath = ("env", "kwargs")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a YAML file, with overrides applied in their order.

    Args:
        path: the YAML file.
        overrides: such as `"ppo.gamma=0.98"`, `"env.kwargs.ctrl_cost_weight=0.1"` or
            `"policy.hidden_sizes=[256, 256]"`; the value is YAML, as in the file.

    Raises:
        ConfigError: one line that names the key, the file and the line (or the flag), and for an
            unknown key the nearest valid one.
    """
    source = str(path)
    text = _read(Path(path))
    try:
        document = parse(text)
    except YamlFault as fault:
        key = f"{dotted(fault.path)}: " if fault.path else ""
        raise ConfigError(one_line(f"{source}:{fault.line}: {key}{fault.message}")) from None
    if document.value is None:
        raise ConfigError(f"{source}: is empty; set at least env.id and ppo.total_timesteps")
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{source}:{document.lines[()]}: must hold sections such as env: and ppo:, not "
            f"{one_line(show(document.value))}"
        )
    return _validate(document, Origins(source, lines=document.lines), overrides)


def from_mapping(mapping: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration in plain Python, as `Config.to_mapping` gives it.

    Args:
        mapping: sections and values.
        source: where it comes from, named in messages.
        overrides: as in `load_config`.

    Raises:
        ConfigError: as in `load_config`, without line numbers.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{source}: must hold sections such as env and ppo, not {show(mapping)}")
    return _validate(Document(dict(mapping)), Origins(source), overrides)


def refuse_changes(before: Config, after: Config, fixed: Sequence[str]) -> None:
    """Refuse overrides of keys that shape what a checkpoint holds.

    Args:
        before: the config that the checkpoint was made with.
        after: the same with overrides.
        fixed: keys and sections that must stay; `env.backend` never matters.

    Raises:
        ConfigError: naming the first key that differs, and both values.
    """
    old, new = before.to_mapping(), after.to_mapping()
    for name in fixed:
        pairs = (
            [(f"{name}.{key}", old[name][key], new[name][key]) for key in old[name]]
            if isinstance(old[name], dict)
            else [(name, old[name], new[name])]
        )
        for key, was, would_be in pairs:
            if was != would_be and key != "env.backend":
                raise ConfigError(
                    f"--{key}: is {show(was)} in this run and cannot become {show(would_be)};"
                    " train a new run to change it"
                )


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(one_line(f"{path}: no such file{_nearest_file(path)}")) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise ConfigError(f"{path}:{line}: not UTF-8 text: the byte {byte:#04x}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(one_line(f"{path}: cannot be read: {reason}")) from None


def _nearest_file(path: Path) -> str:
    try:
        names = [file.name for file in path.parent.glob("*.yaml")]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _validate(document: Document, origins: Origins, overrides: Sequence[str]) -> Config:
    for override in overrides:
        document = _apply(override, document, origins)
    problems = [
        Problem(
            path,
            f"readers of YAML disagree on what {text} is; write true, false, .inf or a plain "
            "decimal number, or put it in quotes if text is meant",
        )
        for path, text in document.doubtful.items()
        if path[:2] == _KWARGS  # everywhere else the key's own type decides
    ]
    try:
        config = Config.model_validate(document.value)
    except ValidationError as error:
        problems += problems_of(error, config_keys())
        raise config_error(problems, origins) from None
    if problems:
        raise config_error(problems, origins)
    return config


def _apply(override: str, document: Document, origins: Origins) -> Document:
    """The document with one value set; the origins note that it came from the command line."""
    name, _, text = override.removeprefix("--").partition("=")
    name = name.strip()
    path = _override_path(name)
    value = _override_value(name, path, text)
    try:
        tree = _replaced(document.value, path, value.value)
    except TypeError as error:
        raise ConfigError(one_line(f"--{name}: {error}")) from None
    doubtful = {p: t for p, t in document.doubtful.items() if p[: len(path)] != path}
    doubtful |= {(*path, *p): t for p, t in value.doubtful.items()}
    origins.override(path)
    return Document(tree, doubtful=doubtful)


def _override_path(name: str) -> KeyPath:
    path: KeyPath = tuple(name.split("."))
    if path[:2] == _KWARGS and all(path):
        return path
    keys = config_keys()
    if name not in keys:
        raise ConfigError(one_line(f"--{name}: {unknown_key(name, keys)}"))
    sections = section_models()
    if name in sections:
        example = f"{name}.{next(iter(sections[name].model_fields))}"
        raise ConfigError(f"--{name}: is a section; set one of its keys, such as --{example}")
    return path


def _override_value(name: str, path: KeyPath, text: str) -> Document:
    if not text.strip():
        raise ConfigError(one_line(f"--{name}: needs a value; null stands for none"))
    try:
        document = parse(text)
    except YamlFault as fault:
        key = f"{dotted((*path, *fault.path))}: " if fault.path else ""
        raise ConfigError(one_line(f"--{name}: {key}{fault.message}")) from None
    rest = text[document.end :].strip()
    if rest:
        raise ConfigError(
            one_line(f"--{name}: {rest} is a comment to YAML; put the value in quotes")
        )
    return document


def _replaced(tree: Any, path: KeyPath, value: Any, done: KeyPath = ()) -> Any:
    """A copy of nested dicts with one value set; sections that are absent are made."""
    if not path:
        return value
    if tree is not None and not isinstance(tree, dict):
        raise TypeError(f"{dotted(done)} is {show(tree)}, so it has no keys to set")
    children = dict(tree or {})
    children[path[0]] = _replaced(children.get(path[0]), path[1:], value, (*done, path[0]))
    return children
