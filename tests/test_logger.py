import csv
import errno
import math
import os
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ppo import appendfile, csvlog
from ppo.csvlog import read_table
from ppo.episodes import Episode
from ppo.errors import UserError
from ppo.logger import RunLogger


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def episode(env_steps: int, episode_return: float = 1.5) -> Episode:
    return Episode(env_steps, 0, episode_return, 7, "terminated")


def point_descriptor_at_full_disk(path: Path) -> None:
    """Make every later write through the open descriptor of `path` fail with ENOSPC."""
    for link in Path("/proc/self/fd").iterdir():
        if link.resolve() == path.resolve():
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, int(link.name))
            os.close(full)
            return
    raise AssertionError(f"{path} is not open")


needs_dev_full = pytest.mark.skipif(
    not Path("/dev/full").exists() or not Path("/proc/self/fd").exists(),
    reason="needs Linux's /dev/full",
)


def test_scalars_reach_both_files_with_env_steps_as_x(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"train/approx_kl": 0.25, "time/fps": 6000.0}, env_steps=2048)
        logger.log({"train/approx_kl": 0.5, "time/fps": 6100.0}, env_steps=4096)
    assert (tmp_path / "progress.csv").read_text() == (
        "env_steps,train/approx_kl,time/fps\n2048,0.25,6000\n4096,0.5,6100\n"
    )
    assert scalars(tmp_path) == {
        "train/approx_kl": [(2048, 0.25), (4096, 0.5)],
        "time/fps": [(2048, 6000.0), (4096, 6100.0)],
    }


def test_what_is_not_finite_is_left_out(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        metrics = {"rollout/ep_rew_mean": math.nan, "train/std": math.inf, "train/loss": 1.0}
        logger.log(metrics, env_steps=8)
        logger.log({"rollout/ep_rew_mean": math.nan}, env_steps=16)
    assert rows(tmp_path / "progress.csv") == [{"env_steps": "8", "train/loss": "1"}]
    assert scalars(tmp_path) == {"train/loss": [(8, 1.0)]}


def test_a_value_too_large_for_tensorboard_stays_in_the_csv(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"a": 1e39, "b": 1.0}, env_steps=8)
    assert rows(tmp_path / "progress.csv") == [{"env_steps": "8", "a": "1e+39", "b": "1"}]
    assert scalars(tmp_path) == {"b": [(8, 1.0)]}


def test_columns_that_appear_later_widen_the_header(tmp_path):
    with RunLogger(tmp_path, tensorboard=False) as logger:
        logger.log({"train/loss": 1.0}, env_steps=10)
        logger.log({"train/loss": 2.0, "eval/mean_reward": 5.0}, env_steps=20)
        logger.log({"train/loss": 3.0}, env_steps=30)
    assert (tmp_path / "progress.csv").read_text() == (
        "env_steps,train/loss,eval/mean_reward\n10,1,\n20,2,5\n30,3,\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episodes.csv", "progress.csv"]


def test_a_second_call_at_the_same_step_completes_the_row(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"train/loss": 1.0}, env_steps=10)
        logger.log({"train/loss": 9.0, "eval/mean_reward": 5.0}, env_steps=10)
        logger.log({"train/loss": 2.0}, env_steps=20)
    assert (tmp_path / "progress.csv").read_text() == (
        "env_steps,train/loss,eval/mean_reward\n10,1,5\n20,2,\n"
    )
    assert scalars(tmp_path)["train/loss"] == [(10, 1.0), (20, 2.0)]


def test_env_steps_cannot_go_back(tmp_path):
    with RunLogger(tmp_path, tensorboard=False) as logger:
        logger.log({"a": 1.0}, env_steps=10)
        with pytest.raises(ValueError, match="went back from 10 to 9"):
            logger.log({"a": 1.0}, env_steps=9)


def test_episodes_say_how_they_ended(tmp_path):
    with RunLogger(tmp_path, tensorboard=False) as logger:
        logger.log_episodes([])
        logger.log_episodes(
            [
                Episode(100, 3, -12.5, 40, "terminated"),
                Episode(104, 0, 1234.5678, 1000, "truncated"),
            ]
        )
    assert (tmp_path / "episodes.csv").read_text() == (
        "env_steps,env,return,length,ended\n"
        "100,3,-12.5,40,terminated\n104,0,1234.5678,1000,truncated\n"
    )


