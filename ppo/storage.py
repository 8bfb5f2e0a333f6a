"""Checkpoint files: written atomically, and read without running anything that is in them."""

import io
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from ppo.errors import CheckpointError

FORMAT = 1


def write_checkpoint(file: Path, contents: dict[str, Any]) -> None:
    """Write tensors and plain Python to `file`, whole or not at all.

    Raises:
        CheckpointError: if the disk refuses; what stood at `file` before is untouched, and nothing
            half-written is left beside it.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Not straight into the file: torch.save hides what the disk has to say.
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **contents}, buffer)
        with temporary.open("wb") as stream:
            stream.write(buffer.getbuffer())
            stream.flush()
            # Renaming may reach the disk before the data does, unless the data is there already.
            os.fsync(stream.fileno())
        temporary.replace(file)
        _sync_folder(file.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{file}: the checkpoint could not be written ({reason}); the one before is untouched"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Let the new name reach the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(file: Path) -> dict[str, Any]:
    """The contents of a checkpoint; only tensors and plain Python can be in it.

    Raises:
        CheckpointError: if there is none, or it cannot be read.
    """
    if not file.is_file():
        raise CheckpointError(f"{file}: there is no checkpoint here; train first, or name a run")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on files that are not its own
            contents: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Not torch's words: they tell how to load the file all the same.
        raise CheckpointError(
            f"{file}: not a checkpoint that can be read: it is damaged, or holds more than tensors"
            " and plain data, which is never loaded"
        ) from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file}: not a checkpoint that can be read ({reason})") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise CheckpointError(f"{file}: not a checkpoint of this version of the trainer")
    return contents


@contextmanager
def damage_named(name: str) -> Iterator[None]:
    """Turn what goes wrong while the contents of a checkpoint are used into a CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise CheckpointError(
            f"{name} is damaged, or does not fit this version of the trainer"
            f" ({type(error).__name__}: {said})"
        ) from error
