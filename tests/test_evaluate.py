import json
from collections import Counter

import numpy as np
import pytest
import torch

from ppo import loop
from ppo.agent import Agent
from ppo.checkpoint import TrainingState
from ppo.config import Config
from ppo.envs import make_vector_env
from ppo.errors import NonFiniteError, UserError
from ppo.evaluate import Evaluation, evaluate, evaluate_agent, evaluate_run
from ppo.seeding import Stream, env_seeds
from ppo.train import train
from tests.runs import command, config, differences, files, start


@pytest.fixture(autouse=True)
def curve_is_not_drawn(monkeypatch):
    monkeypatch.setattr(loop.TrainingLoop, "_draw", lambda _: None)


def fresh_agent(settings: Config) -> Agent:
    with make_vector_env(settings.env) as envs:
        return TrainingState.fresh(
            settings,
            observation_size=envs.observation_size,
            action_space=envs.action_space,
            device=torch.device("cpu"),
        ).agent


def assess(settings: Config, **options) -> Evaluation:
    return evaluate_agent(fresh_agent(settings), settings, **options)


# --- which episodes ---


def test_a_short_episode_cannot_crowd_out_a_long_one(tmp_path):
    """One environment's episodes are a tenth as long: it plays its share and no more."""
    settings = config(tmp_path, "tests.runs:Uneven-v0")
    with make_vector_env(settings.env, n_envs=2) as envs:
        result = evaluate(
            fresh_agent(settings),
            envs,
            episodes=6,
            seeds=[1, 10],
            deterministic=True,
            step_cap=100,
            generator=torch.Generator(),
        )
    assert Counter(episode.length for episode in result.episodes) == {1: 3, 10: 3}
    assert Counter(result.returns.tolist()) == {1.0: 3, 10.0: 3}


def test_seeds_are_those_of_evaluation_and_no_environment_of_training_has_one(tmp_path):
    settings = config(tmp_path, "Noise", "eval.episodes=4", n_envs=4)
    training = {
        seed
        for attempt in range(3)
        for seed in env_seeds(settings.seed, Stream.TRAINING_ENVS, 4, attempt=attempt)
    }
    for stream in (Stream.EVALUATION_ENVS, Stream.SELECTION_ENVS):
        assert training.isdisjoint(env_seeds(settings.seed, stream, 4))


def test_an_evaluation_leaves_the_agent_as_it_was(tmp_path):
    settings = config(tmp_path, "Echo")
    agent = fresh_agent(settings)
    agent.observation_normalizer.update(np.array([[1.0], [3.0], [8.0]]))
    before = agent.state()
    evaluate_agent(agent, settings)
    assert differences(before, agent.state()) == []


def test_the_mode_is_the_same_every_time_and_samples_follow_the_seed(tmp_path):
    settings = config(tmp_path, "Echo")
    assert np.array_equal(assess(settings).returns, assess(settings).returns)
    sampled = config(tmp_path, "Echo", "eval.deterministic=false")
    first = assess(sampled)
    assert np.array_equal(first.returns, assess(sampled).returns)
    assert not np.array_equal(first.returns, assess(sampled, seed=7).returns)
    assert len(set(first.returns)) == 2
    assert len(set(assess(settings).returns)) == 1


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_how_training_runs_its_environments_does_not_matter(tmp_path, backend, autoreset):
    settings = config(tmp_path, "Where", "eval.episodes=6", backend=backend, autoreset=autoreset)
    result = assess(settings)
    assert sorted(episode.length for episode in result.episodes) == [2, 2, 3, 3, 5, 5]
    assert {(episode.length, episode.ended) for episode in result.episodes} == {
        (3, "terminated"),
        (5, "truncated"),
        (2, "terminated"),
    }


# --- what is said of them ---


