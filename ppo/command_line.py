"""What all commands have in common: options, arguments, results, errors and exit statuses."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import click

from ppo.errors import ConfigError, UserError
from ppo.interrupts import Interrupted
from ppo.plain_warnings import print_warning, warnings_shown_by

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Train, resume, evaluate and look into PPO agents on Gymnasium tasks."""


def command(name: str, *, any_key: str | None = None) -> Callable[[Command], click.Command]:
    """A command with the options that all have.

    With `any_key`, it takes one argument of that name and, as flags, every key of the
    configuration; those are parsed by the config's own parser, not here.
    """

    def register(function: Command) -> click.Command:
        settings: dict[str, Any] = {}
        decorated: Any = function
        if any_key:
            settings = {
                "context_settings": {"ignore_unknown_options": True},
                "options_metavar": f"{any_key} [OPTIONS] [--KEY VALUE]...",
            }
            decorated = click.argument("arguments", nargs=-1, metavar="")(decorated)
        decorated = click.option(
            "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
        )(decorated)
        decorated = click.option(
            "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
        )(decorated)
        return app.command(name, **settings)(decorated)

    return register


def split_arguments(tokens: Sequence[str], what: str) -> tuple[str, list[str]]:
    """The one positional argument, and `--key value` or `--key=value` as "key=value" overrides.

    Raises:
        click.UsageError: if there is not exactly one, or a flag has no value.
    """
    positional: list[str] = []
    overrides: list[str] = []
    remaining = iter(tokens)
    for token in remaining:
        if not token.startswith("--"):
            positional.append(token)
            continue
        key, equals, value = token[2:].partition("=")
        given = value if equals else next(remaining, None)
        if given is None or (not equals and given.startswith("--")):
            raise click.UsageError(f"--{key}: a value is missing after it")
        overrides.append(f"{key}={given}")
    if len(positional) != 1:
        extra = f", got: {' '.join(positional)}" if positional else ""
        raise click.UsageError(f"exactly one {what} is needed{extra}")
    return positional[0], overrides


def results_only() -> AbstractContextManager[Any]:
    """Keep stdout for the result: what an environment prints goes to stderr."""
    return redirect_stdout(sys.stderr)


def print_json(record: dict[str, Any]) -> None:
    """The result as one line on stdout."""
    click.echo(json.dumps(record, allow_nan=False))


def run(argv: Sequence[str] | None) -> None:
    """Run a command and exit: 0 on success only, errors as one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # As with `python -m ppo`: `module:Task-v0` finds a module in the folder one stands in.
    sys.path.append(str(Path.cwd()))
    try:
        # Not app.main, which answers Ctrl-C itself.
        with warnings_shown_by(print_warning), app.make_context("ppo", arguments) as context:
            app.invoke(context)
        sys.stdout.flush()
    except BaseException as error:  # the one place where every failure becomes an exit status
        if "--debug" in arguments:
            traceback.print_exc()
        sys.exit(_report(error))


def _report(error: BaseException) -> int:
    """One line on stderr; returns the exit status."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILURE
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, Interrupted):
        where = f"; {error.advice}" if error.advice else ""
        if error.run_dir is not None:
            where = f" at env step {error.env_steps:,}; go on with: ppo resume {error.run_dir}"
        _say(f"stopped by {error}{where}")
        return error.exit_status
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _say("stopped by SIGINT; nothing was changed")
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        _say(f"{error.format_message()} (see ppo --help)")
        return EXIT_USAGE
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has gone; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    if isinstance(error, UserError):
        _say(str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
    _say(f"unexpected {type(error).__name__}: {error} (--debug shows where)")
    return EXIT_FAILURE


def _say(text: str) -> None:
    print(f"ppo: {' '.join(text.split())}", file=sys.stderr)
