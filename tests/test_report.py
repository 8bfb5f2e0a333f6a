"""Reports: what is read of a run, what is left out, how cells are compared, and what is written."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ppo import loop
from ppo.sweep.collect import BINS, RunRecord, collect, read_run
from ppo.sweep.compare import aggregates, group, improvements
from ppo.sweep.references import REFERENCES
from ppo.sweep.report import results_csv
from ppo.sweep.verdict import verdict
from ppo.train import train
from tests.runs import command, config, files, rows


@pytest.fixture(autouse=True)
def curve_is_not_drawn(monkeypatch):
    monkeypatch.setattr(loop.TrainingLoop, "_draw", lambda _: None)


def a_run(tmp_path: Path, *overrides: str) -> Path:
    return train(config(tmp_path, "Echo", "ppo.total_timesteps=640", *overrides)).run_dir


# --- one run ---


def test_a_record_says_what_the_runs_files_say(tmp_path):
    run_dir = a_run(tmp_path)
    record = read_run(run_dir)
    late = [float(r["return"]) for r in rows(run_dir, "episodes.csv") if int(r["env_steps"]) > 576]
    assert record.final_return == pytest.approx(np.mean(late))
    assert record.episodes == len(late)
    kept = json.loads((run_dir / "evaluation.json").read_text())
    assert record.evaluation == kept["mean"]
    last = [float(r["train/explained_variance"]) for r in rows(run_dir)[-20:]]
    assert record.explained_variance == pytest.approx(np.median(last))
    assert (record.seed, record.env_steps, record.terminated) == (0, 640, 0.0)


def test_a_curve_repeats_what_came_last_where_no_episode_ended(tmp_path):
    run_dir = a_run(tmp_path)
    (run_dir / "episodes.csv").write_text(
        "env_steps,env,return,length,ended\n"
        "128,0,1,16,terminated\n128,1,3,16,truncated\n640,0,8,16,terminated\n"
    )
    record = read_run(run_dir)
    assert record.curve.tolist() == [2.0] * (BINS - 1) + [8.0]
    assert record.area == pytest.approx((2.0 * (BINS - 1) + 8.0) / BINS)
    assert (record.final_return, record.terminated) == (8.0, 1.0)


# --- what is left out ---


def test_what_is_not_finished_is_told_and_left_out(tmp_path):
    whole, cut = a_run(tmp_path), a_run(tmp_path, "seed=1")
    (cut / "evaluation.json").unlink()
    half = shutil.copytree(whole, tmp_path / "runs" / "half")
    (half / "config.yaml").write_text("seed: [")
    damaged = shutil.copytree(whole, tmp_path / "runs" / "odd")
    (damaged / "progress.csv").unlink()
    before = files(whole)
    found = collect([tmp_path / "runs"])
    assert [run.path for run in found.runs] == [whole]
    assert found.left_out[cut].startswith("not finished, 640 of 640 env steps; go on with: ppo")
    assert set(found.left_out) == {cut, half, damaged}
    assert files(whole) == before


def test_the_same_run_twice_counts_once(tmp_path):
    first = a_run(tmp_path)
    later = shutil.copytree(first, first.with_name(first.name + "_2"))
    found = collect([tmp_path / "runs"])
    assert [run.path for run in found.runs] == [later]
    assert "the same settings and seed" in found.left_out[first]


@pytest.mark.parametrize("what", ["nothing", "no folder", "unfinished", "no argument", "option"])
def test_a_report_on_nothing_is_one_line_and_writes_nothing(tmp_path, what):
    folder = tmp_path / "runs"
    arguments, says = [folder], "no run here"
    if what == "no folder":
        says = "there is no such folder"
    elif what == "unfinished":
        (a_run(tmp_path) / "evaluation.json").unlink()
        says = "no finished run here; of 1 that are not"
    elif what == "no argument":
        arguments, says = [], "a DIR with runs is needed"
    elif what == "option":
        arguments, says = [folder, "--bogus"], "there is no option --bogus"
    if what != "no folder":
        folder.mkdir(exist_ok=True)
    done = command("report", *arguments)
    assert done.status in (1, 2)
    assert says in done.error_line
    assert not (folder / "report.md").exists()


# --- comparing ---


def record(task="HalfCheetah-v5", seed=0, final=1.0, explained=0.8, critic="healthy", **settings):
    return RunRecord(
        path=Path(f"{task}-{seed}"),
        task=task,
        seed=seed,
        settings={"ppo.gae_lambda": 0.95, "ppo.gamma": 0.99, **settings},
        env_steps=1000,
        curve=np.full(BINS, final),
        final_return=final,
        evaluation=final,
        area=final,
        explained_variance=0.9,
        explained_variance_mc=explained,
        bootstrap_weight=0.2,
        critic=critic,
        terminated=0.25,
        episodes=4,
        steps_per_s=100.0,
    )


def cell(gae_lambda, finals, **more):
    return [
        record(seed=k, final=final, **{"ppo.gae_lambda": gae_lambda}, **more)
        for k, final in enumerate(finals)
    ]


LOW, HIGH = [1.0, 2.0, 3.0, 2.0, 1.0], [11.0, 12.0, 13.0, 12.0, 11.0]


def test_cells_differ_in_the_keys_that_differ_and_stand_in_their_order():
    (task,) = group([*cell(1.0, LOW), *cell(0.9, LOW), *cell(0.95, LOW)])
    assert [each.label for each in task.cells] == [
        "gae_lambda=0.9",
        "gae_lambda=0.95",
        "gae_lambda=1.0",
    ]
    assert [run.seed for run in task.cells[0].runs] == [0, 1, 2, 3, 4]


def test_each_lambda_is_compared_with_095_at_the_same_gamma():
    runs = [
        *cell(0.95, HIGH, **{"ppo.gamma": 0.9}),
        *cell(1.0, LOW, **{"ppo.gamma": 0.9}),
        *cell(0.95, LOW, **{"ppo.gamma": 0.99}),
        *cell(1.0, HIGH, **{"ppo.gamma": 0.99}),
    ]
    found = {each.cell: each for each in improvements(group(runs))}
    assert found["gae_lambda=1.0, gamma=0.9"].probability == 0.0
    assert found["gae_lambda=1.0, gamma=0.99"].probability == 1.0
    assert found["gae_lambda=1.0, gamma=0.99"].over == "gae_lambda=0.95, gamma=0.99"
    assert len(found) == 2


def test_several_tasks_are_put_on_one_scale():
    ends = {name: REFERENCES[name] for name in ("HalfCheetah-v5", "Hopper-v5")}
    runs = [
        run
        for task, ref in ends.items()
        for run in (
            *cell(0.95, [ref.random] * 5, task=task),
            *cell(0.9, [ref.published] * 5, task=task),
        )
    ]
    found = {each.label: each for each in aggregates(group(runs))}
    assert found["gae_lambda=0.95"].mean == 0.0
    assert found["gae_lambda=0.9"].iqm == 1.0
    assert found["gae_lambda=0.9"].mean_interval == (1.0, 1.0)
    assert aggregates(group(cell(0.9, LOW))) == []


# --- the verdict ---


def said(*runs) -> str:
    (task,) = group([run for each in runs for run in each])
    return "\n".join(verdict(task))


def test_a_clear_winner_is_named():
    text = said(cell(0.9, LOW), cell(0.95, HIGH))
    assert "The critic allows the question" in text
    assert "**gae_lambda=0.95 is best**" in text
    assert "Worse than the best**: gae_lambda=0.9 by 10.0" in text
    assert "about 2 seeds each" in text


def test_what_cannot_be_told_apart_is_not_ranked():
    text = said(cell(0.9, LOW), cell(0.95, [1.5, 2.0, 3.0, 2.0, 1.0]), cell(1.0, HIGH))
    assert "**gae_lambda=1.0 is best**" in text
    text = said(cell(0.9, LOW), cell(0.95, [1.5, 2.0, 3.0, 2.0, 1.0]))
    assert "**gae_lambda=0.95 and gae_lambda=0.9 cannot be told apart**" in text
    assert re.search(r"about \d+ seeds each", text)


def test_a_sick_critic_comes_before_everything():
    text = said(
        cell(0.9, LOW, explained=0.1, critic="sick"), cell(0.95, HIGH, explained=0.2, critic="sick")
    )
    assert text.startswith("**Fix the critic first**: in 0 of 10 runs V explains")


def test_a_cell_with_a_poor_critic_is_named():
    text = said(cell(0.0, LOW, explained=0.1, critic="sick"), cell(0.9, LOW), cell(0.95, HIGH))
    assert "not those of gae_lambda=0.0, whose critic" in text


def test_where_no_critic_can_be_judged_the_verdict_says_so():
    text = said(cell(0.9, LOW, explained=math.nan, critic="cannot tell"))
    assert text.startswith("**The critic cannot be judged**")


def test_few_seeds_bring_no_ranking():
    text = said(cell(0.9, LOW[:3]), cell(0.95, HIGH))
    assert "Too few seeds to say more" in text
    assert "best**" not in text


# --- what is written ---


def test_results_have_a_line_for_every_run_and_the_clock_last():
    text = results_csv(group([*cell(0.9, LOW), *cell(0.95, HIGH)]))
    header, *lines = csv.reader(text.splitlines())
    assert header[:4] == ["task", "ppo.gae_lambda", "seed", "env_steps"]
    assert header[-1] == "steps_per_s"
    assert [line[1] for line in lines] == ["0.9"] * 5 + ["0.95"] * 5
    assert [float(line[4]) for line in lines] == LOW + HIGH


def test_a_report_by_hand_has_tables_pictures_and_one_whole_page(tmp_path):
    for seed in range(2):
        for gae_lambda in (0.9, 0.95):
            a_run(tmp_path, f"seed={seed}", f"ppo.gae_lambda={gae_lambda}")
    out = tmp_path / "out"
    done = command("report", tmp_path / "runs", "--out", out, "--json")
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert (result["runs"], result["left_out"]) == (4, {})
    text = (out / "report.md").read_text()
    for name in re.findall(r"\]\(images/([^)]+)\)", text):
        assert (out / "images" / name).read_bytes().startswith(b"\x89PNG")
    assert text.count("](images/") == 3
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert 'src="images/' not in page
    assert "<table>" in page
    again = files(out)
    assert command("report", tmp_path / "runs", "--out", out).status == 0
    assert files(out) == again
