"""The commands. Each is a thin layer over the package; messages go to stderr, results to stdout."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppo.command_line import (
    EXIT_FAILURE,
    command,
    print_json,
    results_only,
    run,
    split_arguments,
)
from ppo.errors import UserError

if TYPE_CHECKING:
    from ppo.evaluate import Evaluation
    from ppo.inheritance import Reset
    from ppo.sweep.report import Report
    from ppo.train import TrainResult

_profile = click.option("--profile", is_flag=True, help="Show where the time of the run went.")


@command("train", any_key="CONFIG")
@_profile
@click.option(
    "--from", "source", metavar="RUN", help="Start from this run's agent (or a checkpoint's)."
)
@click.option(
    "--reset",
    "resets",
    type=click.Choice(["critic", "normalizers", "reward-normalizer"]),
    multiple=True,
    help="Of the agent of --from, for a changed reward: start this anew. normalizers are the"
    " statistics of observations and rewards.",
)
def train_command(
    arguments: tuple[str, ...],
    profile: bool,
    source: str | None,
    resets: tuple["Reset", ...],
    as_json: bool,
) -> None:
    """Train an agent from a YAML file.

    Any key of the file is also a flag: --ppo.gae_lambda 0.9, --normalize.observations false,
    --env.kwargs.ctrl_cost_weight 0.1, --seed 3.
    """
    config_file, overrides = split_arguments(arguments, "CONFIG")
    # What is imported here takes a second: a typing error is told before that.
    from ppo.config import load_config

    config = load_config(config_file, overrides)
    if resets and source is None:
        raise click.UsageError("--reset is about the agent of --from RUN, which is missing")
    from ppo.inheritance import Ancestor
    from ppo.train import train

    ancestor = None if source is None else Ancestor.read(source, resets)
    with results_only():
        result = train(config, ancestor=ancestor)
    _print_result(result, as_json, profile=profile)


@command("resume", any_key="RUN")
@_profile
def resume_command(arguments: tuple[str, ...], profile: bool, as_json: bool) -> None:
    """Go on with a run from its last checkpoint.

    RUN is its folder. A finished run goes on with a larger budget: --ppo.total_timesteps
    2_000_000. Keys that shape the agent or its task cannot change.
    """
    run, overrides = split_arguments(arguments, "RUN")
    from ppo.train import resume

    with results_only():
        result = resume(run, overrides)
    _print_result(result, as_json, profile=profile)


@command("eval", any_key="RUN")
@click.option(
    "--checkpoint",
    default="last",
    show_default=True,
    help="last, best, or the env steps of a step_N checkpoint.",
)
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    help="Whole episodes; the config's eval.episodes by default.",
)
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the mode.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Of the environments; the run's own by default.",
)
def eval_command(
    arguments: tuple[str, ...],
    checkpoint: str,
    episodes: int | None,
    stochastic: bool,
    seed: int | None,
    as_json: bool,
) -> None:
    """Evaluate a run in fresh environments, with frozen statistics.

    RUN is its folder. The environments' seeds are disjoint from training's, and every environment
    plays the same number of episodes. Keys of the configuration are flags here too:
    --eval.max_episode_steps 5000.
    """
    run, overrides = split_arguments(arguments, "RUN")
    from ppo.evaluate import evaluate_run

    if episodes is not None:
        n_envs_given = any(override.startswith("eval.n_envs=") for override in overrides)
        overrides += [f"eval.episodes={episodes}"]
        overrides += [] if n_envs_given else ["eval.n_envs=null"]
    overrides += ["eval.deterministic=false"] if stochastic else []
    with results_only():
        result = evaluate_run(run, checkpoint=checkpoint, overrides=overrides, seed=seed)
    if as_json:
        print_json(
            {
                "run_dir": run,
                "checkpoint": checkpoint,
                "env_steps": result.env_steps,
                "selected": result.selected,
                "deterministic": result.deterministic,
                **result.evaluation.record(),
            }
        )
        return
    label = f"{checkpoint}, at env step {result.env_steps:,}"
    if result.selected:
        label += "; selected: the best of the evaluations during training"
    click.echo(f"{run} ({label})")
    click.echo(describe(result.evaluation, deterministic=result.deterministic))


_unit = click.FloatRange(0.0, 1.0)


@command("trace", any_key="RUN|CONFIG|CSV")
@click.option(
    "--gae-lambda",
    "lambdas",
    type=_unit,
    multiple=True,
    help="Of the estimator; may be given several times, side by side. The source's by default.",
)
@click.option("--gamma", type=_unit, help="Discount; the source's by default, 0.99 for a CSV.")
@click.option("--checkpoint", default="last", show_default=True, help="Of a run.")
@click.option(
    "--envs",
    "n_envs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Environments side by side.",
)
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Play until so many have ended.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=1_000, show_default=True, help="At the most."
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="Shown in the table at the most; 0 for all.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=1e-4,
    show_default=True,
    help="Relative, between a next value and the value of the row below.",
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Where to draw; trace.png in the run's folder, or beside the CSV file, by default.",
)
def trace_command(
    arguments: tuple[str, ...],
    rows: int,
    csv_file: Path | None,
    picture: Path | None,
    tolerance: float,
    as_json: bool,
    **asked: Any,
) -> None:
    """Show what the advantages of a trajectory are made of, row by row, and check them.

    The argument is the folder of a run, a YAML file (a fresh agent), or a CSV file with columns
    reward, value, next_value, terminated, truncated (and cut, env, episode, advantage, target)
    from another trainer. Keys of the configuration are flags here too.
    """
    source, overrides = split_arguments(arguments, "RUN, CONFIG or CSV")
    from ppo.diagnose.report import as_csv, as_record, describe_trace
    from ppo.diagnose.sources import Request, trace_source, write_output

    with results_only():
        traced = trace_source(source, overrides, Request(**asked, adjacency=tolerance))
    from ppo.diagnose.picture import picture_of, picture_path

    picture = picture or picture_path(Path(source))
    write_output(picture, picture_of(traced))
    if csv_file is not None:
        write_output(csv_file, as_csv(traced).encode())
    if as_json:
        print_json({**as_record(traced), "picture": str(picture)})
        return
    click.echo(describe_trace(traced, most_rows=rows))
    click.echo(f"\npicture: {picture}")


@command("check-env", any_key="ID")
@click.option("--gamma", type=_unit, default=0.99, show_default=True)
@click.option(
    "--steps",
    type=click.IntRange(min=10),
    default=3_000,
    show_default=True,
    help="Env steps with random actions.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def check_env_command(
    arguments: tuple[str, ...], gamma: float, steps: int, seed: int, as_json: bool
) -> None:
    """Audit an environment in the terms that matter to PPO, before anyone trains on it.

    ID is Gymnasium's, or module:Id-v0. The env part of a configuration can be given as flags:
    --env.max_episode_steps 100, --env.kwargs.ctrl_cost_weight 0.1. The exit status is 0 only where
    there are no faults.
    """
    env_id, overrides = split_arguments(arguments, "ID")
    from ppo.diagnose.audit import audit, settings_of
    from ppo.diagnose.audit_report import audit_record, describe_audit

    with results_only():
        audited = audit(settings_of(env_id, overrides), gamma=gamma, steps=steps, seed=seed)
    if as_json:
        print_json(audit_record(audited))
    else:
        click.echo(describe_audit(audited))
    if audited.faults:
        sys.exit(EXIT_FAILURE)


@command("sweep", any_key="FILE")
@click.option("--workers", type=click.IntRange(min=1), help="Runs side by side; the file's.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
def sweep_command(
    arguments: tuple[str, ...], workers: int | None, dry_run: bool, as_json: bool
) -> None:
    """Run every combination of a grid with every seed, then report on them.

    FILE is YAML: base, grid, seeds, budget (see configs/sweeps). Started again, it goes on:
    finished runs are not repeated. Keys of the base config are flags here too, for all cells.
    """
    file, overrides = split_arguments(arguments, "FILE")
    from ppo.sweep.spec import load_sweep

    sweep = load_sweep(file, overrides)
    from ppo.sweep.report import make_report, write_report
    from ppo.sweep.run import plan_sweep, run_sweep

    plan = plan_sweep(sweep, workers=workers)
    if dry_run:
        if as_json:
            print_json(plan.record())
        else:
            click.echo(plan.describe())
        return
    click.echo(plan.describe(), err=True)
    failed = run_sweep(plan)
    if len(failed) < len(plan.jobs):
        report = make_report([sweep.folder], title=sweep.name)
        _print_report(report, write_report(report, sweep.folder), as_json)
    if failed:
        first = f"{failed[0].name}: {failed[0].reason()}"
        raise UserError(
            f"{len(failed)} of {len(plan.jobs)} runs failed; the first is {first}; what it printed"
            f" is in {failed[0].log}"
        )


@command("report", any_key="DIR...")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where to write it; the first DIR by default."
)
def report_command(arguments: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Compare finished runs: tables, intervals, pictures, and a verdict in words.

    Runs are looked for in each DIR and below it. Writes report.md, report.html, results.csv and
    images.
    """
    unknown = next((each for each in arguments if each.startswith("-")), None)
    if unknown is not None:
        raise click.UsageError(f"there is no option {unknown}")
    if not arguments:
        raise click.UsageError("a DIR with runs is needed")
    from ppo.sweep.report import make_report, write_report

    folders = [Path(each) for each in arguments]
    report = make_report(folders)
    _print_report(report, write_report(report, out or folders[0]), as_json)