def test_the_summary_of_known_returns(tmp_path):
    # Where pays 100 * episode + t: 1 + 2, then 101 + 102.
    settings = config(
        tmp_path, "Where", "eval.episodes=4", kwargs={"lengths": [2], "kinds": ["term"]}
    )
    assert assess(settings).summary() == {
        "mean": 103.0,
        "std": 100.0,
        "median": 103.0,
        "min": 3.0,
        "max": 203.0,
        "mean_length": 2.0,
        "episodes": 4,
        "capped": 0,
    }


def test_an_endless_environment_hits_the_cap_and_that_is_said(tmp_path):
    result = assess(config(tmp_path, "Constant", "eval.max_episode_steps=7"))
    assert [episode.ended for episode in result.episodes] == ["capped", "capped"]
    assert result.returns.tolist() == [7.0, 7.0]
    assert result.n_capped == result.summary()["capped"] == 2


def test_a_limit_below_the_cap_is_the_tasks_own(tmp_path):
    result = assess(config(tmp_path, "Constant", "eval.max_episode_steps=7", max_episode_steps=6))
    assert [(episode.length, episode.ended) for episode in result.episodes] == 2 * [
        (6, "truncated")
    ]


def test_the_cap_is_reported_during_training_and_by_the_command(tmp_path, capsys):
    settings = config(tmp_path, "Constant", "eval.every=32", "eval.max_episode_steps=7")
    run_dir = train(settings).run_dir
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "warning: 2 of 2 episodes of the evaluation at env step 32 were stopped by the cap of"
        " 7 env steps (eval.max_episode_steps)"
    )
    assert len(said) == 2
    done = command("eval", run_dir, "--eval.max_episode_steps", 9)
    assert done.status == 0
    assert "2 of them were stopped by the cap of 9 env steps" in done.out
    assert json.loads(command("eval", run_dir, "--json").out)["capped"] == 2


@pytest.mark.parametrize("quantity", ["observation", "reward"])
def test_a_number_that_is_not_finite_is_named(tmp_path, quantity):
    settings = config(tmp_path, "Sick", kwargs={"quantity": quantity, "at": 5, "value": "inf"})
    with pytest.raises(
        NonFiniteError,
        match=f"^environment 0 returned a non-finite {quantity} at env step 5 of an episode",
    ):
        assess(settings)


# --- of a run ---


@pytest.fixture
def run_dir(tmp_path):
    """The one evaluation during training comes before the last iteration."""
    return train(
        config(
            tmp_path,
            "Echo",
            "eval.every=96",
            "checkpoint.every=32",
            "ppo.total_timesteps=128",
        )
    ).run_dir


