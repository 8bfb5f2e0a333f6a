"""How many cores a process may use."""

import os

import pytest

from ppo.cores import usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000\n", 4),
        ("800000 100000\n", 4),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("100000 0\n", 4),
        ("", 4),
    ],
)
def test_a_container_may_be_given_less_time_than_its_cores_have(
    tmp_path, monkeypatch, quota, cores
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    assert usable_cores(file) == cores


def test_without_a_word_of_it_all_cores_count(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores(tmp_path / "missing") == 3