def _print_report(report: "Report", file: Path, as_json: bool) -> None:
    verdicts, left_out = report.verdicts(), report.collected.left_out
    if as_json:
        print_json(
            {
                "report": str(file),
                "runs": len(report.collected.runs),
                "left_out": {str(path): reason for path, reason in left_out.items()},
                "verdicts": verdicts,
            }
        )
        return
    for task, sentences in verdicts.items():
        click.echo(task)
        for sentence in filter(None, sentences):
            click.echo(f"  {sentence.replace('**', '')}")
    for path, reason in left_out.items():
        click.echo(f"not used: {path}: {reason}")
    click.echo(f"report: {file} (and report.html, results.csv beside it)")


def describe(evaluation: "Evaluation", *, deterministic: bool) -> str:
    """An evaluation in words."""
    numbers = evaluation.summary()
    text = (
        f"return over {len(evaluation.episodes)} episodes"
        f" ({'deterministic' if deterministic else 'stochastic'} policy):"
        f" mean {numbers['mean']:.1f}, std {numbers['std']:.1f}, median {numbers['median']:.1f},"
        f" min {numbers['min']:.1f}, max {numbers['max']:.1f};"
        f" mean length {numbers['mean_length']:.0f}"
    )
    if evaluation.n_capped:
        text += (
            f"\n{evaluation.n_capped} of them were stopped by the cap of {evaluation.step_cap:,}"
            " env steps (eval.max_episode_steps): their returns are lower bounds only where"
            " rewards are positive"
        )
    return text


def _print_result(result: "TrainResult", as_json: bool, *, profile: bool) -> None:
    if as_json:
        print_json(
            {
                "run_dir": str(result.run_dir),
                "env_steps": result.env_steps,
                "metrics": result.final_metrics,
                "evaluation": result.evaluation.summary(),
                "critic": asdict(result.critic),
                **({"seconds": result.seconds} if profile else {}),
            }
        )
        return
    click.echo(f"finished at env step {result.env_steps:,}: {result.run_dir}")
    click.echo(describe(result.evaluation, deterministic=result.deterministic))
    click.echo(f"critic {result.critic.describe()}")
    click.echo(f"curve: {result.run_dir / 'learning_curve.png'}")
    click.echo(f"evaluate again: ppo eval {result.run_dir}")
    if profile:
        click.echo(describe_time(result.seconds))


def describe_time(seconds: Mapping[str, float]) -> str:
    """Where the time of a run went, longest first."""
    total = sum(seconds.values())
    rows = [f"{'total':<12}{total:>9.2f} s"]
    rows += [f"{name:<12}{spent:>9.2f} s{spent / total:>7.1%}" for name, spent in seconds.items()]
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 on success only, errors as one line on stderr."""
    run(argv)
