"""Where a run came from: versions, source state, machine and command."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ppo.appendfile import replace_file, writing
from ppo.cores import usable_cores
from ppo.errors import UserError

PROVENANCE_FILE = "provenance.json"
_DISTRIBUTIONS = {
    "ppo": "ppo-two-gates",
    "torch": "torch",
    "gymnasium": "gymnasium",
    "mujoco": "mujoco",
    "numpy": "numpy",
}
_GIT_TIMEOUT = 10.0  # seconds; a network file system must not hold a run up for long


@dataclass(frozen=True)
class SourceState:
    """The checkout that the code runs from.

    Attributes:
        commit: of HEAD.
        dirty: whether files differ from it, or the package has files that git does not know.
        diff_sha256: of those differences; None where there are none.
    """

    commit: str
    dirty: bool
    diff_sha256: str | None


@dataclass(frozen=True)
class Provenance:
    """One start of a run: what ran, from which source, where, and when.

    Attributes:
        started: UTC, ISO 8601.
        command: as it could be typed again in a shell.
        env_steps: global env steps that this start went on from; 0 for a new run.
        inherited: what it took over from another run, in words; None where nothing.
        versions: of Python and the packages that decide the numbers.
        source: None where the package does not run from a git checkout.
        cpu: model name.
        cpu_cores: logical cores that this process may use.
        platform: operating system and architecture.
    """

    started: str
    command: str
    env_steps: int
    inherited: str | None
    versions: dict[str, str]
    source: SourceState | None
    cpu: str
    cpu_cores: int
    platform: str


def provenance(
    argv: Sequence[str],
    *,
    env_steps: int = 0,
    inherited: str | None = None,
    package_dir: Path | None = None,
) -> Provenance:
    """Describe this process; never fails for want of git or of a package's metadata.

    Args:
        argv: the command line, `sys.argv`.
        env_steps: global env steps that the run goes on from.
        inherited: what the run took over from another one, in words.
        package_dir: the package's folder; None is this package's own.
    """
    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(_as_typed(argv)),
        env_steps=env_steps,
        inherited=inherited,
        versions={
            "python": platform.python_version(),
            **{name: _version(distribution) for name, distribution in _DISTRIBUTIONS.items()},
        },
        source=source_state(package_dir or Path(__file__).resolve().parent),
        cpu=_cpu_model(),
        cpu_cores=usable_cores(),
        platform=platform.platform(),
    )


def _as_typed(argv: Sequence[str]) -> list[str]:
    """`python -m ppo` shows as the path of a file that cannot be run by itself."""
    if Path(argv[0]).name == "__main__.py":
        return ["python", "-m", Path(argv[0]).parent.name, *argv[1:]]
    return list(argv)


def write_provenance(run_dir: Path, entry: Provenance) -> Path:
    """Add one start to the run's provenance.json, which keeps them all in order.

    Raises:
        UserError: if the file cannot be written, or what is there cannot be read.
    """
    path = run_dir / PROVENANCE_FILE
    starts = [*_earlier_starts(path), asdict(entry)]
    with writing(path):
        replace_file(path, (json.dumps({"starts": starts}, indent=2) + "\n").encode())
    return path


def source_state(package_dir: Path) -> SourceState | None:
    """The git state of the checkout that holds `package_dir`, or None.

    A package that is installed inside somebody else's checkout (a virtual environment in a
    project's folder) is not part of it: git has to know its __init__.py.
    """
    if _git(package_dir, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(package_dir, "rev-parse", "HEAD")
    diff = _git(package_dir, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")
    unknown = _git(package_dir, "ls-files", "--others", "--exclude-standard", "-z", ".")
    if commit is None or diff is None or unknown is None:
        return None
    digest = hashlib.sha256(diff)
    for name in sorted(filter(None, unknown.split(b"\0"))):
        path = package_dir / os.fsdecode(name)
        digest.update(b"\0" + name + b"\0" + (path.read_bytes() if path.is_file() else b""))
    dirty = bool(diff or unknown)
    return SourceState(
        commit=commit.decode().strip(),
        dirty=dirty,
        diff_sha256=digest.hexdigest() if dirty else None,
    )


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Output of a git command that only reads, or None where it fails."""
    # GIT_DIR and its kin, set inside a git hook, would point to another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _earlier_starts(path: Path) -> list[Any]:
    if not path.exists():
        return []
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))["starts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path}; move it away to go on without it") from error
    if not isinstance(starts, list):
        raise UserError(f'cannot read {path}: "starts" is no list; move it away to go on')
    return starts


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return platform.processor() or "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