def test_a_row_is_on_disk_when_the_call_returns(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"a": 1.0}, env_steps=1)
        logger.log_episodes([episode(1)])
        assert len(rows(tmp_path / "progress.csv")) == 1
        assert len(rows(tmp_path / "episodes.csv")) == 1
        assert scalars(tmp_path) == {"a": [(1, 1.0)]}
        logger.flush()


def test_resume_drops_what_came_after_and_goes_on_without_a_zigzag(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        for step in (10, 20, 30, 40):
            logger.log({"a": float(step)}, env_steps=step)
            logger.log_episodes([episode(step)])
        logger.log({"only/before": 1.0}, env_steps=40)
    with RunLogger(tmp_path, tensorboard=True, resume_at=20) as logger:
        for step in (30, 40, 50):
            logger.log({"a": 100.0 + step}, env_steps=step)
            logger.log_episodes([episode(step)])
    expected = [(10, 10.0), (20, 20.0), (30, 130.0), (40, 140.0), (50, 150.0)]
    assert [
        (int(r["env_steps"]), float(r["a"])) for r in rows(tmp_path / "progress.csv")
    ] == expected
    assert [r["env_steps"] for r in rows(tmp_path / "episodes.csv")] == [
        "10",
        "20",
        "30",
        "40",
        "50",
    ]
    assert scalars(tmp_path)["a"] == expected
    assert scalars(tmp_path).get("only/before", []) == []


def test_many_resumes_within_one_second_stay_in_order(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"a": 0.0}, env_steps=1)
    for start in range(1, 12):
        with RunLogger(tmp_path, tensorboard=True, resume_at=start) as logger:
            for step in range(start + 1, start + 4):
                logger.log({"a": float(start)}, env_steps=step)
    steps = [step for step, _ in scalars(tmp_path)["a"]]
    assert steps == list(range(1, 15))
    assert [value for _, value in scalars(tmp_path)["a"]][:12] == [0.0, *map(float, range(1, 12))]


def test_a_finished_run_that_is_extended_keeps_its_last_row(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"a": 1.0}, env_steps=10)
    with RunLogger(tmp_path, tensorboard=True, resume_at=10) as logger:
        logger.log({"a": 7.0, "eval/mean_reward": 3.0}, env_steps=10)
        logger.log({"a": 2.0}, env_steps=20)
        with pytest.raises(ValueError, match="went back"):
            logger.log({"a": 2.0}, env_steps=5)
    assert scalars(tmp_path) == {"a": [(10, 1.0), (20, 2.0)], "eval/mean_reward": [(10, 3.0)]}
    assert [r["a"] for r in rows(tmp_path / "progress.csv")] == ["1", "2"]


@pytest.mark.parametrize("torn", [b"30,0.", b"30", b"30,0.5,\xff", b"30,1,2,3\n", b"\0\0\0\n"])
def test_a_torn_last_line_is_dropped_on_resume(tmp_path, torn):
    with RunLogger(tmp_path, tensorboard=False) as logger:
        logger.log({"a": 1.0}, env_steps=10)
        logger.log_episodes([episode(10)])
    for name in ("progress.csv", "episodes.csv"):
        with (tmp_path / name).open("ab") as file:
            file.write(torn)
    assert len(read_table(tmp_path / "progress.csv").rows) == 1
    with RunLogger(tmp_path, tensorboard=False, resume_at=100) as logger:
        logger.log({"a": 2.0}, env_steps=100)
        logger.log_episodes([episode(100)])
    assert (tmp_path / "progress.csv").read_text() == "env_steps,a\n10,1\n100,2\n"
    assert [r["env_steps"] for r in rows(tmp_path / "episodes.csv")] == ["10", "100"]


def test_a_torn_event_file_is_read_up_to_the_tear(tmp_path):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"a": 1.0}, env_steps=10)
        logger.log({"a": 2.0}, env_steps=20)
    (events,) = tmp_path.glob("events.*")
    events.write_bytes(events.read_bytes()[:-5])
    with RunLogger(tmp_path, tensorboard=True, resume_at=10) as logger:
        logger.log({"a": 3.0}, env_steps=20)
    assert scalars(tmp_path) == {"a": [(10, 1.0), (20, 3.0)]}


