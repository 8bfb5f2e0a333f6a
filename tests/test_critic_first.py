"""Warm-up, gates, and runs that start from another run's agent, through the whole trainer."""

import itertools
import json

import numpy as np
import pytest
import torch

from ppo import loop
from ppo.agent import Agent
from ppo.errors import UserError
from ppo.inheritance import Ancestor
from ppo.train import resume, train
from tests.runs import checkpoint, column, command, config, config_file, differences


@pytest.fixture(autouse=True)
def curve_is_not_drawn(monkeypatch):
    monkeypatch.setattr(loop.TrainingLoop, "_draw", lambda _: None)


def networks(run_dir, name="last"):
    return checkpoint(run_dir, name)["agent"]["networks"]


def policy_part(state):
    return {name: value for name, value in state.items() if not name.startswith("critic.")}


def critic_part(state):
    return {name: value for name, value in state.items() if name.startswith("critic.")}


LONG = ("ppo.total_timesteps=320", "checkpoint.every=32", "checkpoint.keep=20")


def test_the_policy_stands_still_during_warm_up_and_only_then(tmp_path):
    run_dir = train(config(tmp_path, "Echo", *LONG, "critic.warmup_iterations=4")).run_dir
    steps = [networks(run_dir, f"step_{32 * k}") for k in range(1, 11)]
    still = [not differences(policy_part(a), policy_part(b)) for a, b in itertools.pairwise(steps)]
    assert still == [True] * 3 + [False] * 6
    critic = [
        bool(differences(critic_part(a), critic_part(b))) for a, b in itertools.pairwise(steps)
    ]
    assert all(critic)
    assert column(run_dir, "train/value_only_epochs") == [2.0] * 4 + [0.0] * 6
    assert column(run_dir, "train/approx_kl")[:4] == [0.0] * 4


def test_a_run_that_was_stopped_in_its_warm_up_goes_on_with_it(tmp_path):
    settings = (*LONG, "critic.warmup_iterations=4")
    whole = train(config(tmp_path / "whole", "Echo", *settings)).run_dir
    first = train(config(tmp_path / "parts", "Echo", *settings, "ppo.total_timesteps=160")).run_dir
    resume(first, ["ppo.total_timesteps=320"])
    assert column(first, "train/value_only_epochs") == column(whole, "train/value_only_epochs")


def test_warm_up_leaves_an_adaptive_learning_rate_where_it_is(tmp_path):
    run_dir = train(
        config(tmp_path, "Echo", *LONG, "critic.warmup_iterations=4", "ppo.lr_schedule=adaptive_kl")
    ).run_dir
    assert len(set(column(run_dir, "train/learning_rate")[:5])) == 1


# Echo's rewards are noise to any critic; a short horizon keeps its returns from being values.
POOR = ("critic.min_explained_variance=0.999", "ppo.gamma=0.8")


def test_value_epochs_are_added_where_the_critic_is_poor(tmp_path, capsys):
    gated = (*LONG, *POOR, "critic.gate=value_epochs", "critic.extra_value_epochs=3")
    run_dir = train(config(tmp_path, "Echo", *gated)).run_dir
    # The fifth reading is the first that can be judged.
    assert column(run_dir, "train/value_only_epochs") == [0.0] * 4 + [3.0] * 6
    # 2 epochs of 2 minibatches in each of 10 iterations, and 3 more epochs in 6 of them.
    assert checkpoint(run_dir)["counters"]["n_updates"] == 10 * 4 + 6 * 6
    assert capsys.readouterr().err.count("3 more value epochs") == 1


def test_the_policy_is_held_and_then_goes_on_with_a_warning(tmp_path, capsys):
    gated = (*LONG, *POOR, "critic.gate=hold_policy", "critic.max_held_iterations=2")
    run_dir = train(config(tmp_path, "Echo", *gated)).run_dir
    assert column(run_dir, "train/value_only_epochs") == [0.0] * 4 + [2.0] * 2 + [0.0] * 4
    assert "going on with both" in capsys.readouterr().err
    steps = [policy_part(networks(run_dir, f"step_{32 * k}")) for k in (4, 5, 6, 7)]
    assert not differences(steps[0], steps[1])
    assert not differences(steps[1], steps[2])
    assert differences(steps[2], steps[3])


