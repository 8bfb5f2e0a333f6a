import json
import os
import subprocess
import sys
import warnings

import pytest

from ppo.config import load_config
from ppo.errors import UserError
from ppo.train import train
from tests.runs import ROOT, command, config, config_file, files, only_run, start

COMMANDS = ("train", "resume", "eval")
FLAGS = ("-h", "--help")


@pytest.fixture
def seen(monkeypatch):
    """The configs that `ppo train` would train with."""
    configs = []

    def remember(given, **_):
        configs.append(given)
        raise SystemExit(0)

    monkeypatch.setattr("ppo.train.train", remember)
    return configs


@pytest.fixture
def no_environment(monkeypatch):
    """Fails the test where an environment is made."""

    def make(*_, **__):
        raise AssertionError("an environment was made")

    monkeypatch.setattr("ppo.train.make_vector_env", make)
    monkeypatch.setattr("ppo.evaluate.make_vector_env", make)


# --- help ---


@pytest.mark.parametrize(
    "arguments",
    [[], *([flag] for flag in FLAGS), *([name, flag] for name in COMMANDS for flag in FLAGS)],
)
def test_help_is_a_result(arguments):
    done = command(*arguments)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"Usage: ppo {' '.join(arguments[:-1])}".rstrip())
    assert "--help" in done.out


def test_help_lists_every_command():
    said = command("--help").out
    assert all(f"  {name} " in said for name in COMMANDS)


def test_help_and_typing_errors_do_not_wait_for_torch():
    code = (
        "import sys; from ppo.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    )
    for arguments in (["train", "--help"], ["trian"], ["train", "nothing.yaml"]):
        subprocess.run(
            [sys.executable, "-c", code, *arguments], check=True, cwd=ROOT, capture_output=True
        )


# --- errors: one line, before anything is made ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "trian"),
        (["train"], "exactly one CONFIG is needed"),
        (["resume"], "exactly one RUN is needed"),
        (["eval"], "exactly one RUN is needed"),
        (["train", "a.yaml", "b.yaml"], "exactly one CONFIG is needed, got: a.yaml b.yaml"),
        (["train", "a.yaml", "--seed"], "--seed: a value is missing after it"),
        (["train", "a.yaml", "--seed", "--name", "x"], "--seed: a value is missing after it"),
        (["train", "nothing.yaml"], "nothing.yaml"),
        (["resume", "nothing"], "nothing: there is no such folder"),
        (["eval", "nothing"], "nothing: there is no such folder"),
        (["eval", "nothing", "--episodes", "0"], "--episodes"),
        (["eval", "nothing", "--episodes", "many"], "--episodes"),
    ],
)
def test_a_misused_command_says_so_on_one_line(arguments, said):
    done = command(*arguments)
    assert done.status in (1, 2)
    assert done.out == ""
    assert said in done.error_line


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("ppo.gae_lamda", "0.9", "ppo.gae_lambda"),
        ("pop.gamma", "0.9", "ppo.gamma"),
        ("gae_lambda", "0.9", "gae_lambda"),
        ("ppo.gamma", "1.5", "ppo.gamma"),
        ("ppo.gamma", "high", "ppo.gamma"),
        ("ppo.n_steps", "2.5", "ppo.n_steps"),
        ("ppo.batch_size", "4096", "ppo.batch_size"),
        ("normalize.observations", "maybe", "normalize.observations"),
        ("ppo.desired_kl", "0.01", "adaptive_kl"),
        ("env.n_envs", "-1", "env.n_envs"),
        ("eval.n_envs", "3", "eval.n_envs"),
    ],
)
def test_a_wrong_flag_is_refused_before_any_environment(
    tmp_path, no_environment, flag, value, said
):
    file = config_file(tmp_path)
    for arguments in ([f"--{flag}", value], [f"--{flag}={value}"]):
        done = command("train", file, *arguments)
        assert done.status == 2
        assert said in done.error_line
    assert not (tmp_path / "runs").exists()


def test_a_typing_error_in_the_file_is_told_with_its_line(tmp_path, no_environment):
    file = tmp_path / "config.yaml"
    file.write_text("env: {id: CartPole-v1}\nppo:\n  total_timesteps: 1000\n  gae_lamda: 0.9\n")
    done = command("train", file)
    assert done.status == 2
    assert f"{file}:4" in done.error_line
    assert "ppo.gae_lamda" in done.error_line
    assert "gae_lambda" in done.error_line


def test_an_environment_that_is_not_there_is_named_with_its_nearest(tmp_path):
    done = command("train", config_file(tmp_path), "--env.id", "Cartpole-v1")
    assert done.status == 2
    assert "did you mean 'CartPole-v1'?" in done.error_line
    assert not (tmp_path / "runs").exists()


def test_debug_shows_the_traceback_above_the_line(tmp_path):
    file = config_file(tmp_path)
    for arguments in (["--debug", file, "--ppo.gamma", "2"], [file, "--ppo.gamma", "2", "--debug"]):
        done = command("train", *arguments)
        assert done.status == 2
        assert done.err.startswith("Traceback (most recent call last):")
        assert done.err.splitlines()[-1].startswith("ppo: --ppo.gamma")


def test_a_fault_of_the_program_is_one_line_too_and_says_how_to_see_more(tmp_path, monkeypatch):
    def fail(_, **__):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("ppo.train.train", fail)
    done = command("train", config_file(tmp_path))
    assert done.status == 1
    assert done.err == "ppo: unexpected ZeroDivisionError: two lines (--debug shows where)\n"


