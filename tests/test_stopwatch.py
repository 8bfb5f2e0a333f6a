import json
import time

import pytest

from ppo import stopwatch
from ppo.stopwatch import Stopwatch
from tests.runs import command, config_file

PHASES = {
    *("starting", "normalising", "acting", "stepping", "collecting", "estimating", "learning"),
    *("compiling", "logging", "evaluating", "finishing"),
}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_every_moment_belongs_to_the_phase_that_was_switched_to_last(clock):
    watch = Stopwatch("starting")
    clock(1.0)
    watch.switch("stepping")
    clock(2.0)
    watch.switch("learning")
    clock(4.0)
    watch.switch("stepping")
    clock(3.0)
    assert list(watch.stop().items()) == [("stepping", 5.0), ("learning", 4.0), ("starting", 1.0)]


def test_seconds_can_be_counted_as_those_of_another_phase(clock):
    watch = Stopwatch("learning")
    clock(5.0)
    watch.switch("logging")
    watch.move(3.0, source="learning", target="compiling")
    assert watch.stop() == {"compiling": 3.0, "learning": 2.0, "logging": 0.0}


def test_a_profile_accounts_for_the_whole_run(tmp_path):
    file = config_file(tmp_path, "Echo", "compile=on", "eval.every=32")
    begun = time.perf_counter()
    done = command("train", file, "--profile", "--json")
    seconds = json.loads(done.out)["seconds"]
    assert seconds.keys() == PHASES
    assert all(spent > 0 for spent in seconds.values())
    assert sum(seconds.values()) <= time.perf_counter() - begun


def test_a_profile_in_words_has_shares_that_sum_to_the_whole(tmp_path):
    file = config_file(tmp_path)
    lines = command("train", file, "--profile").out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("total"))
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[first + 1 :]]
    assert sum(shares) == pytest.approx(100.0, abs=1.0)
    assert shares == sorted(shares, reverse=True)
    assert not any(line.startswith("total") for line in command("train", file).out.splitlines())
