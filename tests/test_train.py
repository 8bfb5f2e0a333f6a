import json
import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

from ppo import loop
from ppo.config import Config, load_config
from ppo.envs import EnvBatch
from ppo.errors import NonFiniteError
from ppo.plan import Plan
from ppo.train import TrainResult, train
from tests.runs import checkpoint, column, config, differences, files, only_run, rows, scalars


@pytest.fixture(autouse=True)
def curve_is_not_drawn(monkeypatch):
    """Drawing takes longer than training here; one test lets it happen."""
    monkeypatch.setattr(loop.TrainingLoop, "_draw", lambda _: None)


def networks(result: TrainResult) -> dict[str, torch.Tensor]:
    return result.agent.state()["networks"]


# --- what a run leaves ---


def test_the_run_directory_holds_its_files_and_nothing_is_written_elsewhere(tmp_path, monkeypatch):
    monkeypatch.undo()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings = config(
        tmp_path,
        "Echo",
        "eval.every=32",
        "checkpoint.every=32",
        "checkpoint.keep=2",
        "ppo.total_timesteps=128",
        "logging.tensorboard=true",
    )
    run_dir = train(settings).run_dir
    left = set(files(run_dir))
    events = {name for name in left if name.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert left - events == {
        "config.yaml",
        "provenance.json",
        "progress.csv",
        "episodes.csv",
        "learning_curve.png",
        "evaluation.json",
        "checkpoints/last.pt",
        "checkpoints/best.pt",
        "checkpoints/step_96.pt",
        "checkpoints/step_128.pt",
    }
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "runs"}
    assert load_config(run_dir / "config.yaml") == settings
    (start,) = json.loads((run_dir / "provenance.json").read_text())["starts"]
    assert start["env_steps"] == 0


def test_the_evaluation_at_the_end_is_kept(tmp_path):
    result = train(config(tmp_path, "Echo", "eval.deterministic=false"))
    kept = json.loads((result.run_dir / "evaluation.json").read_text())
    assert kept["env_steps"] == result.env_steps == 64
    assert kept["deterministic"] is False
    assert kept["returns"] == result.evaluation.returns.tolist()
    assert kept["mean"] == np.mean(kept["returns"])


def test_the_csv_files_tensorboard_and_the_result_say_the_same(tmp_path):
    result = train(config(tmp_path, "Echo", "logging.tensorboard=true", "eval.every=32"))
    assert [row["env_steps"] for row in rows(result.run_dir)] == ["32", "64"]
    for tag, points in scalars(result.run_dir).items():
        assert [step for step, _ in points] == [32, 64]
        assert [value for _, value in points] == pytest.approx(
            column(result.run_dir, tag), rel=1e-6
        )
        if not tag.startswith("eval/"):  # the result has the evaluation at the end
            assert points[-1][1] == pytest.approx(result.final_metrics[tag], rel=1e-6)
    assert {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "train/approx_kl",
        "train/clip_fraction",
        "train/explained_variance",
        "train/loss",
        "train/std",
        "time/fps",
        "eval/mean_reward",
    } <= scalars(result.run_dir).keys()


def test_every_episode_is_logged_where_it_ended_with_the_environments_own_reward(tmp_path):
    result = train(
        config(
            tmp_path,
            "Cnt",
            "ppo.total_timesteps=32",
            kwargs={"length": 5, "kind": "both", "action": "box"},
        )
    )
    assert [
        (row["env_steps"], row["env"], row["return"], row["length"], row["ended"])
        for row in rows(result.run_dir, "episodes.csv")
    ] == [(str(steps), env, "5", "5", "terminated") for steps in (10, 20, 30) for env in "01"]
    assert result.final_metrics["rollout/ep_rew_mean"] == 5.0
    assert result.final_metrics["rollout/terminated_share"] == 1.0
    assert result.final_metrics["rollout/truncated_share"] == 0.0


def test_the_terms_of_the_reward_are_logged_per_episode(tmp_path):
    result = train(config(tmp_path, "Where", kwargs={"lengths": [4], "kinds": ["trunc"]}))
    # Even steps of an episode of four: 2 + 4.
    assert result.final_metrics["rollout/reward_even"] == 6.0
    assert result.final_metrics["rollout/truncated_share"] == 1.0


