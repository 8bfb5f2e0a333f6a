"""A run's folder: made once, never shared."""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppo.appendfile import replace_file, writing
from ppo.config import Config
from ppo.errors import CheckpointError, UserError


@dataclass(frozen=True)
class RunDirectory:
    """Where the files of one run are."""

    path: Path

    @classmethod
    def create(cls, config: Config) -> "RunDirectory":
        """A new folder under `runs_dir`, named after task, name, seed and time.

        Raises:
            UserError: if the folder cannot be made.
        """
        parts = [re.sub(r"[^\w.-]+", "-", config.env.id)]
        parts += [re.sub(r"[^\w.-]+", "-", config.name)] if config.name else []
        parts += [f"s{config.seed}", time.strftime("%Y%m%d-%H%M%S")]
        stem = "_".join(parts)
        attempt = 1
        while True:
            path = Path(config.runs_dir) / (stem if attempt == 1 else f"{stem}_{attempt}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # Making the folder is the claim: of two runs that ask for it, one is refused.
                path.mkdir()
            except FileExistsError:
                if not path.parent.is_dir():
                    raise UserError(f"runs_dir: {path.parent} is not a folder") from None
                attempt += 1
            except OSError as error:
                raise UserError(
                    f"{path}: the run's folder cannot be made ({error.strerror});"
                    " choose another runs_dir"
                ) from error
            else:
                (path / "checkpoints").mkdir()
                run = cls(path)
                run.write_config(config)
                return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """An existing run.

        Raises:
            UserError: if this is not a run's folder.
        """
        run = cls(Path(path))
        if not run.config_file.is_file():
            kind = "there is no such folder" if not run.path.exists() else "not a run's folder"
            raise UserError(f"{path}: {kind} (a run has a config.yaml and checkpoints)")
        return run

    @property
    def config_file(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    def write_config(self, config: Config) -> None:
        """Write the resolved config."""
        with writing(self.config_file):
            replace_file(self.config_file, config.to_yaml().encode())

    @property
    def evaluation_file(self) -> Path:
        """The evaluation at the end."""
        return self.path / "evaluation.json"

    def write_evaluation(self, record: Mapping[str, Any]) -> None:
        """Keep the evaluation at the end of training: what says that the run is finished."""
        with writing(self.evaluation_file):
            replace_file(self.evaluation_file, json.dumps(record, allow_nan=False).encode())

    def read_evaluation(self) -> dict[str, Any] | None:
        """What `write_evaluation` kept; None where there is none that can be read."""
        try:
            record = json.loads(self.evaluation_file.read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def checkpoint(self, which: str = "last") -> Path:
        """The file of `last`, `best`, or the env steps of a step_N checkpoint.

        Raises:
            CheckpointError: if there is none; the message lists those that there are.
        """
        digits = which.replace("_", "")
        name = f"step_{int(digits)}" if digits.isdecimal() else which
        file = self.path / "checkpoints" / f"{name}.pt"
        there = sorted(found.stem for found in (self.path / "checkpoints").glob("*.pt"))
        if name not in there:
            listed = ", ".join(there) if there else "none yet"
            raise CheckpointError(f"{self.path}: no checkpoint {which!r} here; there is: {listed}")
        return file

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all but the newest `keep` step_N checkpoints."""
        numbered = sorted(
            (file for file in self.path.glob("checkpoints/step_*.pt") if file.stem[5:].isdecimal()),
            key=lambda file: int(file.stem[5:]),
        )
        for file in numbered[: max(0, len(numbered) - keep)]:
            file.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run while training; a second process that wants it is refused.

        Raises:
            UserError: if another process is training this run.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.path}: another process is training this run; wait for it or stop it"
                ) from None
            except OSError:
                pass  # a file system without locks: nobody can be refused
            yield
        finally:
            os.close(descriptor)
