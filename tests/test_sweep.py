"""Sweeps: what is refused before a start, how runs are started, and going on after a stop."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ppo.interrupts import Interrupted, StopSignals
from ppo.rundir import RunDirectory
from ppo.sweep import schedule
from ppo.sweep.engine import LocalEngine
from ppo.sweep.jobs import jobs_of
from ppo.sweep.schedule import run_jobs
from ppo.sweep.spec import load_sweep
from ppo.train import train
from tests.runs import alive, children, command, config_file, files, start

GRID = "grid: {ppo.gae_lambda: [0.9, 0.95]}\n"


def sweep_file(tmp_path: Path, text: str = GRID + "seeds: 2\n", *overrides: str) -> Path:
    config_file(tmp_path, "Echo", *overrides)
    file = tmp_path / "sweep.yaml"
    file.write_text(text if "base:" in text else "base: config.yaml\n" + text)
    return file


# --- the file ---


def test_cells_are_every_combination_with_names_of_their_own(tmp_path):
    text = "grid: {ppo.gae_lambda: [0.9, 0.95], ppo.gamma: [0.9, 0.99]}\nseeds: [3, 5]\n"
    sweep = load_sweep(sweep_file(tmp_path, text))
    assert [cell.label for cell in sweep.cells] == [
        "gae_lambda=0.9, gamma=0.9",
        "gae_lambda=0.9, gamma=0.99",
        "gae_lambda=0.95, gamma=0.9",
        "gae_lambda=0.95, gamma=0.99",
    ]
    assert [cell.config.ppo.gae_lambda for cell in sweep.cells] == [0.9, 0.9, 0.95, 0.95]
    jobs = jobs_of(sweep)
    assert [job.seed for job in jobs] == [3] * 4 + [5] * 4
    assert len({job.folder for job in jobs}) == 8
    assert {job.config.seed for job in jobs} == {3, 5}


def test_folders_differ_where_values_look_alike(tmp_path):
    values = "['a/b', 'a?b', 'A_B']"
    text = f"grid: {{ppo.gamma: [0.9, 0.99], env.kwargs.action: {values}}}\nseeds: 1\n"
    sweep = load_sweep(sweep_file(tmp_path, text))
    folders = [cell.folder.casefold() for cell in sweep.cells]
    assert len(set(folders)) == len(folders) == 6
    assert not any("/" in folder for folder in folders)


def test_budget_set_and_flags_reach_every_cell(tmp_path):
    text = GRID + "seeds: 1\nbudget: 96\nset: {ppo.gamma: 0.9}\n"
    sweep = load_sweep(sweep_file(tmp_path, text), ["ppo.clip_range=0.1"])
    for cell in sweep.cells:
        assert cell.config.ppo.total_timesteps == 96
        assert cell.config.ppo.gamma == 0.9
        assert cell.config.ppo.clip_range == 0.1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("grid: {}\nseeds: 1\n", "sweep.yaml:2: grid: is empty"),
        ("grid: {ppo.gamma: []}\nseeds: 1\n", "ppo.gamma: is an empty list"),
        ("grid: {ppo.gama: [0.9]}\nseeds: 1\n", "ppo.gama"),
        ("grid:\n  ppo.gamma: [0.9,\n    1.5]\nseeds: 1\n", "sweep.yaml:4: grid: ppo.gamma"),
        ("grid: {ppo.gamma: [0.9, 0.90]}\nseeds: 1\n", "gamma=0.9 stands in it twice"),
        (GRID + "seeds: 0\n", "seeds: must be 1 to"),
        (GRID + "seeds: []\n", "seeds: is an empty list"),
        (GRID + "seeds: [1, 1]\n", "seeds: 1 stands in it twice"),
        (GRID + "seeds: many\n", "seeds: must be a whole number"),
        (GRID, "seeds"),
        ("grid: {seed: [1, 2]}\nseeds: 1\n", "the seeds of a sweep are its seeds key"),
        (GRID + "seeds: 1\nworkers: 0\n", "workers"),
        (GRID + "seeds: 1\nsteps: 5\n", "steps"),
        ("base: none.yaml\n" + GRID + "seeds: 1\n", "none.yaml"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_started(tmp_path, text, says):
    done = command("sweep", sweep_file(tmp_path, text))
    assert done.status == 2
    assert says in done.error_line
    assert not (tmp_path / "runs").exists()


# --- plan and run ---


def test_a_dry_run_prints_the_plan_and_leaves_nothing(tmp_path):
    file = sweep_file(tmp_path)
    done = command("sweep", file, "--dry-run")
    assert done.status == 0
    assert "2 cells x 2 seeds = 4 runs; 256 env steps to do" in done.out
    record = json.loads(command("sweep", file, "--dry-run", "--json", "--workers=1").out)
    assert record["cells"] == ["gae_lambda=0.9", "gae_lambda=0.95"]
    assert (record["runs"], record["finished"], record["workers"]) == (4, 0, 1)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_trains_what_train_does_and_is_not_repeated(tmp_path):
    file = sweep_file(tmp_path, GRID + "seeds: [4]\n", "ppo.total_timesteps=640")
    done = command("sweep", file, "--json")
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert result["runs"] == 2
    jobs = jobs_of(load_sweep(file))
    alone = train(jobs[0].config.model_copy(update={"runs_dir": str(tmp_path / "alone")}))
    run = jobs[0].run()
    assert run is not None
    for name in ("episodes.csv", "evaluation.json"):
        assert (run.path / name).read_bytes() == (alone.run_dir / name).read_bytes()
    before = files(tmp_path / "runs")
    again = command("sweep", file, "--json")
    assert again.status == 0
    assert json.loads(again.out) == result
    assert files(tmp_path / "runs") == before


def test_a_failed_run_is_told_and_stops_no_other(tmp_path):
    text = "grid: {env.kwargs.action: [nonsense, box]}\nseeds: 1\n"
    done = command("sweep", sweep_file(tmp_path, text, "ppo.total_timesteps=640"), "--workers", 1)
    assert done.status == 1
    assert "ppo: 1 of 2 runs failed; the first is action=nonsense, seed 0: " in done.err
    assert "all runs" in (tmp_path / "runs/sweeps/sweep/report.md").read_text()


def test_another_sweep_of_the_same_name_is_refused(tmp_path):
    file = sweep_file(tmp_path, GRID + "seeds: 1\n", "ppo.total_timesteps=640")
    assert command("sweep", file).status == 0
    before = files(tmp_path / "runs")
    done = command("sweep", file, "--ppo.gamma", "0.5")
    assert done.status == 2
    assert "ppo.gamma is 0.99 in this run of an earlier sweep, and would be 0.5" in done.error_line
    assert files(tmp_path / "runs") == before


@pytest.mark.skipif(sys.platform != "linux", reason="the end of a parent is told by Linux")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_goes_on_and_ends_as_if_it_had_not_been(tmp_path, how):
    results = []
    for name, stopped in (("straight", False), ("stopped", True)):
        folder = tmp_path / name
        folder.mkdir()
        # On the MuJoCo backend a resumed run is bit-equal to one that was never stopped.
        (folder / "config.yaml").write_text(
            f"runs_dir: {folder}/runs\ncompile: 'off'\n"
            "env: {id: InvertedPendulum-v5, n_envs: 2, backend: mujoco}\n"
            "ppo: {total_timesteps: 6400, n_steps: 32, batch_size: 32, n_epochs: 1}\n"
            "eval: {episodes: 2}\ncheckpoint: {every: 640}\n"
            "logging: {tensorboard: false}\n"
        )
        file = folder / "sweep.yaml"
        file.write_text("base: config.yaml\n" + GRID + "seeds: [1]\n")
        if stopped:
            with start("sweep", file, "--workers", 2, cwd=folder) as process:
                jobs = jobs_of(load_sweep(file))
                while not any(job.progress() for job in jobs):
                    assert process.poll() is None, process.stderr.read()
                runs = children(process.pid)
                process.send_signal(how)
                process.wait()
                while alive(runs):  # a killed sweep's runs save themselves, then end
                    os.sched_yield()
            assert {job.state() for job in jobs} != {"finished"}
        done = command("sweep", file)
        assert done.status == 0, done.err
        lines = (folder / "runs/sweeps/sweep/results.csv").read_text().splitlines()
        results.append([line.rpartition(",")[0] for line in lines])
    assert results[0] == results[1]
    assert len(results[0]) == 3


# --- the schedule ---


class FakeEngine:
    """Runs nothing; a command ends when it has been asked `patience` times."""

    def __init__(self, slots: int, statuses: dict[str, int], patience: int = 2) -> None:
        self.slots, self.statuses, self.patience = slots, statuses, patience
        self.started: list[str] = []
        self.running: set[str] = set()
        self.most = 0
        self.stopped: list[str] = []

    def start(self, arguments, log):
        self.started.append(name := log.parent.parent.name)
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        return FakeRun(self, name)


class FakeRun:
    def __init__(self, engine: FakeEngine, name: str) -> None:
        self.engine, self.name, self.asked = engine, name, 0

    def poll(self):
        self.asked += 1
        if self.asked < self.engine.patience:
            return None
        self.engine.running.discard(self.name)
        return self.engine.statuses.get(self.name, 0)

    def stop(self):
        self.engine.stopped.append(self.name)

    def wait(self):
        assert self.engine.stopped


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "_POLL", 0.0)
    text = "grid: {ppo.gae_lambda: [0.1, 0.2, 0.3, 0.4, 0.5]}\nseeds: 1\n"
    return jobs_of(load_sweep(sweep_file(tmp_path, text)))


def test_jobs_run_side_by_side_in_their_order_and_failures_are_returned(jobs):
    engine, ended = FakeEngine(2, {"gae_lambda=0.2": 3}), []
    with StopSignals() as signals:
        failed = run_jobs(
            jobs, engine, signals, watch=lambda _: None, ended=lambda j, s: ended.append((j, s))
        )
    assert engine.started == [job.cell.folder for job in jobs]
    assert engine.most == 2
    assert failed == [jobs[1]]
    assert [(job, status) for job, status in ended if status] == [(jobs[1], 3)]
    assert len(ended) == 5


def test_a_stop_is_passed_on_to_every_running_job(jobs):
    engine = FakeEngine(2, {}, patience=10**9)

    def interrupt(running):
        signal.raise_signal(signal.SIGTERM)

    with StopSignals() as signals, pytest.raises(Interrupted):
        run_jobs(jobs, engine, signals, watch=interrupt, ended=lambda j, s: None)
    assert engine.stopped == engine.started == ["gae_lambda=0.1", "gae_lambda=0.2"]


def test_a_job_that_somebody_trains_waits_for_its_turn(jobs):
    jobs[0].folder.mkdir(parents=True)
    run_dir = train(jobs[0].config).run_dir
    held = jobs[0].run()
    assert held is not None
    assert held.path == run_dir
    engine = FakeEngine(1, {}, patience=1)
    with StopSignals() as signals, held.lock():
        assert jobs[0].busy()
        run_jobs(jobs[1:], engine, signals, watch=lambda _: None, ended=lambda j, s: None)
    assert not jobs[0].busy()


def test_commands_are_confined_to_a_core_each_and_what_they_print_is_kept(tmp_path):
    engine = LocalEngine(2)
    running = [engine.start(["eval", "nothing"], tmp_path / f"{k}.txt") for k in range(2)]
    for process in running:
        process.wait()
    assert [process.poll() for process in running] == [1, 1]
    assert "there is no such folder" in (tmp_path / "1.txt").read_text()


def test_two_sweeps_of_one_folder_are_refused(tmp_path):
    file = sweep_file(tmp_path)
    sweep = load_sweep(file)
    sweep.folder.mkdir(parents=True)
    with RunDirectory(sweep.folder).lock():
        done = command("sweep", file)
    assert done.status == 1
    assert "another process" in done.err