def test_without_a_finished_episode_there_is_no_return_anywhere(tmp_path):
    result = train(config(tmp_path, "Constant", "logging.tensorboard=true"))
    absent = ("rollout/ep_rew_mean", "rollout/ep_len_mean")
    for tag in absent:
        assert tag not in result.final_metrics
        assert tag not in rows(result.run_dir)[0]
        assert tag not in scalars(result.run_dir)
    assert "nan" not in (result.run_dir / "progress.csv").read_text().lower()
    assert all(math.isfinite(value) for value in result.final_metrics.values())
    assert rows(result.run_dir, "episodes.csv") == []


def test_the_last_update_is_logged_with_the_rollout_that_it_learned_from(tmp_path, monkeypatch):
    losses = []

    def update(*args, **kwargs):
        optimizer, metrics = original(*args, **kwargs)
        losses.append(metrics.loss)
        return optimizer, metrics

    original = loop.update
    monkeypatch.setattr(loop, "update", update)
    result = train(config(tmp_path, "Echo", "ppo.total_timesteps=96"))
    assert column(result.run_dir, "train/loss") == pytest.approx(losses)
    assert len(losses) == 3


# --- budget ---


@pytest.mark.parametrize(
    ("total", "env_steps", "iterations", "learning"),
    [
        (64, 64, 2, 2),
        (63, 64, 2, 2),
        (65, 66, 3, 2),  # a last rollout of 2 rows, less than a minibatch of 16
        (80, 80, 3, 3),  # one of exactly a minibatch
        (84, 84, 3, 3),  # a minibatch and a shorter one
        (20, 20, 1, 1),  # less than one rollout
        (32, 32, 1, 1),
    ],
)
def test_the_plan_is_what_happens(tmp_path, total, env_steps, iterations, learning):
    settings = config(tmp_path, "Echo", f"ppo.total_timesteps={total}")
    plan = Plan.of(settings)
    result = train(settings)
    logged = rows(result.run_dir)
    assert result.env_steps == plan.env_steps == env_steps
    assert int(logged[-1]["env_steps"]) == env_steps
    assert len(logged) == plan.iterations == iterations
    assert len(column(result.run_dir, "train/loss")) == learning
    assert plan.learns_from_last == (learning == iterations)
    assert float(logged[-1]["train/n_updates"]) == plan.gradient_steps
    assert len(column(result.run_dir, "train/explained_variance")) == iterations
    last = int(logged[-1]["env_steps"]) - (int(logged[-2]["env_steps"]) if iterations > 1 else 0)
    assert last == plan.last_rollout


def test_the_budget_is_rounded_up_to_whole_vector_steps(tmp_path):
    result = train(config(tmp_path, "Echo", "ppo.total_timesteps=100", n_envs=3))
    assert result.env_steps == 102


def test_a_last_rollout_too_short_to_learn_from_leaves_the_parameters(tmp_path):
    without, with_it = (
        train(config(tmp_path, "Echo", f"ppo.total_timesteps={total}")) for total in (96, 100)
    )
    assert differences(networks(without), networks(with_it)) == []
    # It was collected all the same: the statistics have seen it.
    counts = [result.agent.state()["observation_moments"]["count"] for result in (without, with_it)]
    assert counts == [96, 100]


def test_reset_steps_cost_no_budget(tmp_path):
    settings = config(
        tmp_path,
        "Cnt",
        "ppo.total_timesteps=70",
        autoreset="next_step",
        kwargs={"length": 3, "action": "box"},
    )
    result = train(settings)
    # Both environments act in three steps of four, together: 24 env steps in a rollout of 16.
    assert [row["env_steps"] for row in rows(result.run_dir)] == ["24", "48", "70"]
    assert result.agent.state()["observation_moments"]["count"] == 70
    assert {row["length"] for row in rows(result.run_dir, "episodes.csv")} == {"3"}


def test_the_plan_is_printed(tmp_path, capsys):
    train(config(tmp_path, "Echo", "logging.progress=plain", "ppo.total_timesteps=65"))
    said = capsys.readouterr().err
    assert (
        "plan: 66 env steps in 3 iterations of 2 envs x 16 steps, 8 gradient steps;"
        " the last rollout has 2 env steps and is too short to learn from\n"
    ) in said
    assert "66" in said.splitlines()[-1]


