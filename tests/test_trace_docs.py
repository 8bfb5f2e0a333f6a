"""The recipe of docs/trace_other_trainers.md, run as it stands there."""

import re
from pathlib import Path

import pytest

from tests.runs import ROOT, command

stable_baselines3 = pytest.importorskip("stable_baselines3")


@pytest.mark.filterwarnings("ignore")  # another library's
def test_the_rows_of_stable_baselines3_are_traced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "trace_other_trainers.md").read_text()
    (program,) = re.findall(r"```python\n(import csv\n.*?)```", text, flags=re.DOTALL)
    exec(compile(program, "docs/trace_other_trainers.md", "exec"), {})
    assert Path("sb3_rows.csv").exists()
    done = command("trace", "sb3_rows.csv")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    (came,) = [line for line in lines if "advantages that came" in line]
    assert came.startswith("ok")
    assert "they are the contract's" in came
    (gates,) = [line for line in lines if "gates at every boundary" in line]
    assert re.search(r"\d+ terminated, \d+ truncated", gates)
    assert not [line for line in lines if line.startswith("FAULT")]
