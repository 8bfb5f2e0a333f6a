"""What `ppo trace` can be pointed at: a run, a config, or a CSV file of somebody else's."""

import math
from dataclasses import dataclass
from pathlib import Path

from ppo.appendfile import replace_file
from ppo.config import load_config
from ppo.diagnose.csvfile import read_rows
from ppo.diagnose.play import load_run, play
from ppo.diagnose.rows import Rows
from ppo.diagnose.trace import Trace, trace_rows
from ppo.errors import ConfigError, UserError

ADJACENCY = 1e-4
_DEFAULT_GAMMA, _DEFAULT_LAMBDA, _DEFAULT_BATCH = 0.99, 0.95, 64


@dataclass(frozen=True)
class Request:
    """What to trace, and how; None is what the source itself says.

    Attributes:
        checkpoint: of a run: last, best, or env steps.
        n_envs: environments side by side, of a run or a config.
        episodes: that must have ended.
        steps: vector steps at the most.
        gamma: discount per env step.
        lambdas: of the estimator, the first of which is looked at closely; empty for the source's.
        adjacency: relative tolerance between a next value and the value below it.
    """

    checkpoint: str = "last"
    n_envs: int = 1
    episodes: int = 1
    steps: int = 1_000
    gamma: float | None = None
    lambdas: tuple[float, ...] = ()
    adjacency: float = ADJACENCY


def trace_source(source: str, overrides: list[str], request: Request) -> Trace:
    """Trace a run's folder, a YAML file, or a CSV file.

    Args:
        source: its path.
        overrides: of the config, such as `"env.max_episode_steps=50"`; a CSV file has none.
        request: the rest.

    Raises:
        UserError: if there is no such thing, or it cannot be played or read.
    """
    path = Path(source)
    if path.is_dir():
        agent, config = load_run(path, checkpoint=request.checkpoint, overrides=overrides)
    elif path.suffix.lower() == ".csv":
        return _trace_file(path, overrides, request)
    else:
        agent, config = None, load_config(source, overrides)
    rows = play(
        agent,
        config,
        n_envs=request.n_envs,
        episodes=request.episodes,
        steps=request.steps,
    )
    kind = "a fresh agent" if agent is None else f"the agent of {source} ({request.checkpoint})"
    return _traced(
        rows,
        f"{config.env.id}, {kind}",
        request,
        gamma=config.ppo.gamma,
        gae_lambda=config.ppo.gae_lambda,
        batch_size=config.ppo.batch_size,
    )


def _trace_file(path: Path, overrides: list[str], request: Request) -> Trace:
    if overrides:
        raise ConfigError(
            f"--{overrides[0].partition('=')[0]}: a CSV file has no config; what it can be told is"
            " --gamma, --gae-lambda and --tolerance"
        )
    return _traced(
        read_rows(path, tolerance=request.adjacency),
        str(path),
        request,
        gamma=_DEFAULT_GAMMA,
        gae_lambda=_DEFAULT_LAMBDA,
        batch_size=_DEFAULT_BATCH,
    )


def _traced(
    rows: Rows,
    source: str,
    request: Request,
    *,
    gamma: float,
    gae_lambda: float,
    batch_size: int,
) -> Trace:
    if not math.isfinite(request.adjacency):
        raise UserError("--tolerance must be a finite number")
    try:
        return trace_rows(
            rows,
            source=source,
            gamma=gamma if request.gamma is None else request.gamma,
            lambdas=tuple(dict.fromkeys(request.lambdas)) or (gae_lambda,),
            batch_size=batch_size,
            adjacency=request.adjacency,
        )
    except ValueError as error:
        raise UserError(f"{source}: the advantages cannot be estimated: {error}") from error


def write_output(path: Path, content: bytes) -> None:
    """Write a file that the user asked for, whole or not at all.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        replace_file(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