def test_resume_works_where_a_kill_left_no_files_or_half_a_header(tmp_path):
    (tmp_path / "episodes.csv").write_text("env_st")
    with RunLogger(tmp_path, tensorboard=False, resume_at=0) as logger:
        logger.log({"a": 1.0}, env_steps=8)
        logger.log_episodes([episode(8)])
    assert (tmp_path / "progress.csv").read_text() == "env_steps,a\n8,1\n"
    assert (tmp_path / "episodes.csv").read_text().splitlines() == [
        "env_steps,env,return,length,ended",
        "8,0,1.5,7,terminated",
    ]


def test_a_new_run_does_not_write_into_another_ones_files(tmp_path):
    RunLogger(tmp_path, tensorboard=False).close()
    with pytest.raises(UserError, match=r"progress\.csv: File exists") as caught:
        RunLogger(tmp_path, tensorboard=False)
    assert "\n" not in str(caught.value)


def log_once_more(logger: RunLogger) -> None:
    logger.log({"a": 2.0}, env_steps=20)
    logger.log_episodes([episode(20)])


@needs_dev_full
@pytest.mark.parametrize("name", ["progress.csv", "episodes.csv", "events"])
def test_a_full_disk_is_one_clear_line_and_closing_stays_quiet(tmp_path, name, capfd):
    with RunLogger(tmp_path, tensorboard=True) as logger:
        logger.log({"a": 1.0}, env_steps=10)
        (path,) = tmp_path.glob(f"{name}*")
        point_descriptor_at_full_disk(path)
        with pytest.raises(UserError, match="No space left on device") as caught:
            log_once_more(logger)
        logger.close()
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert rows(tmp_path / "progress.csv")[0] == {"env_steps": "10", "a": "1"}


def test_a_disk_that_fills_while_the_header_grows_leaves_the_old_file(tmp_path, monkeypatch):
    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunLogger(tmp_path, tensorboard=False) as logger:
        logger.log({"a": 1.0}, env_steps=10)
        monkeypatch.setattr(appendfile.os, "fsync", no_room)
        with pytest.raises(UserError, match="No space left"):
            logger.log({"a": 2.0, "b": 2.0}, env_steps=20)
    assert (tmp_path / "progress.csv").read_text() == "env_steps,a\n10,1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episodes.csv", "progress.csv"]


def test_a_write_that_fails_half_way_takes_its_piece_back(tmp_path):
    class HalfFull:
        """A file that has room for four more bytes."""

        def __init__(self, file):
            self.file, self.room, self.closed = file, 4, False

        def write(self, data):
            if self.room == 0:
                raise OSError(errno.ENOSPC, "full")
            written = self.file.write(bytes(data[: self.room]))
            self.room -= written
            return written

        def fileno(self):
            return self.file.fileno()

    file = appendfile.AppendFile(tmp_path / "x", must_be_new=True)
    file.write(b"whole\n")
    with file._file as raw:
        file._file = HalfFull(raw)
        with pytest.raises(OSError, match="full"):
            file.write(b"half a record\n")
    assert (tmp_path / "x").read_bytes() == b"whole\n"


def test_close_twice_is_fine_and_logging_afterwards_is_not(tmp_path):
    logger = RunLogger(tmp_path, tensorboard=True)
    logger.log({"a": 1.0}, env_steps=1)
    logger.close()
    logger.close()
    with pytest.raises(ValueError, match="closed"):
        logger.log({"a": 1.0}, env_steps=2)


def test_a_missing_folder_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="No such file or directory"):
        RunLogger(tmp_path / "nowhere", tensorboard=True)


def test_names_with_commas_and_quotes_survive(tmp_path):
    with RunLogger(tmp_path, tensorboard=False) as logger:
        logger.log({'rollout/reward_a,"b"': 1.0}, env_steps=1)
    assert csvlog.read_table(tmp_path / "progress.csv").rows == [
        {"env_steps": "1", 'rollout/reward_a,"b"': "1"}
    ]


def test_the_event_writer_loads_no_tensorflow(tmp_path):
    RunLogger(tmp_path, tensorboard=True).close()
    assert "tensorflow" not in sys.modules