def test_the_command_prints_one_object_that_another_process_repeats(tmp_path, run_dir):
    here = evaluate_run(run_dir)
    with start("eval", run_dir, "--json", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == ""
    assert out.count("\n") == 1
    there = json.loads(out)
    assert there["returns"] == here.evaluation.returns.tolist()
    assert {key: there[key] for key in here.evaluation.summary()} == here.evaluation.summary()
    assert there["env_steps"] == 128
    assert (there["checkpoint"], there["selected"], there["deterministic"]) == ("last", False, True)


def test_the_evaluation_after_training_is_that_of_the_command(tmp_path):
    result = train(config(tmp_path))
    again = evaluate_run(result.run_dir).evaluation
    assert again == result.evaluation


def test_an_evaluation_writes_nothing(tmp_path, run_dir, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    assert command("eval", run_dir).status == 0
    assert files(tmp_path) == before


def test_statistics_and_samples_are_said_in_words(run_dir):
    said = command("eval", run_dir).out
    assert f"{run_dir} (last, at env step 128)\n" in said
    assert "return over 2 episodes (deterministic policy): mean " in said
    for name in ("std", "median", "min", "max", "mean length"):
        assert f"{name} " in said
    assert "(stochastic policy)" in command("eval", run_dir, "--stochastic").out
    assert "return over 6 episodes" in command("eval", run_dir, "--episodes", 6).out


def test_best_is_labelled_as_selected_and_brings_its_own_statistics(run_dir):
    best = json.loads(command("eval", run_dir, "--checkpoint", "best", "--json").out)
    assert best["selected"] is True
    assert best["env_steps"] == 96
    assert "selected: the best of" in command("eval", run_dir, "--checkpoint", "best").out
    assert "selected" not in command("eval", run_dir).out
    counts = [
        Agent.load(run_dir / "checkpoints" / f"{name}.pt").observation_normalizer.moments.count
        for name in ("best", "last")
    ]
    assert counts == [96, 128]


def test_a_numbered_checkpoint_can_be_evaluated(run_dir):
    assert evaluate_run(run_dir, checkpoint="64").env_steps == 64
    done = command("eval", run_dir, "--checkpoint", "32")
    assert done.status == 1
    assert "no checkpoint '32' here; there is: best, last, step_128, step_64, step_96" in (
        done.error_line
    )


def test_a_path_is_no_name_of_a_checkpoint(run_dir):
    with pytest.raises(UserError, match=r"no checkpoint '../checkpoints/last' here; there is: b"):
        evaluate_run(run_dir, checkpoint="../checkpoints/last")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        evaluate_run(tmp_path / "nothing")


def test_a_reader_that_has_gone_is_no_reason_for_a_traceback(tmp_path, run_dir):
    with start("eval", run_dir, cwd=tmp_path) as process:
        process.stdout.close()
        err = process.stderr.read()
        status = process.wait(60)
    assert err == ""
    assert status != 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("policy.activation", "relu"), ("normalize.observations", "false"), ("seed", "3")],
)
def test_keys_that_would_make_it_another_policy_are_refused(tmp_path, key, value):
    run_dir = train(config(tmp_path)).run_dir
    overrides = [f"{key}={value}"]
    with pytest.raises(UserError, match=f"^--{key}: is .* cannot become"):
        evaluate_run(run_dir, overrides=overrides)


def test_a_task_with_another_kind_of_action_is_refused(tmp_path):
    """Both have one policy output a number, so that sizes alone would not tell."""
    run_dir = train(config(tmp_path, kwargs={"action": "box", "length": 16})).run_dir
    overrides = ["env.kwargs.action=start5"]
    with pytest.raises(UserError, match=r"^the agent has .* gaussian policy outputs, but .* needs"):
        evaluate_run(run_dir, overrides=overrides)


def test_a_reset_that_is_not_finite_is_named(tmp_path):
    settings = config(tmp_path, "Sick", kwargs={"quantity": "observation", "at": 0, "value": "nan"})
    with pytest.raises(NonFiniteError, match=r"non-finite observation at env step 0 of an episode"):
        assess(settings)


def test_parameters_that_have_blown_up_are_not_blamed_on_the_environment(tmp_path):
    """Nor do they drown the one line in warnings of their arithmetic."""
    run_dir = train(config(tmp_path)).run_dir
    file = run_dir / "checkpoints" / "last.pt"
    contents = torch.load(file, weights_only=True)
    for name, tensor in contents["agent"]["networks"].items():
        if name.startswith("actor"):
            tensor.fill_(3e38)
    torch.save(contents, file)
    with pytest.raises(
        NonFiniteError, match="policy's outputs are not finite at env step 0 of an episode of the"
    ):
        evaluate_run(run_dir)


@pytest.mark.parametrize(
    "lost", [("counters",), ("counters", "env_steps"), ("agent", "head"), ("config",)]
)
def test_a_checkpoint_that_lacks_a_part_is_damaged(tmp_path, lost):
    run_dir = train(config(tmp_path)).run_dir
    file = run_dir / "checkpoints" / "last.pt"
    contents = torch.load(file, weights_only=True)
    part = contents
    for key in lost[:-1]:
        part = part[key]
    del part[lost[-1]]
    torch.save(contents, file)
    for arguments in (("eval", run_dir), ("resume", run_dir, "--ppo.total_timesteps", "96")):
        done = command(*arguments)
        assert done.status == 1
        assert "is damaged, or does not fit this version of the trainer" in done.error_line
