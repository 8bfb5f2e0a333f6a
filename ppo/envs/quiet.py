"""MuJoCo's messages: deprecation lines are dropped, real warnings are shown once per kind.

Left alone, MuJoCo prints a deprecation line for every environment made, and writes
MUJOCO_LOG.TXT into the folder that the user happens to be in.
"""

import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

_KINDS = 64  # far more than MuJoCo has; later ones stay silent
_NUMBER = re.compile(r"[-+]?\d[\d.e+-]*")


class ShownKinds(Protocol):
    """The checksums of the kinds that were shown; 0 is a free place. A list, or shared memory."""

    def __iter__(self) -> Iterator[int]: ...
    def __setitem__(self, place: int, kind: int, /) -> None: ...


_shown: ShownKinds = [0] * _KINDS
_turn: AbstractContextManager[Any] = nullcontext()  # of the process that looks and notes


def shown_kinds() -> ShownKinds:
    """What this process has shown so far."""
    return _shown


def share_shown_kinds(shared: ShownKinds, turn: AbstractContextManager[Any]) -> None:
    """Let this process note what it shows in `shared`, so that all workers speak once together.

    `turn` keeps two workers from finding at the same moment that nothing was shown yet.
    """
    global _shown, _turn  # MuJoCo has one callback per process, and so has this
    _shown, _turn = shared, turn


def quiet_mujoco() -> None:
    """Take over MuJoCo's messages, where MuJoCo is in use and nobody else has taken them."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_on_warning)


def _on_warning(message: str) -> None:
    if "is deprecated" in message:
        return
    # One kind is one text but for its numbers: the time, the joint.
    kind = zlib.crc32(_NUMBER.sub("#", message).encode()) or 1
    with _turn:
        found = next((entry for entry in enumerate(_shown) if entry[1] in (0, kind)), None)
        if found is None or found[1] == kind:
            return
        _shown[found[0]] = kind
    text = " ".join(message.split())
    print(f"MuJoCo warning: {text} (shown once per kind)", file=sys.stderr, flush=True)
