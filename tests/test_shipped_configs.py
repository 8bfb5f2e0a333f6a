"""The files in configs/: complete, valid, explained, and the reference where they should be."""

import re
from pathlib import Path

import gymnasium
import pytest

from ppo.config import config_keys, from_mapping, load_config
from ppo.strict_yaml import parse
from ppo.sweep.spec import load_sweep
from ppo.sweep.statistics import FEWEST_SEEDS

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))
MUJOCO = {
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
    "swimmer": "Swimmer-v5",
    "reacher": "Reacher-v5",
    "pusher": "Pusher-v5",
    "inverted_pendulum": "InvertedPendulum-v5",
    "inverted_double_pendulum": "InvertedDoublePendulum-v5",
    "humanoid_standup": "HumanoidStandup-v5",
}
CLASSIC = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1", "pendulum": "Pendulum-v1"}


def test_a_file_for_every_task():
    assert {path.stem for path in CONFIGS} == MUJOCO.keys() | CLASSIC.keys()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_file_is_complete_and_valid(path):
    config = load_config(path)
    assert config.env.id == (MUJOCO | CLASSIC)[path.stem]
    assert gymnasium.spec(config.env.id).max_episode_steps is not None
    written = [
        ".".join(key) for key in parse(path.read_text()).lines if key and isinstance(key[-1], str)
    ]
    assert sorted(written) == sorted(config_keys())


@pytest.mark.parametrize("name", MUJOCO)
def test_mujoco_files_hold_the_reference_hyperparameters(name):
    path = next(path for path in CONFIGS if path.stem == name)
    reference = from_mapping(
        {
            "env": {"id": MUJOCO[name]},
            "ppo": {"total_timesteps": 1_000_000},
            "eval": {"every": 1e5},
        },
        source="reference",
    )
    assert load_config(path) == reference


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_file_explains_what_a_person_turns(path):
    comments = " ".join(re.findall(r"#\s*(.*)", path.read_text()))
    for statement in (
        "0.97 suits sparse rewards and long episodes",
        "the weight acts almost only through the gradient clip that they share",
        "1 / (1 - gamma)",
    ):
        assert statement in comments
    if path.stem == "swimmer":
        assert "Swimmer stays low" in comments


SWEEPS = sorted((Path(__file__).parent.parent / "configs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_cell_of_a_shipped_sweep_is_valid_and_has_seeds_enough_for_an_interval(path):
    sweep = load_sweep(path)
    assert len(sweep.seeds) == FEWEST_SEEDS
    assert {cell.config.ppo.gae_lambda for cell in sweep.cells} >= {0.9, 0.95, 1.0}
    # Episodes of 1,000 steps in 8 environments: some must end in the last tenth.
    assert all(cell.config.ppo.total_timesteps >= 100_000 for cell in sweep.cells)


def test_the_standard_grid_is_there_for_four_tasks():
    grids = [load_sweep(path) for path in SWEEPS if path.stem.startswith("lambda_grid")]
    tasks = {sweep.cells[0].config.env.id for sweep in grids}
    assert tasks == {"HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Pendulum-v1"}
