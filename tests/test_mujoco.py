"""The batched stepping against Gymnasium's own environments, bit for bit."""

import signal

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from mujoco.batch import SimulationError
from numpy.testing import assert_array_equal

from ppo import loop
from ppo.collector import RolloutCollector
from ppo.config import EnvConfig
from ppo.envs import make_vector_env
from ppo.envs.mujoco import simulators
from ppo.envs.mujoco.tasks import TASKS
from ppo.envs.mujoco.vector import MujocoVectorEnv
from ppo.errors import ConfigError, EnvironmentFault, NonFiniteError
from ppo.interrupts import Interrupted
from ppo.train import resume, train
from tests.collecting import collecting
from tests.runs import checkpoint, config, differences, only_run

N_ENVS = 3

# Every keyword argument that the formulas read, away from its default.
VARIANTS = {
    "Ant-v5": {
        "frame_skip": 4,
        "forward_reward_weight": 2,
        "ctrl_cost_weight": 0.1,
        "contact_cost_weight": 1e-2,
        "healthy_reward": 3,
        "main_body": "front_left_leg",
        "terminate_when_unhealthy": False,
        "healthy_z_range": (0.4, 0.7),
        "contact_force_range": (-0.5, 0.5),
        "reset_noise_scale": 0.2,
        "exclude_current_positions_from_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
    "HalfCheetah-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 3,
        "ctrl_cost_weight": 0.5,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
    },
    "Hopper-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 0.3,
        "ctrl_cost_weight": 0.5,
        "healthy_reward": 2,
        "healthy_state_range": (-3.0, 3.0),
        "healthy_z_range": (0.9, 2.0),
        "healthy_angle_range": (-0.1, 0.3),
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
    },
    "Humanoid-v5": {
        "frame_skip": 3,
        "forward_reward_weight": 2.5,
        "ctrl_cost_weight": 0.3,
        "contact_cost_weight": 1e-3,
        "contact_cost_range": (0.1, 0.5),
        "healthy_reward": 1,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (1.1, 1.5),
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
    "HumanoidStandup-v5": {
        "frame_skip": 3,
        "uph_cost_weight": 2,
        "ctrl_cost_weight": 0.3,
        "impact_cost_weight": 1e-3,
        "impact_cost_range": (0.1, 0.5),
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
        "include_cvel_in_observation": False,
    },
    "InvertedDoublePendulum-v5": {"frame_skip": 3, "healthy_reward": 5, "reset_noise_scale": 0.3},
    "InvertedPendulum-v5": {"frame_skip": 3, "reset_noise_scale": 0.1},
    "Pusher-v5": {
        "frame_skip": 3,
        "reward_near_weight": 2,
        "reward_dist_weight": 3,
        "reward_control_weight": 0.7,
    },
    "Reacher-v5": {"frame_skip": 3, "reward_dist_weight": 3, "reward_control_weight": 0.7},
    "Swimmer-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 3,
        "ctrl_cost_weight": 0.5,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
    },
    "Walker2d-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 0.3,
        "ctrl_cost_weight": 0.5,
        "healthy_reward": 2,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (1.0, 1.3),
        "healthy_angle_range": (-0.2, 0.4),
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
    },
}


def single(env_id, **kwargs):
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)


