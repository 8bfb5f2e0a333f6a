"""Warnings as one plain line each, and each text once."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Gymnasium writes them whether or not a terminal reads


@contextmanager
def warnings_shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """While this is open, give the text of every warning that is not filtered out to `show`."""
    shown: set[str] = set()

    def pass_on(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(_COLOURS.sub("", str(message)).split())
        # Gymnasium resets the registry by which Python would know what it has shown.
        if text not in shown:
            shown.add(text)
            show(text)

    with warnings.catch_warnings():
        warnings.showwarning = pass_on
        yield


def print_warning(text: str) -> None:
    """To stderr, as the plain progress view shows it."""
    print(f"warning: {text}", file=sys.stderr, flush=True)