# --- schedules ---


def test_a_linear_schedule_starts_at_its_value_and_ends_one_iteration_above_zero(tmp_path):
    schedules = (
        "ppo.total_timesteps=320",
        "ppo.learning_rate=1e-3",
        "ppo.lr_schedule=linear",
        "ppo.clip_range_schedule=linear",
    )
    run_dir = train(config(tmp_path, "Echo", *schedules)).run_dir
    rates = [1e-3 * (10 - k) / 10 for k in range(10)]
    assert column(run_dir, "train/learning_rate") == pytest.approx(rates)
    assert column(run_dir, "train/clip_range") == pytest.approx([200 * rate for rate in rates])


def test_a_linear_schedule_never_passes_zero_on_a_last_short_rollout(tmp_path):
    schedule = ("ppo.lr_schedule=linear", "ppo.total_timesteps=65")
    rates = column(train(config(tmp_path, "Echo", *schedule)).run_dir, "train/learning_rate")
    assert rates == pytest.approx([3e-4, 3e-4 * 34 / 66, 3e-4 * 2 / 66])


def test_the_entropy_bonus_follows_its_schedule(tmp_path, monkeypatch):
    seen = []
    original = loop.update

    def update(networks, optimizer, batch, coefficients, **kwargs):
        seen.append(float(coefficients.ent_coef))
        return original(networks, optimizer, batch, coefficients, **kwargs)

    monkeypatch.setattr(loop, "update", update)
    train(config(tmp_path, "Echo", "ppo.ent_coef=0.1", "ppo.ent_coef_schedule=linear"))
    assert seen == pytest.approx([0.1, 0.05])


def test_adaptive_kl_moves_the_learning_rate_once_per_iteration_within_its_bounds(tmp_path):
    schedule = ("ppo.lr_schedule=adaptive_kl", "ppo.desired_kl=0.01", "ppo.total_timesteps=192")
    bounds = ("ppo.learning_rate=1e-4", "ppo.max_learning_rate=3e-4", "critic.learning_rate=2e-4")
    result = train(config(tmp_path, "Echo", *schedule, *bounds))
    rates = column(result.run_dir, "train/learning_rate")
    kls = column(result.run_dir, "train/approx_kl")
    assert max(kls) < 0.005  # so small a rate: always below half of what is desired
    assert rates == pytest.approx([1e-4, 1.5e-4, 2.25e-4, 3e-4, 3e-4, 3e-4])
    assert checkpoint(result.run_dir)["learning_rate"] == pytest.approx(3e-4)


# --- same seed, same run ---


def test_two_runs_with_the_same_seed_are_bit_equal_and_another_seed_is_not(tmp_path):
    first, second, other = (
        checkpoint(train(config(tmp_path, "Noise", f"seed={seed}")).run_dir) for seed in (1, 1, 2)
    )
    assert differences(first, second) == []
    assert "agent.networks.actor.0.weight" in differences(first, other)


def test_sync_and_async_runs_are_bit_equal(tmp_path):
    sync, workers = (
        checkpoint(train(config(tmp_path, "Noise", backend=backend)).run_dir)
        for backend in ("sync", "async")
    )
    assert differences(sync, workers) == ["config.env.backend"]


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_evaluations_during_training_do_not_touch_it(tmp_path, deterministic):
    settings = ("ppo.total_timesteps=128", f"eval.deterministic={deterministic}")
    without, with_them = (
        train(config(tmp_path, "Noise", f"eval.every={every}", *settings)) for every in (0, 32)
    )
    left, right = checkpoint(without.run_dir), checkpoint(with_them.run_dir)
    assert len(column(with_them.run_dir, "eval/mean_reward")) == 4
    assert set(differences(left, right)) == {
        "config.eval.every",
        "counters.evaluated_at",
        "best_return",
    }


def test_evaluations_see_other_seeds_than_training(tmp_path, monkeypatch):
    given = []
    original = EnvBatch.reset

    def reset(batch, seeds):
        given.append(list(seeds))
        return original(batch, seeds)

    monkeypatch.setattr(EnvBatch, "reset", reset)
    train(config(tmp_path, "Noise", "eval.every=32"))
    training, first, second, final = given
    assert first == second  # the same ones, so that checkpoints can be compared
    seeds = [*training, *first, *final]
    assert len(set(seeds)) == len(seeds) == 6


def test_best_is_the_checkpoint_of_the_best_evaluation(tmp_path, monkeypatch):
    settings = config(tmp_path, "Noise", "eval.every=32", "ppo.total_timesteps=128")
    original = loop.evaluate_agent
    means = iter([1.0, 3.0, 2.0, 3.0, 9.0])

    def evaluate_agent(agent, settings, **options):
        evaluation = original(agent, settings, **options)
        mean = next(means)
        monkeypatch.setattr(type(evaluation), "returns", np.array([mean, mean]))
        return evaluation

    monkeypatch.setattr(loop, "evaluate_agent", evaluate_agent)
    run_dir = train(settings).run_dir
    best = checkpoint(run_dir, "best")
    assert best["counters"]["env_steps"] == 64  # the first of two equal ones
    assert best["best_return"] == 3.0
    assert best["agent"]["observation_moments"]["count"] == 64
    assert checkpoint(run_dir)["best_return"] == 3.0


# --- kinds of environments, end to end ---


@pytest.mark.parametrize(
    ("toy", "kwargs"),
    [
        ("Echo", {"action": "start5"}),
        ("Echo", {"action": "multi"}),
        ("Echo", {"action": "skewed"}),
        ("Echo", {"action": "mixed_bounds"}),
        ("Echo", {"action": "infinite"}),
        ("Shown", {"form": "dict"}),
        ("Shown", {"form": "int_box"}),
        ("Shown", {"form": "image"}),
        ("Shown", {"form": "scalar"}),
        ("Precision", {"declared": "float32", "given": "float64"}),
        ("Precision", {"declared": "float64", "given": "float64"}),
        ("OddReward", {"form": "int"}),
        ("OddReward", {"form": "one_element"}),
    ],
)
def test_every_kind_of_space_trains(tmp_path, toy, kwargs):
    result = train(config(tmp_path, toy, "ppo.check_rollout=true", kwargs=kwargs))
    assert result.env_steps == 64
    for name, tensor in networks(result).items():
        assert torch.isfinite(tensor).all(), name
    assert float(result.final_metrics["train/n_updates"]) == 8
    assert np.isfinite(result.evaluation.returns).all()


