import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from ppo import rundir
from ppo.config import load_config
from ppo.errors import CheckpointError, UserError
from ppo.rundir import RunDirectory
from ppo.train import resume, train
from tests.runs import command, config, files


@pytest.fixture
def stopped_clock(monkeypatch):
    monkeypatch.setattr(rundir.time, "strftime", lambda form: "20300101-000000")


def test_the_name_says_task_name_seed_and_time(tmp_path, stopped_clock):
    run = RunDirectory.create(config(tmp_path, "Echo", "name=long_legs", "seed=3"))
    assert run.path == tmp_path / "runs" / "tests.toys-Echo-v0_long_legs_s3_20300101-000000"
    assert load_config(run.config_file) == config(tmp_path, "Echo", "name=long_legs", "seed=3")


def test_runs_that_start_in_the_same_instant_get_different_folders(tmp_path, stopped_clock):
    settings = config(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunDirectory.create(settings), range(16)))
    assert len({run.path for run in runs}) == 16
    assert all(load_config(run.config_file) == settings for run in runs)


def test_a_runs_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(UserError, match="runs"):
        RunDirectory.create(config(tmp_path))
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(UserError, match="not a run's folder"):
        RunDirectory.open(tmp_path)


def test_a_checkpoint_is_found_by_name_or_env_steps_and_else_those_there_are_listed(tmp_path):
    run = RunDirectory.create(config(tmp_path))
    with pytest.raises(CheckpointError, match="no checkpoint 'last' here; there is: none yet"):
        run.checkpoint()
    for name in ("last", "step_1000"):
        (run.path / "checkpoints" / f"{name}.pt").touch()
    assert run.checkpoint("last").stem == "last"
    assert {run.checkpoint(which).stem for which in ("1000", "1_000", "step_1000")} == {"step_1000"}
    with pytest.raises(CheckpointError, match="no checkpoint 'best' here; there is: last, step_1"):
        run.checkpoint("best")


def test_the_newest_step_checkpoints_stay_by_number_not_by_name(tmp_path):
    run = RunDirectory.create(config(tmp_path))
    for name in ("last", "best", "step_900", "step_1000", "step_20000"):
        (run.path / "checkpoints" / f"{name}.pt").touch()
    run.prune_checkpoints(2)
    there = {path.stem for path in (run.path / "checkpoints").iterdir()}
    assert there == {"last", "best", "step_1000", "step_20000"}
    run.prune_checkpoints(0)
    assert {path.stem for path in (run.path / "checkpoints").iterdir()} == {"last", "best"}


def test_a_run_that_is_being_trained_cannot_be_resumed(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    before = files(run_dir)
    with RunDirectory(run_dir).lock():
        done = command("resume", run_dir, "--ppo.total_timesteps", 128)
    assert done.status == 1
    assert f"{run_dir}: another process is training this run" in done.error_line
    assert files(run_dir) == before
    assert resume(run_dir, ["ppo.total_timesteps=128"]).env_steps == 128


def test_the_lock_is_held_from_the_first_step_to_the_last(tmp_path, monkeypatch):
    refused = []

    def try_lock(*_):
        (run_dir,) = (tmp_path / "runs").iterdir()
        with pytest.raises(UserError, match="another process"), RunDirectory(run_dir).lock():
            pass
        refused.append(run_dir)

    monkeypatch.setattr("ppo.loop.TrainingLoop._iterate", lambda loop: _advance(loop, try_lock))
    train(config(tmp_path))
    assert refused
    with RunDirectory(refused[0]).lock():
        pass


def _advance(loop, hook):
    hook()
    loop.state.env_steps = loop.plan.env_steps


def test_nothing_of_a_run_that_could_not_start_is_left(tmp_path):
    with pytest.raises(UserError, match="there is no environment 'Nowhere-v0'"):
        train(config(tmp_path, "Nowhere-v0"))
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []
