import multiprocessing
import os
import signal
import threading

import pytest

from ppo.errors import EnvironmentFault
from ppo.interrupts import Interrupted, StopSignals
from ppo.train import resume, train
from tests.runs import (
    alive,
    checkpoint,
    children,
    column,
    config,
    config_file,
    only_run,
    rows,
    scalars,
    start,
)


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


# --- where a signal may arrive ---


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_an_interruptible_stretch_at_once(signum, status):
    reached = []

    def stretch() -> None:
        with StopSignals() as signals, signals.interruptible():
            reached.append("before")
            send(signum)
            reached.append("after")

    with pytest.raises(Interrupted) as caught:
        stretch()
    assert reached == ["before"]
    assert caught.value.exit_status == status
    assert str(caught.value) == signal.Signals(signum).name


def test_a_signal_waits_until_what_must_not_be_cut_is_done():
    done = []
    with StopSignals() as signals:
        send(signal.SIGTERM)
        done.append("written")
        with pytest.raises(Interrupted), signals.interruptible():
            done.append("never")
    assert done == ["written"]


def test_a_second_signal_does_not_interrupt_the_saving():
    saved = []
    with StopSignals() as signals:
        try:
            with signals.interruptible():
                send(signal.SIGINT)
        except Interrupted:
            send(signal.SIGINT)
            saved.append(True)
    assert saved == [True]


def test_the_former_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_nothing_happens():
    seen = []

    def run() -> None:
        with StopSignals() as signals, signals.interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


# --- a run that is stopped ---


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_what_is_saved_is_the_end_of_the_last_whole_iteration(tmp_path, how):
    settings = config(
        tmp_path,
        "tests.runs:Halting-v0",
        "ppo.total_timesteps=320",
        kwargs={"how": how, "at": 40},
    )
    with pytest.raises(Interrupted) as caught:
        train(settings)
    run_dir = only_run(tmp_path)
    assert (caught.value.run_dir, caught.value.env_steps) == (run_dir, 64)
    saved = checkpoint(run_dir)
    assert saved["counters"]["env_steps"] == 64
    assert saved["agent"]["observation_moments"]["count"] == 64
    assert [row["env_steps"] for row in rows(run_dir)] == ["32", "64"]
    assert (run_dir / "learning_curve.png").is_file()


def test_a_run_that_is_stopped_in_its_first_iteration_can_go_on(tmp_path):
    settings = config(
        tmp_path,
        "tests.runs:Halting-v0",
        "ppo.total_timesteps=20",
        kwargs={"how": "SIGINT", "at": 11},
        n_envs=1,
    )
    with pytest.raises(Interrupted):
        train(settings)
    run_dir = only_run(tmp_path)
    assert checkpoint(run_dir)["counters"]["env_steps"] == 0
    with pytest.raises(Interrupted):
        resume(run_dir)
    # Nothing of the first start was kept: the second is the same run from its beginning.
    assert checkpoint(run_dir)["counters"]["resumes"] == 0


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_saves_says_how_to_go_on_and_leaves_no_process(tmp_path, signum, status):
    file = config_file(
        tmp_path,
        "Cnt",
        "ppo.total_timesteps=1_000_000",
        "checkpoint.every=0",
        "logging.progress=plain",
        "logging.tensorboard=true",
        backend="async",
        kwargs={"action": "box"},
    )
    with start("train", file, cwd=tmp_path) as process:
        said = _first_progress(process.stderr)
        workers = children(process.pid)
        # As a terminal does: to the whole group.
        os.killpg(process.pid, signum)
        out, rest = process.communicate(timeout=10)
    run_dir = only_run(tmp_path)
    assert process.returncode == status
    assert len(workers) >= 2
    assert alive(workers) == set()
    assert out == ""
    done = checkpoint(run_dir)["counters"]["env_steps"]
    name = signal.Signals(signum).name
    assert rest.splitlines()[-1] == (
        f"ppo: stopped by {name} at env step {done:,}; go on with: ppo resume {run_dir}"
    )
    assert "Traceback" not in said + rest
    assert done == int(rows(run_dir)[-1]["env_steps"]) > 0
    points = scalars(run_dir)["train/loss"]
    assert points[-1][0] == done
    assert len(points) == len(column(run_dir, "train/loss"))


def _first_progress(stream) -> str:
    """What a plain view says up to the line of the first iteration."""
    said = ""
    for line in stream:
        said += line
        if "/1,000,000 steps" in line:
            return said
    raise AssertionError(said)


# --- an environment's process that dies ---


def test_the_death_of_a_worker_ends_the_command_with_one_line(tmp_path):
    file = config_file(
        tmp_path,
        "Cnt",
        "ppo.total_timesteps=1_000_000",
        "logging.progress=plain",
        backend="async",
        kwargs={"action": "box"},
    )
    with start("train", file, cwd=tmp_path) as process:
        said = _first_progress(process.stderr)
        workers = children(process.pid)
        os.kill(max(workers), signal.SIGKILL)
        _, rest = process.communicate(timeout=10)
    assert process.returncode == 1
    assert alive(workers) == set()
    last = rest.splitlines()[-1]
    assert last.startswith("ppo: environment ")
    assert "(tests.toys:Cnt-v0): its process died (SIGKILL)" in last
    assert "Traceback" not in said + rest
    run_dir = only_run(tmp_path)
    done = checkpoint(run_dir)["counters"]["env_steps"]
    assert done == int(rows(run_dir)[-1]["env_steps"]) > 0


def test_a_worker_that_dies_names_itself_and_the_last_iteration_is_kept(tmp_path):
    settings = config(
        tmp_path,
        "Doomed",
        "ppo.total_timesteps=320",
        backend="async",
        kwargs={"at": 40, "action": "box"},
    )
    with pytest.raises(EnvironmentFault, match=r"environment \d .*its process died \(SIGKILL\)"):
        train(settings)
    assert checkpoint(only_run(tmp_path))["counters"]["env_steps"] == 64
    assert multiprocessing.active_children() == []
