"""The same data and the same minibatches through Stable-Baselines3: `scripts/compare_sb3.py`."""

import sys
from dataclasses import replace

import pytest
import torch

from ppo.gae import compute_gae
from ppo.native.step import NativeEpoch
from ppo.rollout import flatten_valid
from tests.runs import ROOT, config, config_file

pytest.importorskip("stable_baselines3")
sys.path.append(str(ROOT / "scripts"))

import compare_sb3
import sb3_parity

KINDS = {"term": ("terminated",), "trunc": ("truncated",), "both": ("terminated", "truncated")}


def collected(tmp_path, *overrides, kind="trunc", action="box", n_envs=3):
    """A rollout with noisy values, so that nothing is equal by chance."""
    settings = config(
        tmp_path,
        "Cnt",
        *overrides,
        n_envs=n_envs,
        kwargs={"length": 5, "kind": kind, "action": action},
    )
    space, rollout = compare_sb3.collect(settings)
    generator = torch.Generator().manual_seed(0)

    def noise(like):
        return torch.randn(like.shape, generator=generator)

    noisy = replace(
        rollout,
        learner_rewards=noise(rollout.values),
        values=rollout.values + noise(rollout.values),
        next_values=rollout.next_values + noise(rollout.values),
        log_probs=rollout.log_probs + 0.1 * noise(rollout.values),
    )
    # A row that goes on is followed by the state that it reached.
    goes_on = ~(noisy.terminated | noisy.truncated)[:-1]
    noisy.next_values[:-1][goes_on] = noisy.values[1:][goes_on]
    return settings, space, noisy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_advantages_and_targets_agree(tmp_path, kind, gae_lambda, n_envs):
    _, _, rollout = collected(tmp_path, kind=kind, n_envs=n_envs)
    assert all(bool(getattr(rollout, flag).any()) for flag in KINDS[kind])
    found = sb3_parity.compare_estimates(rollout, gamma=0.9, gae_lambda=gae_lambda)
    assert [each.quantity for each in found] == ["advantages", "targets"]
    assert all(each.agrees for each in found), found


@pytest.mark.parametrize(
    ("flag", "value"), [("truncated", False), ("terminated", True)], ids=["no limit", "a death"]
)
def test_a_wrong_flag_is_seen(tmp_path, flag, value):
    _, _, rollout = collected(tmp_path)
    right = sb3_parity.sb3_estimate(rollout, gamma=0.9, gae_lambda=0.95)
    flags = rollout.truncated.clone()
    wrong = replace(
        rollout, **{flag: torch.where(flags, torch.tensor(value), getattr(rollout, flag))}
    )
    ours = compute_gae(
        wrong.learner_rewards,
        wrong.values,
        wrong.next_values,
        wrong.terminated,
        wrong.truncated,
        gamma=0.9,
        gae_lambda=0.95,
    )
    assert not sb3_parity.Difference.of("advantages", ours[0], right[0]).agrees


def batch_of(rollout):
    estimated = compute_gae(
        rollout.learner_rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.truncated,
        gamma=0.9,
        gae_lambda=0.95,
    )
    return flatten_valid(rollout, *estimated)


def both_updates(settings, space, batch, *, n_epochs, compiled=False, **changes):
    hyper = replace(sb3_parity.hyperparameters_of(settings, n_epochs=n_epochs), **changes)
    return compare_sb3.shuffled_update(settings, space, batch, hyper, compiled=compiled)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("action", ["box3", "discrete"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("ppo.normalize_advantage=none", "ppo.clip_range_vf=0.1", "ppo.ent_coef=0.01"),
        ("policy.activation=relu", "policy.hidden_sizes=[16, 16]", "ppo.max_grad_norm=0.1"),
    ],
    ids=str,
)
def test_losses_gradient_and_parameters_agree(tmp_path, overrides, action, compiled):
    settings, space, rollout = collected(tmp_path, *overrides, action=action)
    batch = batch_of(rollout)
    for rows, n_epochs in ((batch.rows(torch.arange(16)), 1), (batch, 3)):
        ours, theirs, found = both_updates(
            settings, space, rows, n_epochs=n_epochs, compiled=compiled
        )
        assert ours.steps == theirs.steps == n_epochs * -(-rows.size // 16)
        assert all(each.agrees for each in found), [each for each in found if not each.agrees]
        assert ("gradient, clipped" in [each.quantity for each in found]) == (ours.steps == 1)


def test_the_kl_stop_comes_at_the_same_gradient_step(tmp_path):
    settings, space, rollout = collected(tmp_path, "ppo.learning_rate=0.03", action="box3")
    batch = batch_of(rollout)._replace(log_probs=rollout.log_probs.flatten())
    free, _, _ = both_updates(settings, space, batch, n_epochs=5)
    ours, theirs, _ = both_updates(
        settings, space, batch, n_epochs=5, target_kl=0.5 * free.losses["train/approx_kl"]
    )
    assert 0 < ours.steps == theirs.steps < free.steps


def test_another_order_of_rows_is_seen(tmp_path):
    settings, space, rollout = collected(tmp_path)
    batch = batch_of(rollout)
    hyper = sb3_parity.hyperparameters_of(settings, n_epochs=1)
    _, theirs, _ = both_updates(settings, space, batch, n_epochs=1)
    agent, _, _ = both_updates(settings, space, batch, n_epochs=1)
    networks = compare_sb3.Agent.create(
        settings,
        observation_size=batch.observations.shape[1],
        action_space=space,
        device=torch.device("cpu"),
    ).networks
    ours = sb3_parity.learn_ours(networks, batch, settings, hyper, seed=settings.seed + 1)
    found = sb3_parity.compare_learning(ours, theirs, networks)
    assert not all(each.agrees for each in found)
    assert agent.steps == ours.steps


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["compare_sb3.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ending:
        compare_sb3.main()
    return ending.value.code


def test_the_script_prints_tables_and_says_that_all_agrees(tmp_path, monkeypatch, capsys):
    file = config_file(tmp_path, "Cnt", kwargs={"length": 5, "kind": "trunc", "action": "box"})
    assert run(monkeypatch, file) == 0
    out = capsys.readouterr().out
    assert "6 truncated" in out
    assert "Estimating, lambda 0.9" in out
    assert "Learning, compiled, gradient steps: 4" in out
    assert "difference on purpose" in out
    assert "All agrees" in out
    assert "**differs**" not in out


def test_the_script_fails_where_something_differs(tmp_path, monkeypatch, capsys):
    file = config_file(tmp_path, "Cnt", kwargs={"length": 5, "kind": "trunc", "action": "box"})

    def off(self, *arguments):
        learner, metrics = original(self, *arguments)
        return learner._replace(parameters=learner.parameters * 1.01), metrics

    original = NativeEpoch.__call__
    monkeypatch.setattr(NativeEpoch, "__call__", off)
    assert run(monkeypatch, file) == 1
    out = capsys.readouterr().out
    assert "**differs**" in out
    assert "Something differs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml: no such file"),
        (["--ppo.gama", "0.9"], "did you mean ppo.gamma"),
        (["--ppo.normalize_advantage", "rollout"], "not known to Stable-Baselines3"),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path, monkeypatch, capsys, arguments, message):
    file = config_file(tmp_path, "Cnt")
    whole = arguments if arguments[0].endswith("yaml") else [file, *arguments]
    assert run(monkeypatch, *whole) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
