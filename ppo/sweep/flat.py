"""A configuration as dotted keys, and values in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ppo.config import Config
from ppo.strict_yaml import dump


def flat(config: Config) -> dict[str, Any]:
    """Dotted keys and their values."""

    def walk(prefix: str, mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in mapping.items():
            name = f"{prefix}.{key}" if prefix else key
            if isinstance(value, Mapping) and value:
                yield from walk(name, value)
            else:
                yield name, value

    return dict(walk("", config.to_mapping()))


def as_text(value: Any) -> str:
    """A value as it stands in YAML, on one line."""
    return dump({"v": value}).partition(":")[2].strip()


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of every key, or the whole of it where two end alike."""
    last = {key: key.rpartition(".")[2] for key in keys}
    names = list(last.values())
    return {key: name if names.count(name) == 1 else key for key, name in last.items()}
