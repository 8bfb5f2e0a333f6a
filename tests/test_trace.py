"""`ppo trace`: rows from anywhere, taken apart, checked and shown."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from ppo.diagnose.checks import check_rows
from ppo.diagnose.csvfile import TraceFileError, read_rows
from ppo.diagnose.decompose import addends, realised_returns
from ppo.diagnose.faults import FAULTS, advantages_with, correct, faults_alike
from ppo.diagnose.play import play
from ppo.diagnose.rows import estimate
from tests.runs import command, config, config_file, only_run

CASES = json.loads((Path(__file__).parent / "data" / "gae_cases.json").read_text())["cases"]
WRONG = {
    "done_masks_both": "time limit treated as termination",
    "chain_leaks_across_reset": "leak across a reset",
    "bootstraps_current_state": "bootstrap from the current state",
    "bootstraps_reset_state": "bootstrap from the reset state",
}
WITH_WRONG = [(case, name) for case in CASES for name in case.get("wrong", {})]


def table(**columns):
    """CSV text; a column that is one value has it in every row."""
    size = max(len(c) for c in columns.values() if isinstance(c, list))
    full = {n: c if isinstance(c, list) else [c] * size for n, c in columns.items()}
    lines = [",".join(full), *(",".join(map(str, row)) for row in zip(*full.values(), strict=True))]
    return "\n".join(lines) + "\n"


def write(tmp_path, text, name="rows.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def case_file(tmp_path, case, **more):
    return write(
        tmp_path,
        table(
            reward=case["rewards"],
            value=case["values"],
            next_value=case["next_values"],
            terminated=[int(flag) for flag in case["terminated"]],
            truncated=[str(flag).lower() for flag in case["truncated"]],
            cut=[int(flag) for flag in case["cut"]],
            **more,
        ),
    )


def read(tmp_path, text):
    return read_rows(write(tmp_path, text), tolerance=1e-4)


def two_episodes(**flags):
    """Five rows, all values different, with an end at row 2 as the flags say."""
    end = {"terminated": 0, "truncated": 0} | flags
    return table(
        reward=[1, 2, 3, 4, 5],
        value=[10, 20, 40, 80, 160],
        next_value=[20, 40, 7, 160, 320],
        **{name: [0, 0, flag, 0, 0] for name, flag in end.items()},
    )


# --- the estimator's own figures ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_case_is_reproduced(tmp_path, case):
    written = tmp_path / "written.csv"
    done = command(
        *("trace", str(case_file(tmp_path, case)), "--json", "--csv", str(written)),
        *("--gamma", str(case["gamma"]), "--gae-lambda", str(case["gae_lambda"])),
    )
    assert done.status == 0, done.err
    (shown,) = json.loads(done.out)["estimates"]
    np.testing.assert_allclose(shown["advantage"], case["advantages"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(shown["target"], case["returns"], rtol=0, atol=1e-9)
    with written.open() as file:
        rows = list(csv.DictReader(file))
    found = [float(row["advantage"]) for row in rows]
    np.testing.assert_allclose(found, case["advantages"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("case", "name"), WITH_WRONG, ids=lambda part: part)
def test_every_wrong_list_is_named_as_the_fault_that_it_is(tmp_path, case, name):
    path = case_file(tmp_path, case, advantage=case["wrong"][name])
    done = command(
        *("trace", str(path), "--gamma", str(case["gamma"])),
        *("--gae-lambda", str(case["gae_lambda"])),
    )
    assert done.status == 0
    (line,) = [line for line in done.out.splitlines() if "advantages that came" in line]
    assert line.startswith("FAULT")
    assert f"like this fault: {WRONG[name]}:" in line
    assert "; or " not in line  # and as no other


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("flags", [{"terminated": 1}, {"truncated": 1}, {"cut": 1}], ids=str)
def test_the_addends_are_the_sums_of_the_mixture(tmp_path, flags, gae_lambda):
    """Against the k-step mixture of each row, term by term."""
    gamma = 0.9
    rows = read(tmp_path, two_episodes(**flags))
    parts = addends(rows, gamma=gamma, gae_lambda=gae_lambda)
    ends = {0: 2, 1: 2, 2: 2, 3: 4, 4: 4}
    next_value = [20, 40, 0 if "terminated" in flags else 7, 160, 320]
    for t, end in ends.items():
        length = end - t + 1
        decay = gamma * gae_lambda
        rewards = math.fsum(decay**k * (t + k + 1) for k in range(length))
        between = math.fsum(
            gamma * (1 - gae_lambda) * decay ** (j - 1) * next_value[t + j - 1]
            for j in range(1, length)
        )
        last = gamma * decay ** (length - 1) * next_value[end]
        assert parts.rewards[t] == pytest.approx(rewards, rel=1e-12)
        assert parts.bootstrapped[t] == pytest.approx(between + last, rel=1e-12)
        assert parts.minus_value[t] == -rows.values[t]
    total = parts.rewards + parts.bootstrapped + parts.minus_value
    expected = estimate(rows, gamma=gamma, gae_lambda=gae_lambda).advantages
    np.testing.assert_allclose(total, expected, rtol=1e-12)


def test_a_realised_return_runs_over_cuts_to_the_end_of_the_episode(tmp_path):
    text = table(
        reward=[1, 2, 4, 8],
        value=[0, 0, 0, 0],
        next_value=[0, 0, 0, 100],
        terminated=[0, 0, 1, 0],
        truncated=0,
        cut=[0, 1, 0, 0],
    )
    assert realised_returns(read(tmp_path, text), gamma=0.5).tolist() == [3, 4, 4, 58]


# --- known faults ---

# What each estimator gives for two_episodes at gamma 0.5, lambda 0.5, worked by hand from its
# deltas; rows 3 and 4 are 4 + 80 - 80 + 85 / 4 and 5 + 160 - 160 unless said otherwise.
TAIL = [5.25, 5.0]


def by_hand(end, *, row_two, tail=None):
    tail = tail or TAIL
    second = row_two
    first = (2 + 0.5 * 40 - 20) + 0.25 * second
    zeroth = (1 + 0.5 * 20 - 10) + 0.25 * first
    return end, [zeroth, first, second, *tail]


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        ("time limit treated as termination", by_hand("truncated", row_two=3 - 40)),
        ("leak across a reset", by_hand("truncated", row_two=3 + 0.5 * 80 - 40 + 0.25 * 5.25)),
        ("leak across a reset", by_hand("truncated", row_two=3 + 0.5 * 7 - 40 + 0.25 * 5.25)),
        ("leak across a reset", by_hand("terminated", row_two=3 - 40 + 0.25 * 5.25)),
        ("leak across a reset", by_hand("terminated", row_two=3 + 0.5 * 80 - 40 + 0.25 * 5.25)),
        ("bootstrap from the current state", by_hand("truncated", row_two=3 + 0.5 * 40 - 40)),
        ("bootstrap from the reset state", by_hand("truncated", row_two=3 + 0.5 * 80 - 40)),
        ("bootstrap after a termination", by_hand("terminated", row_two=3 + 0.5 * 7 - 40)),
        (
            "flags off by one (taken from the row before)",
            # Row 2 runs on, and row 3 is taken for the end.
            by_hand("terminated", row_two=3 + 0.5 * 7 - 40 + 0.25 * (4 - 80), tail=[-76, 5.0]),
        ),
        (
            "flags off by one (taken from the row after)",
            (
                "terminated",
                [1 + 10 - 10 + 0.25 * (2 - 20), 2 - 20, 3 + 3.5 - 40 + 0.25 * 5.25, *TAIL],
            ),
        ),
        (
            "rollout's end not bootstrapped",
            by_hand("terminated", row_two=3 - 40, tail=[4 + 0.25 * (5 - 160), 5 - 160]),
        ),
    ],
    ids=str,
)
def test_a_fault_is_known_by_its_figures(tmp_path, fault, case):
    end, given = case
    rows = read(tmp_path, two_episodes(**{end: 1}))
    alike = faults_alike(np.array(given), rows, gamma=0.5, gae_lambda=0.5)
    assert fault in [likeness.fault for likeness in alike]
    assert len(alike) == 1


def test_both_flags_taken_for_a_time_limit_are_known(tmp_path):
    rows = read(tmp_path, two_episodes(terminated=1, truncated=1))
    _, given = by_hand("", row_two=3 + 0.5 * 7 - 40)
    alike = faults_alike(np.array(given), rows, gamma=0.5, gae_lambda=0.5)
    assert "truncated wins over terminated" in [likeness.fault for likeness in alike]


def test_every_fault_of_the_list_shows_on_rows_with_all_kinds_of_ends(tmp_path):
    rng = np.random.default_rng(0)
    size = 40
    value = rng.normal(size=size)
    ends = {name: np.zeros(size, int) for name in ("terminated", "truncated", "cut")}
    for row, names in {5: ["terminated"], 12: ["truncated"], 20: ["cut"]}.items():
        ends[names[0]][row] = 1
    ends["terminated"][30] = ends["truncated"][30] = 1
    closed = (ends["terminated"] + ends["truncated"] + ends["cut"]) > 0
    next_value = np.where(closed, rng.normal(size=size), np.append(value[1:], rng.normal()))
    text = table(
        reward=rng.normal(size=size).tolist(),
        value=value.tolist(),
        next_value=next_value.tolist(),
        **{name: flags.tolist() for name, flags in ends.items()},
    )
    rows = read(tmp_path, text)
    for fault in FAULTS:
        given = advantages_with(rows, fault.gates(rows), gamma=0.9, gae_lambda=0.9)
        alike = faults_alike(given, rows, gamma=0.9, gae_lambda=0.9)
        assert [likeness.fault for likeness in alike] == [fault.name]
    right = advantages_with(rows, correct(rows), gamma=0.9, gae_lambda=0.9)
    assert faults_alike(right, rows, gamma=0.9, gae_lambda=0.9) == []
    np.testing.assert_allclose(right, estimate(rows, gamma=0.9, gae_lambda=0.9).advantages)


# --- checks ---


def checks_of(tmp_path, text, **settings):
    settings = {"gamma": 0.5, "gae_lambda": 0.5, "batch_size": 4, "adjacency": 1e-4} | settings
    return {check.name: check for check in check_rows(read(tmp_path, text), **settings)}


def with_columns(text, **columns):
    lines = text.splitlines()
    for name, values in columns.items():
        cells = [name, *map(repr, values)]
        lines = [f"{line},{cell}" for line, cell in zip(lines, cells, strict=True)]
    return "\n".join(lines) + "\n"


RIGHT = by_hand("truncated", row_two=3 + 0.5 * 7 - 40)[1]
VALUES = np.array([10, 20, 40, 80, 160.0])


def test_right_advantages_pass_every_check_of_the_contract(tmp_path):
    text = with_columns(
        two_episodes(truncated=1), advantage=RIGHT, target=(RIGHT + VALUES).tolist()
    )
    checks = checks_of(tmp_path, text)
    assert all(check.passed for check in checks.values() if check.of_contract)
    assert "the contract's" in checks["advantages that came"].words


def test_a_target_from_another_bootstrap_is_named(tmp_path):
    other = np.array(by_hand("truncated", row_two=3 - 40)[1]) + VALUES
    text = with_columns(two_episodes(truncated=1), advantage=RIGHT, target=other.tolist())
    check = checks_of(tmp_path, text)["target = A + V"]
    assert check.passed is False
    assert "from another bootstrap" in check.words
    assert "time limit treated as termination" in check.words


def test_normalised_advantages_are_known_as_such(tmp_path):
    scaled = (np.array(RIGHT) - np.mean(RIGHT)) / np.std(RIGHT)
    text = with_columns(two_episodes(truncated=1), advantage=scaled.tolist())
    check = checks_of(tmp_path, text)["advantages that came"]
    assert check.passed is None
    assert "normalised before they were written" in check.words


def test_advantages_of_another_lambda_are_like_no_fault(tmp_path):
    rows = read(tmp_path, two_episodes(truncated=1))
    other = estimate(rows, gamma=0.5, gae_lambda=0.9).advantages
    text = with_columns(two_episodes(truncated=1), advantage=other.tolist())
    check = checks_of(tmp_path, text)["advantages that came"]
    assert check.passed is False
    assert "are gamma 0.5 and lambda 0.5 those that they were made with?" in check.words


def long_table(value, *, reward=1.0, size=40):
    values = value if isinstance(value, list) else [value] * size
    return table(
        reward=[reward] * size,
        value=values,
        next_value=[*values[1:], 0.0],
        terminated=[0] * (size - 1) + [1],
        truncated=0,
    )


def test_a_critic_that_is_off_in_one_direction_is_looked_at(tmp_path):
    sick = checks_of(tmp_path, long_table(-50.0), gamma=0.9, gae_lambda=1.0)
    assert sick["signs"].passed is False
    assert not sick["signs"].of_contract
    exact = [(1 - 0.9 ** (40 - t)) / 0.1 + 0.1 * (-1) ** t for t in range(40)]
    well = checks_of(tmp_path, long_table(exact), gamma=0.9, gae_lambda=1.0)
    assert well["signs"].passed
    assert well["sizes"].passed
    assert well["critic"].passed


def test_values_that_jump_far_beyond_the_returns_are_looked_at(tmp_path):
    wild = [100.0 * (-1) ** t for t in range(40)]
    checks = checks_of(tmp_path, long_table(wild), gamma=0.9, gae_lambda=0.9)
    assert checks["sizes"].passed is False
    assert checks["critic"].passed is False


def test_few_rows_cannot_tell(tmp_path):
    checks = checks_of(tmp_path, two_episodes(truncated=1))
    assert [checks[name].passed for name in ("sizes", "signs", "critic")] == [None] * 3


# --- files ---


def test_rows_are_grouped_by_environment_and_episode(tmp_path):
    text = table(
        env=["b", "a", "b", "a"],
        episode=[1, 1, 2, 1],
        reward=[1, 2, 3, 4],
        value=[1, 2, 3, 4],
        next_value=["", "", "", 9],
        terminated=[1, 0, 1, 0],
        truncated=0,
    )
    rows = read(tmp_path, text)
    assert rows.rewards.tolist() == [1, 3, 2, 4]
    assert rows.env.tolist() == [0, 0, 1, 1]
    assert rows.step.tolist() == [0, 1, 0, 1]
    assert rows.next_values.tolist() == [0, 0, 4, 9]
    assert rows.cut.tolist() == [False, False, False, True]


def test_without_a_column_of_episodes_they_are_counted_by_the_flags(tmp_path):
    assert read(tmp_path, two_episodes(truncated=1)).episode.tolist() == [0, 0, 0, 1, 1]


def test_a_next_value_after_a_termination_may_be_anything(tmp_path):
    text = table(reward=[1, 1], value=[2, 3], next_value=["nan", ""], terminated=1, truncated=0)
    assert estimate(read(tmp_path, text), gamma=0.9, gae_lambda=0.5).advantages.tolist() == [-1, -2]


BAD = {
    "empty": ("", "line 1: no column reward, value, next_value, terminated, truncated"),
    "header only": ("reward,value,next_value,terminated,truncated\n", "has a header, but no rows"),
    "a missing column": (
        table(reward=[1], value=1, terminated=0, truncated=0),
        "line 1: no column next_value",
    ),
    "a column twice": (
        "reward,value,next_value,terminated,truncated,reward\n1,1,1,0,0,1\n",
        "line 1: column reward is there twice",
    ),
    "words": (
        table(reward=[1, "much"], value=1, next_value=1, terminated=0, truncated=0),
        "line 3: column reward: 'much' is not a finite number",
    ),
    "nan": (
        table(reward=[1, 1], value=[1, "nan"], next_value=1, terminated=0, truncated=0),
        "line 3: column value: 'nan' is not a finite number",
    ),
    "an infinite next value": (
        table(reward=[1], value=1, next_value="inf", terminated=0, truncated=1),
        "line 2: column next_value: 'inf' is not a finite number",
    ),
    "a flag": (
        table(reward=[1], value=1, next_value=1, terminated="yes", truncated=0),
        "line 2: column terminated: 'yes' is not 0, 1, true or false",
    ),
    "a number as flag": (
        table(reward=[1], value=1, next_value=1, terminated=0, truncated=0.5),
        "line 2: column truncated: '0.5' is not 0, 1, true or false",
    ),
    "a gap at an end": (
        table(reward=[1, 1], value=1, next_value=["", ""], terminated=0, truncated=[0, 1]),
        "line 3: column next_value: is empty, but the row does not continue",
    ),
    "values that disagree": (
        table(reward=[1, 1], value=[1, 2], next_value=[2.5, 1], terminated=0, truncated=0),
        "line 2: claims to continue, but its next_value 2.5 is not the value 2 of the row on"
        " line 3",
    ),
    "an open end": (
        table(reward=[1, 1], value=1, next_value=1, terminated=0, truncated=0, episode=["a", "b"]),
        "line 2: is the last row of its episode, but neither terminated, truncated nor cut",
    ),
    "a short line": (
        "reward,value,next_value,terminated,truncated\n1,1,1,0\n",
        "line 2: 4 cells in a file of 5 columns",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_read_says_where_and_why(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(TraceFileError) as caught:
        read_rows(path, tolerance=1e-4)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    done = command("trace", str(path))
    assert done.status == 1
    assert done.err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]


def test_the_tolerance_of_neighbours_can_be_set(tmp_path):
    text = table(reward=[1, 1], value=[1, 2], next_value=[2.001, 1], terminated=0, truncated=0)
    path = write(tmp_path, text)
    assert command("trace", str(path)).status == 1
    assert command("trace", str(path), "--tolerance", "0.001").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "missing.csv: cannot be read"),
        (["missing.yaml"], "missing.yaml"),
        (["rows.csv", "--gae-lambda", "1.5"], "--gae-lambda"),
        (["rows.csv", "--ppo.gamma", "0.9"], "--ppo.gamma: a CSV file has no config"),
        (["rows.csv", "--tolerance", "nan"], "--tolerance"),
        ([".", "--checkpoint", "last"], "checkpoints"),
    ],
)
def test_what_cannot_be_traced_is_told_in_a_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, two_episodes(truncated=1))
    done = command("trace", *arguments)
    assert done.status != 0
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


# --- playing ---


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_rows_that_were_played_keep_the_contract(tmp_path, autoreset):
    settings = config(tmp_path, "Cnt", kwargs={"length": 5, "kind": "trunc"}, autoreset=autoreset)
    rows = play(None, settings, n_envs=2, episodes=7, steps=100)
    ends = rows.terminated | rows.truncated
    assert ends.sum() >= 7
    assert rows.env_rewards.tolist() == [1.0] * len(rows)
    for env in (0, 1):
        mine = rows.env == env
        lengths = np.diff(np.flatnonzero(np.append(True, ends[mine])))
        assert set(lengths[1:].tolist()) == {5}
        assert rows.episode[mine].tolist() == (np.cumsum(np.append(0, ends[mine]))[:-1]).tolist()
    checks = check_rows(rows, gamma=0.9, gae_lambda=0.9, batch_size=8, adjacency=1e-4)
    assert all(check.passed is not False for check in checks if check.of_contract)


def test_playing_stops_after_the_steps_asked_for(tmp_path):
    settings = config(tmp_path, "Cnt", kwargs={"length": 50, "kind": "term"})
    rows = play(None, settings, n_envs=1, episodes=1, steps=23)
    assert len(rows) == 23
    # A rollout of 16 steps ends inside, as it would in training.
    assert np.flatnonzero(rows.cut).tolist() == [15, 22]


def test_a_run_is_traced_and_what_is_written_can_be_traced_again(tmp_path):
    file = config_file(tmp_path, "Cnt", kwargs={"length": 7, "kind": "trunc"})
    assert command("train", str(file)).status == 0
    run = only_run(tmp_path)
    before = (run / "checkpoints" / "last.pt").read_bytes()
    written = tmp_path / "again.csv"
    done = command(
        *("trace", str(run), "--gae-lambda", "0.95", "--gae-lambda", "0.5", "--rows", "0"),
        *("--episodes", "2", "--csv", str(written)),
    )
    assert done.status == 0, done.err
    assert "A(0.95)" in done.out
    assert "A(0.5)" in done.out
    assert "FAULT" not in done.out
    assert done.out.count("truncated") >= 2
    assert (run / "trace.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "checkpoints" / "last.pt").read_bytes() == before
    again = command("trace", str(written), "--json")
    assert again.status == 0, again.err
    record = json.loads(again.out)
    assert record["passed"]
    (came,) = [check for check in record["checks"] if check["name"] == "advantages that came"]
    assert came["passed"]
    assert Path(record["picture"]) == tmp_path / "again.trace.png"


def test_a_long_trace_is_shortened_around_its_ends(tmp_path):
    file = config_file(tmp_path, "Cnt", kwargs={"length": 30, "kind": "term"})
    picture = tmp_path / "p.png"
    done = command("trace", str(file), "--episodes", "3", "--rows", "20", "--picture", str(picture))
    assert done.status == 0
    shown = done.out.partition("gates at every boundary")[0].splitlines()
    assert any(line.startswith("... ") and line.endswith(" rows") for line in shown)
    assert sum("terminated" in line for line in shown) == 3
    assert picture.exists()


def test_a_picture_that_cannot_be_written_is_told(tmp_path):
    path = write(tmp_path, two_episodes(truncated=1))
    done = command("trace", str(path), "--picture", str(tmp_path / "no" / "such" / "p.png"))
    assert done.status == 1
    assert "cannot write" in done.err
