"""Building the native minibatch step, once for each shape of the networks."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from ppo.errors import UserError

SOURCE = "minibatch_step.cpp"

# Sums may be taken in any order, but a number that is none must stay one: not -ffast-math.
_OPTIMISE = (
    *("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"),
)
_COMPILE = ("-std=c++17", "-fPIC", "-pthread", "-c", "-w")
_SECONDS = 300


class BuildError(UserError):
    """The native function could not be built."""


def cpp_compiler() -> str | None:
    """The path of a C++ compiler that takes GCC's options; `CXX` may name it."""
    candidates = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def load_library(definitions: dict[str, str]) -> ctypes.CDLL:
    """The library for these definitions: from the cache, or built and put there.

    Args:
        definitions: macros of the source.

    Raises:
        BuildError: if there is no compiler, it fails, or its result cannot be kept or loaded.
    """
    compiler = cpp_compiler()
    if compiler is None:
        raise BuildError("no C++ compiler found; install g++ or clang++, or set CXX")
    try:
        path = cache_folder() / f"{_key(compiler, definitions)}.so"
        if not path.exists():
            _build(compiler, definitions, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{' '.join(str(error).split())}") from error


def cache_folder() -> Path:
    """Where libraries are kept, for this user alone: what lies here is run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "ppo"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise BuildError(f"{folder} must belong to you, and nobody else may write to it")
    return folder


def _source() -> str:
    return resources.files(__package__).joinpath(SOURCE).read_text(encoding="utf-8")


def _key(compiler: str, definitions: dict[str, str]) -> str:
    """Changes with everything that the result depends on: a home may serve several machines."""
    status = Path(compiler).resolve().stat()
    parts = (
        _source(),
        repr(sorted(definitions.items())),
        repr((_OPTIMISE, _COMPILE)),
        f"{compiler} {status.st_size} {status.st_mtime_ns}",
        platform.machine(),
        _instruction_set(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _instruction_set() -> str:
    """What `-march=native` goes by, as far as it can be known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    told = ("flags", "Features", "model", "cpu family", "vendor_id")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))


def _build(compiler: str, definitions: dict[str, str], path: Path) -> None:
    """Compile into a folder of its own, and move the result into place whole."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, compiled, linked = (Path(folder) / name for name in (SOURCE, "step.o", "step.so"))
        source.write_text(_source(), encoding="utf-8")
        macros = [f"-D{name}={value}" for name, value in definitions.items()]
        _run([compiler, *_OPTIMISE, *_COMPILE, *macros, str(source), "-o", str(compiled)])
        _run([compiler, "-shared", "-pthread", str(compiled), "-o", str(linked)])
        linked.replace(path)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {_SECONDS} s") from error
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise BuildError(f"{command[0]} failed: {' '.join(said.split())[:300]}")
