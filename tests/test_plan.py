import pytest
import torch

from ppo import plots
from ppo.parameters import flatten_parameters
from ppo.plan import Plan
from ppo.storage import read_checkpoint
from ppo.train import train
from tests.collecting import config_of

# total, n_envs, n_steps, batch_size -> env steps, iterations, the last one, learnt from it, steps
CASES = [
    ((64, 2, 8, 4), (64, 4, 16, True, 4 * 4 * 2)),
    ((63, 2, 8, 4), (64, 4, 16, True, 4 * 4 * 2)),
    ((65, 2, 8, 4), (66, 5, 2, False, 4 * 4 * 2)),
    ((68, 2, 8, 4), (68, 5, 4, True, (4 * 4 + 1) * 2)),
    ((10, 3, 8, 5), (12, 1, 12, True, 3 * 2)),  # a total below one rollout still trains
    ((50, 3, 8, 7), (51, 3, 3, False, 2 * 4 * 2)),  # with a shorter last minibatch each epoch
    ((16, 1, 8, 8), (16, 2, 8, True, 2 * 1 * 2)),
]


def config_for(case, tmp_path, **changes):
    total, n_envs, n_steps, batch_size = case
    return config_of(
        "Cnt",
        runs_dir=str(tmp_path),
        env__n_envs=n_envs,
        ppo__total_timesteps=total,
        ppo__n_steps=n_steps,
        ppo__batch_size=batch_size,
        **changes,
    )


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_the_plan_by_hand(case, expected, tmp_path):
    plan = Plan.of(config_for(case, tmp_path))
    told = (
        plan.env_steps,
        plan.iterations,
        plan.last_rollout,
        plan.learns_from_last,
        plan.gradient_steps,
    )
    assert told == expected
    assert plan.rollout == case[1] * case[2]


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_the_plan_is_what_happens(case, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "learning_curve", lambda run: None)
    config = config_for(case, tmp_path)
    plan = Plan.of(config)
    result = train(config)
    counters = read_checkpoint(result.run_dir / "checkpoints" / "last.pt")["counters"]
    assert counters["env_steps"] == result.env_steps == plan.env_steps
    assert counters["iterations"] == plan.iterations
    assert counters["n_updates"] == plan.gradient_steps
    assert result.final_metrics["time/total_timesteps"] == plan.env_steps
    # The last rollout is logged, whether or not it was learned from.
    assert ("train/loss" in result.final_metrics) == plan.learns_from_last


@pytest.mark.parametrize("total", [10, 17, 31])
def test_reset_steps_are_no_part_of_the_budget(total, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "learning_curve", lambda run: None)
    config = config_for((total, 2, 4, 4), tmp_path, env__autoreset="next_step")
    result = train(config)
    # Both environments are reset in the same step, so that the budget is met exactly.
    assert result.env_steps == Plan.of(config).env_steps == total + total % 2


def test_a_rollout_of_nothing_but_reset_steps_is_no_iteration(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "learning_curve", lambda run: None)
    config = config_for(
        (20, 2, 1, 2),
        tmp_path,
        env__autoreset="next_step",
        env__kwargs={"length": 2},
        normalize__observations=True,
        normalize__rewards=True,
        ppo__check_rollout=True,
    )
    result = train(config)
    assert result.env_steps == 20
    assert result.final_metrics["time/iterations"] == 10
    assert torch.isfinite(flatten_parameters(result.agent.networks)).all()


def test_the_description_says_what_is_special():
    config = config_of("Cnt", ppo__total_timesteps=65, env__n_envs=2)
    line = Plan.of(config).describe(config)
    assert line == (
        "66 env steps in 5 iterations of 2 envs x 8 steps, 32 gradient steps; the last rollout has"
        " 2 env steps and is too short to learn from"
    )
    config = config_of("Cnt", ppo__total_timesteps=68, env__n_envs=2)
    assert Plan.of(config).describe(config).endswith("; the last rollout has 4 env steps")
    config = config_of("Cnt", ppo__total_timesteps=64, env__autoreset="next_step")
    assert Plan.of(config).describe(config) == (
        "64 env steps in about 4 iterations of 2 envs x 8 steps, about 32 gradient steps"
    )
