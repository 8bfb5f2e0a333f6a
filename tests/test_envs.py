import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ppo.config import EnvConfig
from ppo.envs import EnvBatch, make_env, make_vector_env, quiet, workers
from ppo.errors import ConfigError, EnvironmentFault, UserError
from tests import toys

ROOT = Path(__file__).parent.parent
BACKENDS = ("sync", "async")
MODES = ("same_step", "next_step")


def settings(toy: str, **fields) -> EnvConfig:
    env_id = toy if "-v" in toy else f"tests.toys:{toy}-v0"
    return EnvConfig(id=env_id, **({"n_envs": 2} | fields))


def idle(batch: EnvBatch) -> np.ndarray:
    """An action that the discrete toys ignore."""
    return np.zeros(batch.n_envs, dtype=np.int64)


def step_often(batch: EnvBatch) -> None:
    for _ in range(6):
        batch.step(idle(batch))


def children() -> list[int]:
    return [process.pid for process in multiprocessing.active_children()]


def one_line(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# --- what a step says ---


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_step_rows_say_where_they_came_from(backend):
    with make_vector_env(settings("Where"), backend=backend) as batch:
        assert_array_equal(batch.reset([0, 1]), [[0, 0, 0], [1, 0, 0]])
        steps = [batch.step(idle(batch)) for _ in range(8)]
    assert [step.reached[1].tolist() for step in steps] == [
        [1, 0, 1],
        [1, 0, 2],
        [1, 0, 3],
        [1, 1, 1],
        [1, 1, 2],
        [1, 1, 3],
        [1, 1, 4],
        [1, 1, 5],
    ]
    assert steps[2].observations.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert steps[7].observations.tolist() == [[0, 2, 0], [1, 2, 0]]
    assert [step.rewards[0] for step in steps] == [1, 2, 3, 101, 102, 103, 104, 105]
    assert [step.terminated[0] for step in steps] == [False, False, True] + 5 * [False]
    assert [step.truncated[0] for step in steps] == 7 * [False] + [True]
    assert all(step.acted.all() for step in steps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_next_step_marks_the_row_in_which_nobody_acted(backend):
    config = settings("Where", autoreset="next_step", kwargs={"lengths": [2, 1], "kinds": ["both"]})
    with make_vector_env(config, backend=backend) as batch:
        batch.reset([0, 1])
        steps = [batch.step(idle(batch)) for _ in range(5)]
    assert [step.observations[1].tolist() for step in steps] == [
        [1, 0, 1],
        [1, 0, 2],
        [1, 1, 0],
        [1, 1, 1],
        [1, 2, 0],
    ]
    assert all(np.array_equal(step.reached, step.observations) for step in steps)
    assert [step.acted[1] for step in steps] == [True, True, False, True, False]
    assert [step.rewards[1] for step in steps] == [1, 2, 0, 101, 0]
    both = [False, True, False, True, False]
    assert [step.terminated[1] for step in steps] == both
    assert [step.truncated[1] for step in steps] == both


def test_a_second_reset_forgets_which_rows_were_waiting():
    with make_vector_env(settings("Cnt", kwargs={"length": 1}), autoreset="next_step") as batch:
        batch.reset([0, 1])
        assert batch.step(idle(batch)).terminated.all()
        batch.reset([0, 1])
        step = batch.step(idle(batch))
    assert step.acted.all()
    assert_array_equal(step.observations, [[1], [1]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_reward_terms_keep_the_rows_that_just_ended(backend, mode):
    config = settings("Where", kwargs={"lengths": [2, 3]}, autoreset=mode)
    with make_vector_env(config, backend=backend) as batch:
        batch.reset([0, 1])
        terms = [batch.step(idle(batch)).reward_terms for _ in range(4)]
    assert "reward_even" not in terms[0]
    assert_array_equal(terms[1]["reward_even"], [2, 2])
    assert terms[1]["reward_even"].dtype == np.float64
    if mode == "next_step":
        assert terms[2] == {}
    else:
        assert_array_equal(terms[2]["reward_episode"], [1, 1])
        assert_array_equal(terms[3]["reward_even"], [2, 2])
    assert all("position" not in of_step for of_step in terms)


def test_reward_terms_of_one_row_do_not_take_the_others_type():
    """Gymnasium keeps the type of the first value it meets: 0, then 0.5, would become 0."""

    class Mixed(toys.Cnt):
        def info(self):
            return {"reward_x": 0 if self.seed == 0 else 0.5, "reward_name": "walk"}

    gymnasium.register("MixedTerms-v0", entry_point=Mixed)
    try:
        with make_vector_env(EnvConfig(id="MixedTerms-v0", n_envs=2)) as batch:
            batch.reset([0, 1])
            terms = batch.step(idle(batch)).reward_terms
    finally:
        del gymnasium.registry["MixedTerms-v0"]
    assert list(terms) == ["reward_x"]
    assert_array_equal(terms["reward_x"], [0, 0.5])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_overwritten_by_a_later_step(backend, mode):
    with make_vector_env(settings("Where"), backend=backend, autoreset=mode) as batch:
        first = batch.reset([0, 1])
        before = first.copy()
        kept = []
        for _ in range(7):
            step = batch.step(idle(batch))
            fields = [getattr(step, name) for name in step.__slots__ if name != "reward_terms"]
            arrays = [*fields, *step.reward_terms.values()]
            kept += [(array, array.copy()) for array in arrays]
    assert_array_equal(first, before)
    for array, copy in kept:
        assert_array_equal(array, copy)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "config",
    [
        settings("HalfCheetah-v5", n_envs=3, max_episode_steps=7),
        settings("Pendulum-v1", n_envs=3, max_episode_steps=4, time_limit="task"),
        settings("Noise", n_envs=3),
        settings("OddReward", kwargs={"form": "int"}),
    ],
    ids=lambda config: config.id,
)
def test_sync_equals_async_bit_for_bit(config, mode):
    records = []
    for backend in BACKENDS:
        with make_vector_env(config, backend=backend, autoreset=mode) as batch:
            assert batch.backend == backend
            batch.action_space.seed(0)
            rows = [(batch.reset([7, 8, 9][: batch.n_envs]),)]
            for _ in range(10):
                actions = np.stack([batch.action_space.sample() for _ in range(batch.n_envs)])
                step = batch.step(actions)
                terms = [value for _, value in sorted(step.reward_terms.items())]
                flags = (step.terminated, step.truncated, step.acted)
                rows.append((step.observations, step.reached, step.rewards, *flags, *terms))
        records.append(rows)
    for ours, theirs in zip(*records, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_are_given_once_and_every_environment_has_its_own(backend):
    """Equal seeds give equal environments, and no episode repeats the one before."""
    with make_vector_env(settings("Noise", n_envs=3), backend=backend) as batch:
        first = batch.reset([5, 6, 5])
        assert first[0] == first[2]
        assert first[0] != first[1]
        batch.step(idle(batch))
        assert batch.step(idle(batch)).observations[0] != first[0]
        assert_array_equal(batch.reset([5, 6, 5]), first)


def test_a_seed_for_every_environment_is_needed():
    with make_vector_env(settings("Cnt")) as batch, pytest.raises(ValueError, match="seed"):
        batch.reset([1])


# --- observations ---


@pytest.mark.parametrize(
    ("form", "seen", "dtype"),
    [
        ("dict", [0, 1, 0, 1, 11], np.float64),  # `a` before `b`
        ("camera", [1, 0, 0.2, 0.4, 1], np.float32),
        ("tuple", [0, 1, 1], np.float64),
        ("image", [0, 0.2, 0.4, 1], np.float32),
        ("bytes", [1, 100], np.float32),
        ("matrix", [1, 1, 2, 3], np.float32),
        ("scalar", [1], np.float32),
        ("int_box", [1, -7], np.float32),
        ("discrete", [0, 0, 1], np.float32),
        ("multi", [0, 1, 0, 0, 1], np.float32),
        ("binary", [1, 0, 1], np.float32),
    ],
)
def test_every_supported_space_becomes_one_vector(form, seen, dtype):
    with make_vector_env(settings("Shown", kwargs={"form": form})) as batch:
        assert batch.reset([0, 1]).shape == (2, batch.observation_size)
        step = batch.step(idle(batch))
    assert step.observations.dtype == dtype
    assert_array_equal(step.observations[1], np.array(seen, dtype=dtype))
    assert batch.observation_size == len(seen)


@pytest.mark.parametrize("form", ["dict", "camera", "image", "int_box", "discrete", "matrix"])
def test_a_vector_lies_in_its_space(form):
    env = make_env(settings("Shown", kwargs={"form": form}))
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("form", ["text", "dict_of_text"])
def test_other_observation_spaces_are_refused(form):
    with pytest.raises(UserError, match=r"Text.*not supported") as error:
        make_env(settings("Shown", kwargs={"form": form}))
    assert "Shown-v0" in one_line(error)


@pytest.mark.parametrize("form", ["wrong_shape", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_observation_of_another_shape_is_a_fault(form, backend):
    with make_vector_env(settings("Shown", kwargs={"form": form}), backend=backend) as batch:
        with pytest.raises(EnvironmentFault, match=r"environment \d \(.*shape") as error:
            batch.reset([0, 1])
        assert "(2,)" in one_line(error)


@pytest.mark.parametrize(
    ("declared", "given", "dtype"),
    [
        ("float32", "float32", np.float32),
        ("float64", "float64", np.float64),
        ("float32", "float64", np.float32),
        ("float64", "float32", np.float64),
        ("float16", "float16", np.float32),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_observations_have_the_declared_precision(declared, given, dtype, backend):
    """What arrives in another dtype than the space declares is cast."""
    config = settings("Precision", kwargs={"declared": declared, "given": given, "length": 1})
    with make_vector_env(config, backend=backend) as batch:
        assert batch.reset([0, 1]).dtype == dtype
        step = batch.step(idle(batch))
    assert step.observations.dtype == step.reached.dtype == dtype
    assert_array_equal(step.reached, np.full((2, 1), np.array(1 + 1e-9, dtype=given), dtype=dtype))


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_reuses_its_array_is_harmless(backend, mode, view):
    """The library alone gives [100] for the first episode's last observation."""
    config = settings("Reuse", kwargs={"view": view}, autoreset=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with make_vector_env(config, backend=backend) as batch:
            shown = [batch.reset([0, 1])]
            steps = [batch.step(idle(batch)) for _ in range(4)]
    shown += [step.observations for step in steps]
    reached = [step.reached for step in steps]
    if mode == "same_step":
        assert [row.item() for row, _ in shown] == [0, 1, 100, 101, 200]
        assert [row.item() for row, _ in reached] == [1, 2, 101, 102]
    else:
        assert [row.item() for row, _ in shown] == [0, 1, 2, 100, 101]
        assert [row.item() for row, _ in reached] == [1, 2, 100, 101]


@pytest.mark.parametrize("view", [False, True])
def test_reuse_is_warned_of_once(view):
    with make_vector_env(settings("Reuse", kwargs={"view": view})) as batch:
        batch.reset([0, 1])
        with pytest.warns(UserWarning, match=r"environment 0 .* same observation array") as caught:
            step_often(batch)
    assert len(caught) == 1


def test_an_unchanging_observation_is_no_reuse():
    class Still(toys.Constant):
        only = np.ones(1, dtype=np.float32)

        def observe(self):
            return self.only

    gymnasium.register("Still-v0", entry_point=Still)
    try:
        env = make_env(EnvConfig(id="Still-v0"))
        env.reset(seed=0)
        for _ in range(4):
            env.step(0)  # a warning would be an error here
    finally:
        del gymnasium.registry["Still-v0"]


# --- rewards and flags ---


@pytest.mark.parametrize(
    ("form", "rewards"),
    [
        ("int", [1, 2, 3, 4]),
        ("bool", [1, 0, 1, 0]),
        ("np_int", [1, 2, 3, 4]),
        ("np_bool", [1, 0, 1, 0]),
        ("float32", [1, 2, 3, 4]),
        ("zero_d", [1, 2, 3, 4]),
        ("one_element", [1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rewards_become_floats(form, rewards, backend):
    config = settings("OddReward", kwargs={"form": form})
    with make_vector_env(config, backend=backend) as batch:
        batch.reset([0, 1])
        steps = [batch.step(idle(batch)) for _ in range(4)]
    assert all(step.rewards.shape == (2,) for step in steps)
    assert all(step.rewards.dtype == np.float64 for step in steps)
    assert [step.rewards[1] for step in steps] == rewards
    assert type(make_and_step(config)[1]) is float


def make_and_step(config: EnvConfig):
    env = make_env(config)
    env.reset(seed=0)
    return env.step(env.action_space.sample())


@pytest.mark.parametrize(
    ("form", "said"),
    [("none", "None"), ("pair", r"shape \(2,\)"), ("text", "'much'"), ("ragged", r"\[1, \[2, 3\]")],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_reward_is_a_fault(form, said, backend):
    config = settings("OddReward", kwargs={"form": form})
    with make_vector_env(config, backend=backend) as batch:
        batch.reset([0, 1])
        match = rf"environment \d \(tests.toys:OddReward-v0\) returned .*{said}.* as its reward"
        with pytest.raises(EnvironmentFault, match=match) as error:
            batch.step(idle(batch))
    one_line(error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("quantity", ["observation", "reward"])
def test_a_number_that_is_not_finite_comes_through_for_the_trainer_to_name(quantity, backend):
    config = settings("Sick", kwargs={"quantity": quantity, "at": 2})
    with make_vector_env(config, backend=backend) as batch:
        batch.reset([0, 1])
        batch.step(idle(batch))
        step = batch.step(idle(batch))
    shown = step.rewards if quantity == "reward" else step.reached
    assert np.isnan(shown).all()


def test_flags_that_are_arrays_become_bools():
    class Boxed(toys.Cnt):
        def ends(self):
            return np.array([self.t >= 2]), np.bool_(False)

    gymnasium.register("Boxed-v0", entry_point=Boxed)
    try:
        terminated, truncated = make_and_step(EnvConfig(id="Boxed-v0"))[2:4]
    finally:
        del gymnasium.registry["Boxed-v0"]
    assert (terminated, truncated) == (False, False)
    assert type(terminated) is type(truncated) is bool


# --- actions ---


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("start5", [5, 7]),
        ("multi", [[0, 12], [1, 10]]),
        ("skewed", [[7.5, -1.0], [0.5, -0.5]]),
        ("infinite", [[1e6, -1e6], [0, 0]]),
        ("half_infinite", [[1e6, 0], [0, 0]]),
        ("mixed_bounds", [[-1e6, 1e6, 0.5], [0, 0, 0]]),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_environment_sees_the_action_that_was_sent(name, actions, backend):
    """Float64 actions are cast to the space's float32."""
    config = settings("Echo", kwargs={"action": name})
    with make_vector_env(config, backend=backend) as batch:
        batch.reset([0, 1])
        step = batch.step(np.array(actions))
        assert batch.action_space == toys.action_space(name)
    assert_array_equal(step.reached, np.array(actions, dtype=np.float32).reshape(2, -1))


def test_an_environment_that_writes_into_its_action_leaves_the_callers_alone():
    class Writer(toys.Echo):
        def step(self, action):
            action[:] = 0
            return super().step(action)

    gymnasium.register("Writer-v0", entry_point=Writer, kwargs={"action": "skewed"})
    actions = np.ones((2, 2), dtype=np.float32)
    try:
        with make_vector_env(EnvConfig(id="Writer-v0", n_envs=2)) as batch:
            batch.reset([0, 1])
            batch.step(actions)
    finally:
        del gymnasium.registry["Writer-v0"]
    assert_array_equal(actions, np.ones((2, 2)))


@pytest.mark.parametrize("name", ["int_box", "binary"])
def test_other_action_spaces_are_refused(name):
    with pytest.raises(UserError, match=r"action space .* not supported") as error:
        make_env(settings("Cnt", kwargs={"action": name}))
    assert "Cnt-v0" in one_line(error)


# --- time limits ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_limit_of_the_task_is_seen_and_terminates(backend, mode):
    config = settings(
        "Cnt",
        kwargs={"length": 100},
        max_episode_steps=4,
        time_limit="task",
        autoreset=mode,
    )
    with make_vector_env(config, backend=backend) as batch:
        assert batch.time_limit == 4
        assert batch.observation_size == 2
        assert_array_equal(batch.reset([0, 1]), [[0, 1], [0, 1]])
        steps = [batch.step(idle(batch)) for _ in range(5 if mode == "same_step" else 6)]
    assert [step.reached[0].tolist() for step in steps[:4]] == [
        [1, 0.75],
        [2, 0.5],
        [3, 0.25],
        [4, 0],
    ]
    assert [bool(step.terminated[0]) for step in steps[:4]] == [False, False, False, True]
    assert not any(step.truncated.any() for step in steps)
    assert steps[-1].reached[0].tolist() == [101, 0.75]


@pytest.mark.parametrize("kind", ["trunc", "term"])
def test_ends_before_the_limit_of_the_task_keep_their_flags(kind):
    config = settings(
        "Cnt", kwargs={"length": 2, "kind": kind}, max_episode_steps=4, time_limit="task"
    )
    with make_vector_env(config) as batch:
        batch.reset([0, 1])
        batch.step(idle(batch))
        step = batch.step(idle(batch))
    assert_array_equal(step.reached, [[2, 0.5], [2, 0.5]])
    assert_array_equal(step.terminated, 2 * [kind == "term"])
    assert_array_equal(step.truncated, 2 * [kind == "trunc"])


def test_a_limit_of_the_task_may_be_the_registered_one():
    config = settings("CntLimited", kwargs={"length": 100}, time_limit="task")
    with make_vector_env(config) as batch:
        assert batch.time_limit == 5
        batch.reset([0, 1])
        steps = [batch.step(idle(batch)) for _ in range(5)]
    assert steps[4].terminated.all()
    assert not steps[4].truncated.any()
    assert not steps[3].terminated.any()


def test_a_task_without_any_limit_cannot_observe_it():
    with pytest.raises(ConfigError, match=r"env.time_limit.*max_episode_steps") as error:
        make_vector_env(settings("Constant", time_limit="task"))
    one_line(error)


@pytest.mark.parametrize("limit", [3, 8])
def test_an_external_limit_replaces_the_registered_one(limit):
    """A wrapper around the registered limit of 5 would end at 5 when asked for 8."""
    config = settings("CntLimited", kwargs={"length": 100}, max_episode_steps=limit)
    with make_vector_env(config) as batch:
        assert batch.time_limit == limit
        batch.reset([0, 1])
        truncated = [bool(batch.step(idle(batch)).truncated[0]) for _ in range(limit)]
    assert truncated == (limit - 1) * [False] + [True]


def test_the_registered_limit_is_the_default_and_none_is_none():
    for toy, limit in (("CntLimited", 5), ("Constant", None)):
        with make_vector_env(settings(toy)) as batch:
            assert batch.time_limit == limit


# --- what cannot be made ---


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": "HalfCheeta-v5"}, "HalfCheetah-v5"),
        ({"id": "halfcheetah-v5"}, "HalfCheetah-v5"),
        ({"id": "HalfCheetah-v9"}, "HalfCheetah-v5"),
        ({"id": "HalfCheetah"}, "HalfCheetah-v5"),
        ({"id": "Qqqqqq-v0"}, "module:Id-v0"),
        ({"id": "what?"}, "what?"),
        ({"id": "tests.toys:Cmt-v0"}, "Cnt-v0"),
        ({"id": "no_such_module:Cnt-v0"}, "no_such_module"),
        ({"id": "a:b:c"}, "'a:b'"),
        ({"id": "HalfCheetah-v5", "kwargs": {"ctrl_kost": 1}}, "ctrl_kost"),
        ({"id": "HalfCheetah-v5", "kwargs": {"xml_file": "/none.xml"}}, "/none.xml"),
        ({"id": "tests.toys:Unmakeable-v0"}, "no such robot anywhere"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_made_is_said_on_one_line_before_a_worker_starts(fields, said, backend):
    before = children()
    with pytest.raises(ConfigError) as error:
        make_vector_env(EnvConfig(**fields), backend=backend)
    message = one_line(error)
    assert message.startswith("env")
    assert fields["id"] in message or "kwargs" in message
    assert said in message
    assert children() == before


def test_an_id_that_is_out_of_date_is_no_reason_to_warn():
    make_env(EnvConfig(id="HalfCheetah-v4")).close()


def test_settings_are_not_changed_by_the_environment():
    class Greedy(toys.Cnt):
        def __init__(self, parts):
            parts.append("wheel")
            super().__init__()

    gymnasium.register("Greedy-v0", entry_point=Greedy)
    config = EnvConfig(id="Greedy-v0", kwargs={"parts": ["leg"]})
    try:
        make_env(config)
    finally:
        del gymnasium.registry["Greedy-v0"]
    assert config.kwargs == {"parts": ["leg"]}


# --- processes ---


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_a_custom_id_is_known_in_workers(context):
    """Spawned workers have imported nothing."""
    with make_vector_env(settings("Where"), backend="async", context=context) as batch:
        batch.reset([0, 1])
        assert_array_equal(batch.step(idle(batch)).reached, [[0, 0, 1], [1, 0, 1]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("at", [0, 2])
def test_an_exception_inside_an_environment_names_it(backend, at):
    """Its class cannot be pickled, which would leave Gymnasium waiting for it for ever."""
    before = children()
    config = settings("Raising", n_envs=3, kwargs={"at": at, "victim": 11})
    batch = make_vector_env(config, backend=backend)
    where = "step" if at else "reset"
    with pytest.raises(EnvironmentFault) as error:
        run_until_it_fails(batch)
    name = "environment 1 (tests.toys:Raising-v0)"
    assert one_line(error) == f"{name} failed in {where}: UnpicklableError: the leg fell off"
    if backend == "async":  # the traceback of the other process, for --debug
        assert "in observe" in "".join(error.value.__notes__)
    batch.close()
    batch.close()
    assert children() == before


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit", "SystemExit: no message"),
        ("no info", "AttributeError: 'NoneType' object has no attribute 'items'"),
        ("two flags", "ValueError: The truth value of an array"),
        ("four items", "ValueError: not enough values to unpack"),
    ],
)
def test_an_environment_that_breaks_its_contract_is_named(backend, how, said):
    """An environment that calls sys.exit must not end the training as if all were well."""
    with make_vector_env(settings("Unruly", kwargs={"how": how}), backend=backend) as batch:
        batch.reset([0, 1])
        with pytest.raises(EnvironmentFault) as error:
            step_often(batch)
    name = r"environment [01] \(tests.toys:Unruly-v0\)"
    assert re.match(rf"{name} failed in step: {re.escape(said)}", one_line(error))


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_an_info_that_are_no_text_are_passed_over(backend):
    with make_vector_env(settings("Unruly", kwargs={"how": "odd info"}), backend=backend) as batch:
        batch.reset([0, 1])
        terms = [batch.step(idle(batch)).reward_terms for _ in range(2)][-1]
    assert_array_equal(terms["reward_x"], [1.0, 1.0])


def test_an_environment_that_cannot_close_is_a_warning():
    with (
        pytest.warns(UserWarning, match=r"environment \d .* failed in close: OSError: the window"),
        make_vector_env(settings("Unruly", kwargs={"how": "close"})) as batch,
    ):
        batch.reset([0, 1])


def test_a_warning_in_a_worker_is_one_plain_line(capfd):
    config = settings("Reuse", kwargs={"view": False})
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # the workers inherit it
        with make_vector_env(config, backend="async", context="fork") as batch:
            batch.reset([0, 1])
            step_often(batch)
    err = capfd.readouterr().err
    assert err.startswith("warning: environment 0 (tests.toys:Reuse-v0) returns the same obs")
    assert err.count("\n") == 1


def test_a_failure_around_an_environment_in_a_worker_names_it():
    """Gymnasium's worker reports a KeyboardInterrupt, which has no text."""
    with make_vector_env(settings("Cnt"), backend="async") as batch:
        workers = batch._vector
        workers.error_queue.put((1, KeyboardInterrupt, "", "trace"))
        with pytest.raises(EnvironmentFault, match=r"^environment 1 failed: KeyboardInterrupt\b"):
            workers._raise_if_errors([True, False])


def run_until_it_fails(batch: EnvBatch) -> None:
    batch.reset([10, 11, 12])
    step_often(batch)


def test_a_worker_that_kills_itself_is_named():
    before = children()
    config = settings("Doomed", n_envs=3, kwargs={"at": 2, "victim": 11})
    batch = make_vector_env(config, backend="async")
    with pytest.raises(EnvironmentFault, match=r"^environment 1 \(.*died \(SIGKILL\)") as error:
        run_until_it_fails(batch)
    one_line(error)
    assert children() == before
    batch.close()


def test_a_worker_that_is_killed_between_steps_is_named():
    before = children()
    with make_vector_env(settings("Cnt", n_envs=3), backend="async") as batch:
        victim = sorted(set(children()) - set(before))[2]
        os.kill(victim, signal.SIGTERM)  # not the trainer's handler, should it have one
        with pytest.raises(EnvironmentFault, match=r"^environment 2 .*SIGTERM"):
            run_until_it_fails(batch)
    assert children() == before


def test_a_worker_does_not_answer_to_ctrl_c():
    before = children()
    with make_vector_env(settings("Cnt", n_envs=3), backend="async") as batch:
        batch.reset([0, 1, 2])
        for worker in set(children()) - set(before):
            os.kill(worker, signal.SIGINT)
        step_often(batch)


def test_closing_after_a_death_that_nobody_noticed_ends():
    before = children()
    batch = make_vector_env(settings("Cnt", n_envs=3), backend="async")
    os.kill(min(set(children()) - set(before)), signal.SIGKILL)
    batch.close()
    assert children() == before


def test_closing_ends_a_worker_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(workers, "_CLOSE_SECONDS", 0.2)
    before = children()
    batch = make_vector_env(settings("Stuck"), backend="async")
    batch.reset([0, 1])
    batch._vector.step_async(idle(batch))  # as after a Ctrl-C in the middle of a step
    batch.close()
    assert children() == before


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_an_environment_that_cannot_be_made_in_a_worker_is_named(context):
    before = children()
    config = settings("BreaksInWorker", kwargs={"pid": os.getpid()})
    with pytest.raises(EnvironmentFault, match=r"environment \d .*no display here") as error:
        make_vector_env(config, backend="async", context=context)
    one_line(error)
    assert children() == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaving_the_block_closes_and_closing_again_is_nothing(backend):
    before = children()
    with make_vector_env(settings("Cnt"), backend=backend) as batch:
        batch.reset([0, 1])
    batch.close()
    assert children() == before


SCRIPT = """
    import os, signal, sys
    import numpy as np
    from ppo.config import EnvConfig
    from ppo.envs import make_vector_env

    if __name__ == "__main__":
        caught = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: caught.append(number))
        batch = make_vector_env(EnvConfig(id="tests.toys:Cnt-v0", n_envs=3, backend="async"))
        batch.reset([0, 1, 2])
        if sys.argv[1] == "killed":
            print("ready", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        os.killpg(0, signal.SIGINT)
        os.killpg(0, signal.SIGTERM)
        for _ in range(5):
            batch.step(np.zeros(3, dtype=np.int64))
        if sys.argv[1] == "closed":
            batch.close()
        print(len(caught), flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "said", "status"),
    [("killed", "ready\n", -signal.SIGKILL), ("closed", "2\n", 0), ("left open", "2\n", 0)],
)
def test_workers_leave_signals_to_the_trainer_and_do_not_outlive_it(tmp_path, ending, said, status):
    """The pipe that is read here ends only when the last worker has let go of it."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, str(script), ending],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.stdout, done.stderr) == (said, "")
    assert done.returncode == status


# --- MuJoCo's messages ---


@pytest.fixture
def nothing_shown(monkeypatch):
    monkeypatch.setattr(quiet, "_shown", [0] * 8)


NAN_SCRIPT = """
    import warnings
    import numpy as np
    from ppo.config import EnvConfig
    from ppo.envs import make_vector_env

    warnings.simplefilter("ignore")
    for backend in ("sync", "async"):
        with make_vector_env(EnvConfig(id="HalfCheetah-v5", n_envs=2, backend=backend)) as batch:
            for seed in (1, 2):
                batch.reset([seed, seed])
                batch.step(np.full((2, 6), np.nan, dtype=np.float32))
"""


def test_real_warnings_are_shown_once_by_all_processes_and_nothing_is_written(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(NAN_SCRIPT))
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert "Nan, Inf or huge value in CTRL" in lines[0]
    assert done.stdout == ""
    assert list(folder.iterdir()) == []


def test_workers_share_what_was_shown(tmp_path, capfd, nothing_shown):
    with make_vector_env(settings("HalfCheetah-v5"), backend="async") as batch:
        batch.reset([0, 1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch.step(np.full((2, 6), np.nan, dtype=np.float32))
            batch.step(np.full((2, 6), np.nan, dtype=np.float32))
    assert capfd.readouterr().err.count("MuJoCo warning") == 1


def test_one_kind_is_one_text_but_for_its_numbers(capsys, nothing_shown):
    for message in (
        "Nan, Inf or huge value in QACC at DOF 3. The simulation is unstable. Time = 0.1000.",
        "Nan, Inf or huge value in QACC at DOF 0. The simulation is unstable. Time = 1.5e-05.",
        "compiler attribute 'settotalmass' is deprecated and will be removed",
        "Too many contacts. Either the arena memory is full, or nconmax is too small.",
    ):
        quiet._on_warning(message)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "QACC at DOF 3" in lines[0]
    assert "Too many contacts" in lines[1]


def test_a_task_without_mujoco_does_not_load_it():
    code = """
        import sys
        from ppo.config import EnvConfig
        from ppo.envs import make_env
        make_env(EnvConfig(id="CartPole-v1"))
        print("mujoco" in sys.modules, "torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.split() == ["False", "False"]
