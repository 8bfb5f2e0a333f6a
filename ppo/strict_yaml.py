"""YAML as a person means it: numbers are numbers, nothing else turns into one, lines are kept.

YAML 1.1 reads 3e-4 as text, 017 as fifteen, 1:30 as ninety and `off` as false. Here a plain scalar
is null, a boolean, a decimal number or text, and nothing else:

    null       null, ~ or nothing
    boolean    true, false (also True, TRUE, ...); never yes, no, on, off
    number     3e-4, 1e6, 1_000_000, 0.5, .5, -2; infinity is .inf; no other base, no leading zeros
    text       everything else, and everything in quotes

Text that YAML 1.1 would have turned into something else, or that merely looks like a number, is
remembered as doubtful, so that a place that takes any value can refuse it.
"""

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

# Where a value stands: the keys (text) and list positions (int) that lead to it.
KeyPath = tuple[str | int, ...]
Scalar = str | int | float | bool | None

_INTEGER = re.compile(r"[-+]?(?:0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9](?:_?[0-9])*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?",
)
_INFINITY = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Digits that no rule above takes, other bases, and the words for what is not finite.
_LOOKS_NUMERIC = re.compile(
    r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9_]+)?"
    r"|[-+]?0[xXoObB][0-9a-fA-F_]+"
    r"|[-+]?\.?(?:inf|infinity|nan)",
    re.IGNORECASE,
)
_TEXT_TAG = "tag:yaml.org,2002:str"
_MAX_DEPTH = 32


class YamlFault(Exception):
    """What is wrong with a YAML text, and where.

    Args:
        path: the keys that lead to the place, as far as they are known.
        line: line number, counted from 1.
        message: what is wrong, in one line.
    """

    def __init__(self, path: KeyPath, line: int, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
        self.message = message


@dataclass
class Document:
    """A YAML text as plain Python, with the line of every key and list item.

    Attributes:
        value: dicts with text keys, lists and scalars.
        lines: line numbers, counted from 1.
        doubtful: plain text that another reader of YAML would take for something else.
        end: position in the text after the last character that belongs to the value.
    """

    value: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    doubtful: dict[KeyPath, str] = field(default_factory=dict)
    end: int = 0


def dotted(path: KeyPath) -> str:
    """A path as people write it: `policy.hidden_sizes[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse_plain(text: str) -> Scalar:
    """The value of an unquoted scalar; text where it is nothing else."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.fullmatch(text):
            return int(text)
    except ValueError:  # thousands of digits: Python refuses to convert them
        return text
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    if _INFINITY.fullmatch(text):
        return -math.inf if text.startswith("-") else math.inf
    return text


def is_doubtful(text: str) -> bool:
    """Whether unquoted text would be something else to another reader, or looks like a number."""
    resolved: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return resolved != _TEXT_TAG or _LOOKS_NUMERIC.fullmatch(text) is not None


def parse(text: str) -> Document:
    """Reads one YAML document; a text without one gives the value None.

    Raises:
        YamlFault: bad syntax, a duplicate key, an alias, a tag, or a key that is not text.
    """
    document = Document()
    try:
        node = _Loader(text).get_single_node()
        if node is not None:
            document.end = node.end_mark.index
            document.value = _convert(node, (), document)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlFault((), line, f"not YAML: a character {error.character:#06x}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise YamlFault((), line, f"not YAML: {error.problem or error.context}") from error
    except RecursionError as error:
        raise YamlFault((), 1, "not YAML: nested too deeply") from error
    return document


def dump(mapping: Mapping[str, Any]) -> str:
    """Plain Python as YAML that `parse` reads back to equal values; sections as blocks."""
    text: str = yaml.dump(
        dict(mapping), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=sys.maxsize
    )
    return text


_RESOLVER = yaml.resolver.Resolver()


class _Loader(yaml.SafeLoader):
    """Composes nodes; refuses what a configuration has no use for and a reader may overlook."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlFault((), line, f"alias *{event.anchor}: write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise YamlFault((), line, f"tag {tag}: tags are not supported; remove it")
        return super().compose_node(parent, index)


def _convert(node: yaml.Node, path: KeyPath, document: Document) -> Any:
    line = node.start_mark.line + 1
    if len(path) > _MAX_DEPTH:
        raise YamlFault(path, line, "nested too deeply")
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, path, document)
    document.lines.setdefault(path, line)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, i), document) for i, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode), node
    text: str = node.value
    if node.style is not None:  # quoted, or a block of text
        return text
    value = parse_plain(text)
    if isinstance(value, str) and is_doubtful(text):
        document.doubtful[path] = text
    return value


def _convert_mapping(node: yaml.MappingNode, path: KeyPath, document: Document) -> dict[str, Any]:
    document.lines.setdefault(path, node.start_mark.line + 1)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value
        is_text = isinstance(key_node, yaml.ScalarNode) and (
            key_node.style is not None or isinstance(parse_plain(key), str)
        )
        if not is_text:
            raise YamlFault(path, line, "a key must be text; put it in quotes if it is meant")
        here = (*path, key)
        if key in mapping:
            first = document.lines[here]
            raise YamlFault(here, line, f"duplicate key; it is set on line {first} already")
        document.lines[here] = line
        mapping[key] = _convert(value_node, here, document)
    return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes every text that would be read as something else; writes lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    needs_quotes = not isinstance(parse_plain(text), str) or is_doubtful(text)
    return dumper.represent_scalar(_TEXT_TAG, text, style='"' if needs_quotes else None)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