def both(env_id, *, limit, **kwargs):
    """Gymnasium's vector environment and ours."""
    theirs = SyncVectorEnv(
        [lambda: single(env_id, max_episode_steps=limit, **kwargs)] * N_ENVS,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    ours = MujocoVectorEnv(single(env_id, **kwargs), N_ENVS, max_episode_steps=limit, n_threads=2)
    return theirs, ours


def random_actions(space, n_steps, seed=0):
    """Within the bounds, and often at them."""
    draws = np.random.default_rng(seed).uniform(-1.4, 1.4, (n_steps, *space.shape))
    return np.clip(draws * space.high, space.low, space.high).astype(space.dtype)


def same(ours, theirs, where=""):
    """Equal in keys, dtypes, shapes and every bit."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            same(ours[key], theirs[key], f"{where}/{key}")
    elif theirs.dtype == object:
        assert [row is None for row in ours] == [row is None for row in theirs], where
        for our_row, their_row in zip(ours, theirs, strict=True):
            if their_row is not None:
                same(our_row, their_row, where)
    else:
        assert ours.dtype == theirs.dtype, where
        assert_array_equal(ours, theirs, where)


def play(theirs, ours, n_steps):
    """The ends that were seen; fails where the two differ."""
    for part_of_ours, part_of_theirs in zip(ours.reset(seed=7), theirs.reset(seed=7), strict=True):
        same(part_of_ours, part_of_theirs, "reset")
    names = ("observations", "rewards", "terminated", "truncated", "infos")
    ends = {"terminated": 0, "truncated": 0}
    for step, action in enumerate(random_actions(theirs.action_space, n_steps)):
        results = zip(ours.step(action), theirs.step(action), names, strict=True)
        for part_of_ours, part_of_theirs, name in results:
            same(part_of_ours, part_of_theirs, f"step {step}: {name}")
            if name in ends:
                ends[name] += int(part_of_theirs.sum())
    ours.close()
    theirs.close()
    return ends


# --- Gymnasium's numbers ---


@pytest.mark.parametrize("env_id", TASKS)
def test_thousands_of_steps_with_resets_are_equal_in_every_bit(env_id):
    ends = play(*both(env_id, limit=150), 400)
    assert sum(ends.values()) >= 2 * N_ENVS


@pytest.mark.parametrize(
    "env_id",
    [
        *("Hopper-v5", "Walker2d-v5", "Humanoid-v5"),
        *("InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
    ],
)
def test_who_falls_terminates_as_in_gymnasium(env_id):
    assert play(*both(env_id, limit=None), 200)["terminated"] >= N_ENVS


@pytest.mark.parametrize("env_id", VARIANTS)
def test_keyword_arguments_of_the_task_mean_what_they_mean_in_gymnasium(env_id):
    play(*both(env_id, limit=60, **VARIANTS[env_id]), 200)


def test_every_task_has_a_variant():
    assert VARIANTS.keys() == TASKS.keys()


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_actions_that_are_not_numbers_and_wild_ones_do_what_they_do_in_gymnasium(env_id):
    theirs, ours = both(env_id, limit=100)
    theirs.reset(seed=0), ours.reset(seed=0)
    actions = random_actions(theirs.action_space, 40)
    actions[5, 1, 0] = np.nan
    actions[20, 2] = 1e9
    mujoco.set_mju_user_warning(lambda _: None)
    for action in actions:
        for part_of_ours, part_of_theirs in zip(
            ours.step(action), theirs.step(action), strict=True
        ):
            same(part_of_ours, part_of_theirs)
    ours.close(), theirs.close()


# --- a vector environment like any other ---


def test_spaces_and_spec_are_gymnasiums():
    theirs, ours = both("Hopper-v5", limit=None)
    for name in ("observation_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert getattr(ours, f"single_{name}") == getattr(theirs, f"single_{name}")
    assert ours.spec.id == "Hopper-v5"
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]


@pytest.mark.parametrize("seed", [None, 5, [3, 1, 4]])
def test_seeds_are_given_as_in_gymnasium(seed):
    theirs, ours = both("HalfCheetah-v5", limit=None)
    theirs.reset(seed=0), ours.reset(seed=0)
    same(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
    same(ours.reset()[0], theirs.reset()[0])


def test_some_environments_can_be_reset_and_the_others_go_on():
    theirs, ours = both("HalfCheetah-v5", limit=10)
    theirs.reset(seed=0), ours.reset(seed=0)
    for step, action in enumerate(random_actions(theirs.action_space, 30)):
        if step % 7 == 3:
            mask = np.array([True, False, step % 2 == 0])
            for ours_reset, theirs_reset in zip(
                ours.reset(options={"reset_mask": mask}),
                theirs.reset(options={"reset_mask": mask}),
                strict=True,
            ):
                same(ours_reset, theirs_reset)
        for part_of_ours, part_of_theirs in zip(
            ours.step(action), theirs.step(action), strict=True
        ):
            same(part_of_ours, part_of_theirs)


@pytest.mark.parametrize(
    ("mask", "said"), [([True] * N_ENVS, None), (np.zeros(N_ENVS, bool), "one of them true")]
)
def test_a_mask_that_chooses_nothing_is_refused(mask, said):
    _, ours = both("HalfCheetah-v5", limit=None)
    if said is None:
        ours.reset(options={"reset_mask": mask})
        return
    with pytest.raises(ValueError, match=said):
        ours.reset(options={"reset_mask": mask})


def test_seeds_and_actions_of_another_number_are_refused():
    _, ours = both("HalfCheetah-v5", limit=None)
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        ours.reset(seed=[1, 2])
    ours.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape \[2, 6\]"):
        ours.step(np.zeros((2, 6)))


def test_gymnasiums_wrapper_for_episode_statistics_works_on_it():
    theirs, ours = both("Hopper-v5", limit=25)
    theirs, ours = RecordEpisodeStatistics(theirs), RecordEpisodeStatistics(ours)
    theirs.reset(seed=0), ours.reset(seed=0)
    for action in random_actions(theirs.action_space, 80):
        theirs.step(action), ours.step(action)
    assert ours.return_queue == theirs.return_queue
    assert ours.length_queue == theirs.length_queue
    assert len(ours.length_queue) > N_ENVS


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_the_picture_of_an_environment_shows_where_it_stands(env_id, monkeypatch):
    _, ours = both(env_id, limit=None, render_mode="rgb_array")
    ours.reset(seed=0)
    for action in random_actions(ours.action_space, 5):
        observations = ours.step(action)[0]
    skipped = ours._single.observation_structure["skipped_qpos"]
    monkeypatch.setattr(ours._single, "render", ours._single.data.qpos[skipped:].copy)
    for index, picture in enumerate(ours.render()):
        assert_array_equal(picture, observations[index, : len(picture)])
        assert_array_equal(picture, ours.render_one(index))


# --- as a backend ---


def steps_of(backend, n_steps=60, **settings):
    """What a batch says, step by step."""
    step_cap = settings.pop("step_cap", None)
    env = EnvConfig(n_envs=N_ENVS, **settings)
    with make_vector_env(env, backend=backend, step_cap=step_cap) as batch:
        yield batch.reset([4, 9, 2])
        for actions in random_actions(batch.action_space, n_steps * N_ENVS).reshape(
            n_steps, N_ENVS, -1
        ):
            yield batch.step(actions)


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "Hopper-v5"},
        {"id": "Ant-v5", "max_episode_steps": 20},
        {"id": "Walker2d-v5", "time_limit": "task", "max_episode_steps": 30},
        {"id": "HalfCheetah-v5", "time_limit": "task", "max_episode_steps": 20, "step_cap": 15},
        {"id": "Pusher-v5", "step_cap": 13},
        {"id": "InvertedPendulum-v5", "kwargs": {"reset_noise_scale": 0.1}},
    ],
    ids=str,
)
def test_every_row_is_what_it_is_with_single_environments(settings):
    batched, one_by_one = steps_of("mujoco", **settings), steps_of("sync", **settings)
    assert_array_equal(next(batched), next(one_by_one))
    for ours, theirs in zip(batched, one_by_one, strict=True):
        for field in ("observations", "reached", "rewards", "terminated", "truncated", "acted"):
            same(getattr(ours, field), getattr(theirs, field), field)
        assert ours.reward_terms.keys() == theirs.reward_terms.keys()
        for name, values in theirs.reward_terms.items():
            assert_array_equal(ours.reward_terms[name], values.astype(np.float64), name)


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({"id": "Hopper-v5"}, "mujoco"),
        ({"id": "Ant-v5", "kwargs": {"ctrl_cost_weight": 0.1}}, "mujoco"),
        ({"id": "Hopper-v5", "autoreset": "next_step"}, "sync"),
        ({"id": "Hopper-v4"}, "sync"),
        ({"id": "Pendulum-v1"}, "sync"),
    ],
    ids=str,
)
def test_auto_takes_the_batched_stepping_where_the_task_is_covered(settings, backend):
    env = EnvConfig(n_envs=1, **settings)
    with make_vector_env(env) as batch:
        assert batch.backend == backend
    if backend == "sync":
        with pytest.raises(ConfigError, match=r"env\.backend: mujoco cannot step this: .*auto"):
            make_vector_env(env, backend="mujoco")


def test_a_keyword_argument_that_the_task_does_not_know_is_one_line():
    env = EnvConfig(id="Hopper-v5", kwargs={"forward_reward_wieght": 2})
    with pytest.raises(ConfigError, match=r"cannot make Hopper-v5.*forward_reward_wieght"):
        make_vector_env(env)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_a_simulation_that_mujoco_gives_up_is_a_fault_that_names_it(env_id, monkeypatch):
    with make_vector_env(EnvConfig(id=env_id, n_envs=3)) as batch:
        assert batch.backend == "mujoco"
        batch.reset([0, 1, 2])

        class Refusing:
            def step(self, nstep):
                raise SimulationError(np.array([2]), "no more memory")

            def error(self, index):
                return "no more memory"

        def refuse(model, data, nstep):
            raise mujoco.FatalError("no more memory")

        if env_id == "Ant-v5":
            monkeypatch.setattr(simulators.mujoco, "mj_step", refuse)
        else:
            monkeypatch.setattr(batch._vector._simulator, "_batch", Refusing())
        with pytest.raises(EnvironmentFault, match=r"environment \d .*failed in step: no more mem"):
            batch.step(np.zeros((3, *batch.action_space.shape)))


@pytest.mark.parametrize("backend", ["mujoco", "sync"])
def test_a_reward_that_is_no_number_names_environment_and_step_on_every_backend(
    backend, tmp_path, monkeypatch
):
    settings = config(tmp_path, "HalfCheetah-v5", n_envs=3, backend=backend)
    with collecting(settings) as (agent, collector):
        collector.collect(agent, 5, env_step_budget=100)

        def broken(actions):
            actions = actions.copy()
            actions[1] = np.nan
            return actions

        monkeypatch.setattr(type(agent.head), "to_env", lambda _, actions: broken(actions))
        mujoco.set_mju_user_warning(lambda _: None)
        with pytest.raises(NonFiniteError, match=r"environment 1 .* reward at env step 18: nan"):
            collector.collect(agent, 5, env_step_budget=100)


# --- its state ---


@pytest.mark.parametrize("env_id", TASKS)
def test_a_state_brings_back_all_that_follows(env_id):
    def made():
        return MujocoVectorEnv(single(env_id), N_ENVS, max_episode_steps=12, n_threads=2)

    first, second = made(), made()
    actions = random_actions(first.action_space, 40)
    first.reset(seed=1)
    for action in actions[:17]:
        shown = first.step(action)[0]
    state = first.state()
    second.reset(seed=99)
    second.step(actions[0])
    assert_array_equal(second.load_state(state), shown)
    for action in actions[17:]:
        for part, again in zip(first.step(action), second.step(action), strict=True):
            same(again, part)


def test_a_state_of_another_task_or_size_is_not_taken():
    hopper = MujocoVectorEnv(single("Hopper-v5"), N_ENVS)
    hopper.reset(seed=0)
    before = hopper.state()
    for env_id, n_envs in (("Walker2d-v5", N_ENVS), ("Hopper-v5", 2)):
        other = MujocoVectorEnv(single(env_id), n_envs)
        other.reset(seed=1)
        assert hopper.load_state(other.state()) is None
    assert hopper.load_state({**before, "mujoco": "1.0"}) is None
    assert not differences(hopper.state(), before)


@pytest.fixture
def curve_is_not_drawn(monkeypatch):
    monkeypatch.setattr(loop.TrainingLoop, "_draw", lambda _: None)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Ant-v5"])
@pytest.mark.parametrize("stop_at", [0, 64])
@pytest.mark.usefixtures("curve_is_not_drawn")
def test_a_resumed_run_is_bit_equal_to_one_that_was_never_stopped(
    env_id, stop_at, tmp_path, monkeypatch
):
    """Stopped within a rollout: the first, and one after an evaluation."""

    def settings(folder):
        return config(tmp_path / folder, env_id, "ppo.total_timesteps=160", "eval.every=64")

    straight = train(settings("straight")).run_dir
    original = RolloutCollector.collect

    def collect(collector, agent, n_steps, *, env_step_budget):
        if collector.env_steps == stop_at:
            original(collector, agent, 5, env_step_budget=env_step_budget)
            raise Interrupted(signal.SIGINT)
        return original(collector, agent, n_steps, env_step_budget=env_step_budget)

    monkeypatch.setattr(RolloutCollector, "collect", collect)
    with pytest.raises(Interrupted):
        train(settings("stopped"))
    stopped = only_run(tmp_path / "stopped")
    assert checkpoint(stopped)["counters"]["env_steps"] == stop_at
    monkeypatch.setattr(RolloutCollector, "collect", original)
    resume(stopped)
    counted = {"counters.resumes"} if stop_at else set()
    assert set(differences(checkpoint(straight), checkpoint(stopped))) == {
        "config.runs_dir",
        *counted,
    }


@pytest.mark.usefixtures("curve_is_not_drawn")
def test_training_is_the_same_on_the_batched_backend_and_on_single_environments(tmp_path):
    ends = {}
    for backend in ("mujoco", "sync"):
        run_dir = train(config(tmp_path / backend, "Hopper-v5", backend=backend)).run_dir
        ends[backend] = checkpoint(run_dir)
    found = set(differences(ends["mujoco"]["agent"], ends["sync"]["agent"]))
    assert not found
    assert ends["sync"]["environments"] is None


@pytest.mark.usefixtures("curve_is_not_drawn")
def test_a_run_goes_on_with_single_environments_on_new_seeds(tmp_path):
    run_dir = train(config(tmp_path, "Hopper-v5")).run_dir
    result = resume(run_dir, ["ppo.total_timesteps=128", "env.backend=sync"])
    assert result.env_steps == 128