def test_warn_is_said_once_and_changes_nothing(tmp_path, capsys):
    warned = train(config(tmp_path / "warn", "Echo", *LONG, *POOR)).run_dir
    assert capsys.readouterr().err.count("the critic explains") == 1
    off = train(config(tmp_path / "off", "Echo", *LONG, *POOR, "critic.gate=off")).run_dir
    assert "the critic explains" not in capsys.readouterr().err
    assert not differences(networks(warned), networks(off))


def test_a_resumed_run_does_not_warn_again(tmp_path, capsys):
    run_dir = train(config(tmp_path, "Echo", *LONG, *POOR)).run_dir
    capsys.readouterr()
    resume(run_dir, ["ppo.total_timesteps=640"])
    assert "the critic explains" not in capsys.readouterr().err


def test_the_summary_ends_with_a_verdict(tmp_path):
    file = config_file(tmp_path, "Echo", *LONG)
    done = command("train", file)
    assert "\ncritic " in done.out
    result = json.loads(command("train", file, "--json").out)
    assert result["critic"]["kind"] in ("healthy", "weak", "sick", "cannot tell")
    assert result["critic"]["iterations"] == 10
    short = command("train", file, "--ppo.total_timesteps", "64")
    assert "critic cannot tell: 2 iterations are too few" in short.out


# --- from another run ---


@pytest.fixture
def parent(tmp_path):
    return train(config(tmp_path / "parent", "Echo", *LONG)).run_dir


def fresh(tmp_path, *overrides, toy="Echo", **env):
    return Agent.create(
        config(tmp_path, toy, "seed=9", *overrides, **env),
        observation_size=1,
        action_space=_space(tmp_path, toy, **env),
        device=torch.device("cpu"),
    )


def _space(tmp_path, toy, **env):
    from ppo.envs import make_vector_env

    with make_vector_env(config(tmp_path, toy, **env).env) as envs:
        return envs.action_space


def moments(agent, which):
    normalizer = getattr(agent, f"{which}_normalizer")
    return normalizer.moments.count


@pytest.mark.parametrize(
    ("resets", "critic", "observations", "rewards"),
    [
        ((), True, True, True),
        (("critic",), False, True, True),
        (("reward-normalizer",), True, True, False),
        (("normalizers",), True, False, False),
        (("critic", "normalizers"), False, False, False),
    ],
)
def test_what_is_inherited_and_what_is_not(tmp_path, parent, resets, critic, observations, rewards):
    ancestor = Ancestor.read(parent, resets)
    settings, agent = config(tmp_path, "Echo", "seed=9"), fresh(tmp_path)
    untouched = fresh(tmp_path)
    said = ancestor.hand_down(agent, settings)
    source, mine = Agent.load(parent).state(), agent.state()
    new = untouched.state()
    assert not differences(policy_part(source["networks"]), policy_part(mine["networks"]))
    expected = source if critic else new
    assert not differences(critic_part(expected["networks"]), critic_part(mine["networks"]))
    for kept, name in ((observations, "observation_moments"), (rewards, "reward_moments")):
        assert not differences((source if kept else new)[name], mine[name])
    kept_words, new_words = said.split("; new: ")
    for kept, words in (
        (critic, "the critic"),
        (observations, "statistics of observations"),
        (rewards, "statistics of rewards"),
    ):
        assert (words in kept_words) == kept
        assert (words in new_words) != kept
    # What was kept scales as it did there.
    observation = np.array([[0.7]])
    if observations:
        assert np.array_equal(
            agent.normalize(observation), Agent.load(parent).normalize(observation)
        )


def test_the_run_goes_on_from_that_agent_with_counters_of_its_own(tmp_path, parent, capsys):
    settings = config(tmp_path / "child", "Echo", *LONG, "critic.warmup_iterations=2")
    child = train(settings, ancestor=Ancestor.read(parent)).run_dir
    assert (
        "starts from"
        in json.loads((child / "provenance.json").read_text())["starts"][0]["inherited"]
    )
    # The policy of the warm-up is the parent's.
    assert not differences(policy_part(networks(parent)), policy_part(networks(child, "step_32")))
    assert column(child, "time/total_timesteps")[0] == 32
    assert capsys.readouterr().err == ""  # logging.progress: off