def test_ctrl_c_before_training_is_said(tmp_path, monkeypatch):
    def interrupt(_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ppo.train.train", interrupt)
    done = command("train", config_file(tmp_path))
    assert done.status == 130
    assert done.error_line == "ppo: stopped by SIGINT; nothing was changed"


# --- flags ---


@pytest.mark.parametrize(
    "flags",
    [
        ["--ppo.gamma", "0.9", "--seed", "3"],
        ["--ppo.gamma=0.9", "--seed=3"],
        ["--seed=3", "--ppo.gamma", "0.9"],
        ["--ppo.gamma", "0.5", "--ppo.gamma", "0.9", "--seed", "3"],  # the last one counts
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["file_first", "flags_first"])
def test_the_order_and_form_of_flags_is_free(tmp_path, seen, flags, first):
    file = config_file(tmp_path)
    assert command("train", *([file, *flags] if first else [*flags, file])).status == 0
    assert seen == [config(tmp_path, "Echo", "ppo.gamma=0.9", "seed=3")]


def test_flags_are_read_by_the_parser_of_the_file(tmp_path, seen):
    flags = {
        "normalize.observations": "false",
        "policy.hidden_sizes": "[32, 16]",
        "policy.log_std_init": "-1",
        "ppo.total_timesteps": "1_000",
        "ppo.learning_rate": "1e-3",
        "ppo.target_kl": "null",
        "env.kwargs.length": "8",
        "name": "legs",
    }
    tokens = [part for key, value in flags.items() for part in (f"--{key}", value)]
    assert command("train", config_file(tmp_path), *tokens).status == 0
    (given,) = seen
    assert given.normalize.observations is False
    assert given.policy.hidden_sizes == (32, 16)
    assert given.policy.log_std_init == -1.0
    assert given.ppo.total_timesteps == 1000
    assert given.ppo.learning_rate == 1e-3
    assert given.ppo.target_kl is None
    assert given.env.kwargs == {"action": "box", "length": 8}
    assert given.name == "legs"


def test_a_value_may_hold_an_equals_sign_or_start_with_a_minus(tmp_path, seen):
    flags = ["--env.kwargs.text=a=b", "--env.kwargs.low", "-0.5", "--env.kwargs.high=-2"]
    assert command("train", config_file(tmp_path), *flags).status == 0
    assert seen[0].env.kwargs == {
        "action": "box",
        "length": 16,
        "text": "a=b",
        "low": -0.5,
        "high": -2,
    }


# --- results ---


@pytest.mark.parametrize("place", [0, 1, 2])
def test_json_is_one_object_on_stdout_and_progress_goes_to_stderr(tmp_path, place):
    arguments = [config_file(tmp_path), "--logging.progress=plain"]
    arguments.insert(place, "--json")
    done = command("train", *arguments)
    assert done.status == 0
    assert done.out.count("\n") == 1
    result = json.loads(done.out)
    assert result["run_dir"] == str(only_run(tmp_path))
    assert result["env_steps"] == 64
    assert result["metrics"]["train/n_updates"] == 8
    assert result["evaluation"]["episodes"] == 2
    assert done.err.startswith("run: ")


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_what_an_environment_prints_is_no_result(tmp_path, backend):
    file = config_file(tmp_path, "Unruly", backend=backend, kwargs={"how": "print"})
    with start("train", file, "--json", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out)["env_steps"] == 64
    assert "a word of mine" in err
    with start("eval", json.loads(out)["run_dir"], "--json", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert json.loads(out)["episodes"] == 2
    assert "a word of mine" in err


def test_warnings_of_others_are_one_plain_line_each(tmp_path, monkeypatch):
    """Gymnasium colours its warnings for a terminal, whoever reads them."""

    def evaluate_run(*_, **__):
        for _ in range(2):
            warnings.warn("\x1b[33mWARN: out\nof date\x1b[0m", stacklevel=1)
        raise UserError("seen enough")

    monkeypatch.setattr("ppo.evaluate.evaluate_run", evaluate_run)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = command("eval", tmp_path)
    assert done.err == "warning: WARN: out of date\nppo: seen enough\n"


def test_a_result_in_words_says_where_everything_is(tmp_path):
    done = command("train", config_file(tmp_path))
    run_dir = only_run(tmp_path)
    assert (done.status, done.err) == (0, "")
    assert f"finished at env step 64: {run_dir}\n" in done.out
    assert "return over 2 episodes (deterministic policy): mean" in done.out
    assert f"curve: {run_dir}/learning_curve.png\n" in done.out
    assert f"ppo eval {run_dir}" in done.out


def test_a_full_or_closed_stdout_does_not_lose_a_run(tmp_path):
    file = config_file(tmp_path)
    with start("train", file, cwd=tmp_path) as process:
        process.stdout.close()
        err = process.stderr.read()
        status = process.wait(60)
    assert status != 0
    assert "Traceback" not in err
    run_dir = only_run(tmp_path)
    assert {"checkpoints/last.pt", "learning_curve.png"} <= files(run_dir).keys()


def test_the_config_of_a_run_trains_the_same_again(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    assert load_config(run_dir / "config.yaml") == config(tmp_path)


def test_python_m_ppo_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "ppo", "eval", os.devnull],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"ppo: {os.devnull}: not a run's folder (a run has a config.yaml and" + (
        " checkpoints)\n"
    )