@pytest.fixture
def warnings_are_shown():
    """As in a run that somebody started: the view shows them, and nothing raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def test_an_environment_that_reuses_its_array_trains_and_is_warned_of(
    tmp_path, capsys, warnings_are_shown
):
    train(config(tmp_path, "Reuse", "ppo.check_rollout=true"))
    assert set(capsys.readouterr().err.splitlines()) == {
        "warning: environment 0 (tests.toys:Reuse-v0) returns the same observation array again and"
        " again; observations are copied, so this is harmless here"
    }


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_time_limit_of_the_task_is_seen_and_terminates_in_training_and_evaluation(
    tmp_path, backend
):
    result = train(
        config(
            tmp_path,
            "Constant",
            "ppo.check_rollout=true",
            "eval.episodes=4",
            time_limit="task",
            max_episode_steps=8,
            backend=backend,
        )
    )
    assert result.agent.observation_size == 2
    assert {row["ended"] for row in rows(result.run_dir, "episodes.csv")} == {"terminated"}
    assert {(episode.length, episode.ended) for episode in result.evaluation.episodes} == {
        (8, "terminated")
    }


def test_one_environment_is_enough(tmp_path):
    result = train(config(tmp_path, "Echo", n_envs=1))
    assert result.env_steps == 64
    assert [row["env_steps"] for row in rows(result.run_dir)] == ["16", "32", "48", "64"]


def test_one_row_per_environment_is_enough(tmp_path):
    result = train(
        config(tmp_path, "Echo", "ppo.n_steps=1", "ppo.batch_size=2", "ppo.total_timesteps=8")
    )
    assert [row["env_steps"] for row in rows(result.run_dir)] == ["2", "4", "6", "8"]
    assert all(torch.isfinite(tensor).all() for tensor in networks(result).values())


def test_a_last_minibatch_of_one_row_is_harmless(tmp_path):
    settings = ("ppo.batch_size=31", "ppo.total_timesteps=64")
    result = train(config(tmp_path, "Echo", *settings))
    assert result.final_metrics["train/n_updates"] == 8
    assert all(torch.isfinite(tensor).all() for tensor in networks(result).values())


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_rollout_of_halfcheetah_keeps_the_contract(tmp_path, autoreset):
    result = train(
        config(
            tmp_path,
            "HalfCheetah-v5",
            "ppo.total_timesteps=128",
            "ppo.n_steps=32",
            "ppo.check_rollout=true",
            max_episode_steps=20,
            autoreset=autoreset,
        )
    )
    assert result.env_steps == 128
    assert result.final_metrics["rollout/ep_len_mean"] == 20
    assert "rollout/reward_forward" in result.final_metrics
    assert "rollout/reward_ctrl" in result.final_metrics


def test_gamma_one_without_any_termination_is_warned_of_once(tmp_path, capsys, warnings_are_shown):
    train(config(tmp_path, "Constant", "ppo.gamma=1", max_episode_steps=4))
    said = capsys.readouterr().err
    assert said.startswith("warning: ppo.gamma is 1 and nothing has terminated yet")
    assert said.count("\n") == 1


def test_gamma_one_is_warned_of_when_not_one_episode_ended(tmp_path, capsys, warnings_are_shown):
    train(config(tmp_path, "Constant", "ppo.gamma=1"))
    assert "warning: ppo.gamma is 1 and nothing has terminated yet" in capsys.readouterr().err


def test_gamma_one_with_terminations_is_fine(tmp_path):
    result = train(config(tmp_path, "Cnt", "ppo.gamma=1"))
    assert all(torch.isfinite(tensor).all() for tensor in networks(result).values())


# --- what must stop a run ---


def message(settings: Config) -> str:
    with pytest.raises(NonFiniteError) as caught:
        train(settings)
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("quantity", ["observation", "reward"])
@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_a_number_that_is_not_finite_is_named_with_its_place(tmp_path, quantity, value, backend):
    kwargs = {"quantity": quantity, "at": 5, "value": value}
    said = message(config(tmp_path, "Sick", backend=backend, kwargs=kwargs))
    assert said.startswith(f"environment 0 returned a non-finite {quantity} at env step 10:")
    assert value in said


def test_an_update_that_blows_up_stops_the_run_and_leaves_the_checkpoint(tmp_path, monkeypatch):
    saved = {}
    original = loop.update

    def update(networks, optimizer, batch, coefficients, **kwargs):
        (run_dir,) = (tmp_path / "runs").iterdir()
        if (run_dir / "checkpoints" / "step_32.pt").exists():
            saved.update(files(run_dir))
            batch = batch._replace(returns=batch.returns * float("inf"))
        return original(networks, optimizer, batch, coefficients, **kwargs)

    monkeypatch.setattr(loop, "update", update)
    said = message(config(tmp_path, "Noise", "checkpoint.every=32", "ppo.total_timesteps=128"))
    assert said.startswith("the loss or its gradient is not finite at env step 64 (iteration 2)")
    (run_dir,) = (tmp_path / "runs").iterdir()
    after = files(run_dir)
    for name in ("checkpoints/last.pt", "checkpoints/step_32.pt", "progress.csv"):
        assert after[name] == saved[name]
    assert after.keys() == saved.keys()


def test_parameters_that_blow_up_in_the_last_step_are_not_kept(tmp_path):
    """No later minibatch would find out: the run has one gradient step an iteration."""
    one_step = ("ppo.batch_size=32", "ppo.n_epochs=1", "ppo.learning_rate=1e30")
    said = message(config(tmp_path, "Noise", *one_step))
    assert said.startswith("the loss or its gradient is not finite at env step 32 (iteration 1)")
    state = checkpoint(only_run(tmp_path))
    assert state["counters"]["env_steps"] == 0
    assert all((tensor.abs() < 10).all() for tensor in state["agent"]["networks"].values())


def test_steps_per_second_count_what_this_process_did(tmp_path):
    run_dir = train(config(tmp_path, "Echo", "ppo.total_timesteps=96")).run_dir
    seconds = column(run_dir, "time/time_elapsed")
    assert all(earlier < later for earlier, later in pairwise(seconds))
    assert column(run_dir, "time/fps") == pytest.approx(
        [steps / second for steps, second in zip((32, 64, 96), seconds, strict=True)], rel=1e-6
    )
