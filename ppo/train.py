"""Starting and resuming runs: opens what a run needs, and closes it again whatever happens."""

import gc
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ppo.agent import Agent
from ppo.checkpoint import TrainingState
from ppo.config import Config, PPOConfig, from_mapping, refuse_changes
from ppo.critic import CriticVerdict
from ppo.envs import EnvBatch, make_vector_env
from ppo.errors import UserError
from ppo.estimation import Estimate, Estimator, estimate
from ppo.evaluate import Evaluation
from ppo.inheritance import Ancestor
from ppo.interrupts import StopSignals
from ppo.logger import RunLogger
from ppo.loop import Session, TrainingLoop
from ppo.plain_warnings import warnings_shown_by
from ppo.plan import Plan, nothing_left
from ppo.progress import ProgressView
from ppo.provenance import provenance, write_provenance
from ppo.rollout import Rollout
from ppo.rundir import RunDirectory
from ppo.stopwatch import Stopwatch
from ppo.storage import damage_named, read_checkpoint


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        run_dir: its folder.
        agent: as it was at the end.
        env_steps: done, in all environments together.
        final_metrics: the finite scalars of the last iteration, and of the evaluation after it
            (`eval/...`).
        evaluation: of the agent at the end, in fresh environments.
        deterministic: the evaluation took the mode of the policy.
        seconds: of this process, by what they went into.
        critic: the verdict on the critic at the end.
    """

    run_dir: Path
    agent: Agent
    env_steps: int
    final_metrics: dict[str, float]
    evaluation: Evaluation
    deterministic: bool
    seconds: dict[str, float]
    critic: CriticVerdict


def train(
    config: Config, *, ancestor: Ancestor | None = None, estimator: Estimator | None = None
) -> TrainResult:
    """Train an agent, in a new folder under `runs_dir`.

    Args:
        config: of the run.
        ancestor: the agent to start from; None starts from scratch.
        estimator: only for experiments that break the contract on purpose; None keeps it.

    Raises:
        UserError: if the run cannot start or go on; the message is one line.
        Interrupted: after Ctrl-C or SIGTERM, once the run is saved.
    """
    if ancestor is not None:
        ancestor.check_networks(config)
    return _run(config, ancestor=ancestor, estimator=estimator)


def resume(run_dir: str | Path, overrides: Sequence[str] = ()) -> TrainResult:
    """Go on with a run from its last checkpoint, as if nothing had happened.

    A run that was stopped in the evaluation at its end makes it up.

    Args:
        run_dir: the run's folder.
        overrides: such as `"ppo.total_timesteps=2_000_000"`; what shapes the agent or its task
            cannot change.

    Raises:
        UserError: if there is nothing to go on from, or the run is finished.
        Interrupted: as `train`.
    """
    run = RunDirectory.open(run_dir)
    with run.lock():
        file = run.checkpoint("last")
        contents = read_checkpoint(file)
        with damage_named(str(file)):
            before = from_mapping(contents["config"], source=str(file))
            counters = {name: int(value) for name, value in contents["counters"].items()}
            done = counters["env_steps"]
        config = from_mapping(contents["config"], source=str(file), overrides=overrides)
        refuse_changes(before, config, ("seed", "env", "policy", "normalize"))
        kept = run.read_evaluation() or {}
        if nothing_left(config, counters) and kept.get("env_steps") == done:
            total = Plan.of(config).env_steps
            raise UserError(
                f"{run.path}: finished at {done:,} of {total:,} env steps; extend it with"
                f" --ppo.total_timesteps {2 * done}"
            )
        return _run(config, run, contents)


def _run(
    config: Config,
    run: RunDirectory | None = None,
    contents: dict[str, Any] | None = None,
    *,
    ancestor: Ancestor | None = None,
    estimator: Estimator | None = None,
) -> TrainResult:
    """Open everything, train, and close everything.

    Args:
        config: of the run.
        run: the folder to go on in, which the caller holds; None makes a new one, once nothing
            that the user wrote can fail any more.
        contents: the checkpoint to go on from.
        ancestor: the agent that a new run starts from.
        estimator: in the place of the contract's.
    """
    stopwatch = Stopwatch("starting")
    torch.set_num_threads(config.torch_threads)
    plan = Plan.of(config)
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        with signals.interruptible():
            envs = stack.enter_context(make_vector_env(config.env))
        state = _initial_state(config, envs, contents)
        inherited = ancestor.hand_down(state.agent, config) if ancestor else None
        if run is None:
            run = RunDirectory.create(config)
            stack.enter_context(run.lock())
        else:
            run.write_config(config)
        write_provenance(
            run.path, provenance(sys.argv, env_steps=state.env_steps, inherited=inherited)
        )
        logger = stack.enter_context(
            RunLogger(
                run.path,
                tensorboard=config.logging.tensorboard,
                resume_at=None if contents is None else state.env_steps,
            )
        )
        view = stack.enter_context(
            ProgressView(
                plan.env_steps,
                mode=config.logging.progress,
                start_steps=state.env_steps,
                title=f"{config.env.id}  seed {config.seed}",
            )
        )
        stack.enter_context(warnings_shown_by(partial(view.message, warning=True)))
        stack.enter_context(_start_up_not_collected())
        if inherited is not None:
            view.message(inherited)
        by_contract = partial(_by_contract, config.ppo)
        session = Session(
            run, envs, plan, logger, view, signals, stopwatch, estimator or by_contract
        )
        loop = TrainingLoop(config, state, session)
        evaluation = loop.run()
        run.write_evaluation(
            {
                "env_steps": state.env_steps,
                "deterministic": config.eval.deterministic,
                **evaluation.record(),
            }
        )
    return TrainResult(
        run_dir=run.path,
        agent=state.agent,
        env_steps=state.env_steps,
        final_metrics={
            tag: value
            for tag, value in {**loop.metrics, **evaluation.metrics()}.items()
            if math.isfinite(value)
        },
        evaluation=evaluation,
        deterministic=config.eval.deterministic,
        seconds=stopwatch.stop(),
        critic=state.critic.verdict(),
    )


def _by_contract(settings: PPOConfig, _agent: Agent, rollout: Rollout) -> Estimate:
    return estimate(rollout, gamma=settings.gamma, gae_lambda=settings.gae_lambda)


def _initial_state(
    config: Config, envs: EnvBatch, contents: dict[str, Any] | None
) -> TrainingState:
    device = _device(config.device)
    if contents is None:
        return TrainingState.fresh(
            config,
            observation_size=envs.observation_size,
            action_space=envs.action_space,
            device=device,
        )
    state = TrainingState.restore(contents, config, device)
    # A run that was stopped before its first step has used no seed yet.
    state.resumes += state.env_steps > 0
    before, ppo = contents["config"]["ppo"], config.ppo
    if (before["learning_rate"], before["lr_schedule"]) != (ppo.learning_rate, ppo.lr_schedule):
        state.learning_rate = ppo.learning_rate
    if ppo.adaptive_kl is not None:
        low, high = ppo.adaptive_kl.min_learning_rate, ppo.adaptive_kl.max_learning_rate
        state.learning_rate = min(max(state.learning_rate, low), high)
    return state


def _device(setting: str) -> torch.device:
    """The device that a config names; `auto` is the CPU, where networks this small are fastest.

    Raises:
        UserError: if CUDA is asked for and not there.
    """
    if setting == "auto":
        return torch.device("cpu")
    device = torch.device(setting)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device: {setting} is not available on this machine; use cpu or auto")
    return device


@contextmanager
def _start_up_not_collected() -> Iterator[None]:
    """Keep what was made until now out of garbage collections, which would walk all of it.

    Importing PyTorch alone makes hundreds of thousands of objects that live as long as the
    process; a training step makes few, and walking the others costs it 3%.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