def test_two_children_of_one_ancestor_do_not_share_their_statistics(tmp_path, parent):
    ancestor = Ancestor.read(parent)
    counts = []
    for name in ("one", "two"):
        agent = train(config(tmp_path / name, "Echo"), ancestor=ancestor).agent
        counts.append((moments(agent, "observation"), moments(agent, "reward")))
    assert counts[0] == counts[1]


def test_reward_normalisation_may_be_switched(tmp_path, parent):
    off = config(tmp_path / "off", "Echo", "normalize.rewards=false")
    run_dir = train(off, ancestor=Ancestor.read(parent)).run_dir
    again = Ancestor.read(run_dir)
    agent = fresh(tmp_path)
    assert (
        "statistics of rewards"
        in again.hand_down(agent, config(tmp_path, "Echo")).split("; new: ")[1]
    )
    assert moments(agent, "reward") == 0


@pytest.mark.parametrize(
    ("overrides", "env", "message"),
    [
        (["policy.hidden_sizes=[4, 4]"], {}, r"hidden_sizes \[8\], but this run has \[4, 4\]"),
        (["policy.activation=relu"], {}, "activation tanh, but this run has relu"),
        (["normalize.observations=false"], {}, "observations true, but this run has false"),
        ([], {"kwargs": {"action": "box3"}}, r"Box of 1 in \[-1, 1\], but this run has Box of 3"),
        (
            [],
            {"kwargs": {"action": "multi"}},
            r"Box of 1 .* has choices of \[2, 3\] from \[0, 10\]",
        ),
        ([], {"time_limit": "task", "max_episode_steps": 9}, "observations of 1 numbers, .* has 2"),
    ],
)
def test_another_agent_is_refused_before_training(tmp_path, parent, overrides, env, message):
    settings = config(tmp_path / "child", "Cnt", *overrides, **{"kwargs": {"action": "box"}} | env)
    with pytest.raises(UserError, match=message):
        train(settings, ancestor=Ancestor.read(parent))
    assert not (tmp_path / "child" / "runs").exists()


def test_the_command_line_says_what_is_wrong(tmp_path, parent):
    file = config_file(tmp_path, "Echo")
    missing = command("train", file, "--from", tmp_path / "nowhere")
    assert (missing.status, "no such folder" in missing.err) == (1, True)
    (parent / "checkpoints" / "last.pt").rename(parent / "checkpoints" / "gone.pt_")
    for kept in (parent / "checkpoints").glob("*.pt"):
        kept.unlink()
    none = command("train", file, "--from", parent)
    assert "no checkpoint 'last' here" in none.err
    alone = command("train", file, "--reset", "critic")
    assert (alone.status, "--from" in alone.err) == (2, True)
    unknown = command("train", file, "--from", parent, "--reset", "actor")
    assert (unknown.status, "reward-normalizer" in unknown.err) == (2, True)


def test_a_checkpoint_is_an_ancestor_too(tmp_path, parent):
    file = config_file(tmp_path, "Echo", "logging.progress=plain")
    done = command(
        "train", file, "--from", parent / "checkpoints" / "step_64.pt", "--reset", "critic"
    )
    assert done.status == 0
    assert "step_64.pt (env step 64); kept: the policy" in done.err
    assert "new: the critic, optimiser" in done.err


def test_moments_of_another_size_are_damage(parent):
    """The native step reads as many numbers as there are parameters, whatever is in the file."""
    file = parent / "checkpoints" / "last.pt"
    contents = torch.load(file, weights_only=True)
    contents["optimizer"]["exp_avg"] = contents["optimizer"]["exp_avg"][:-1]
    torch.save(contents, file)
    with pytest.raises(UserError, match="exp_avg"):
        resume(parent, ["ppo.total_timesteps=640"])
