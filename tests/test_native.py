"""The native minibatch step against the Python function that defines it."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ppo.agent import ActorCritic
from ppo.distributions import LOG_STD_MAX, LOG_STD_MIN, make_head
from ppo.native import build
from ppo.native.build import BuildError, cache_folder, load_library
from ppo.native.step import NativeEpoch
from ppo.parameters import critic_mask, flatten_parameters
from ppo.update import Learner, OptimizerState, make_step, one_by_one
from tests.test_update import D, batch_for, coefficients, hyper, run

BOX = spaces.Box(-1.0, 1.0, (2,))
WIDE = spaces.Box(-1.0, 1.0, (19,))
FOUR = spaces.Discrete(4)
CHOICES = spaces.MultiDiscrete([2, 3, 18])


def networks_for(space, *, hidden=(8,), activation="tanh", seed=0, log_std=-0.3):
    networks = ActorCritic(
        D,
        make_head(space),
        hidden_sizes=hidden,
        activation=activation,
        log_std_init=log_std,
        generator=torch.Generator().manual_seed(seed),
    )
    # Away from the initialisation, whose outputs are all but zero.
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator()))
    return networks


def learner_of(networks, *, steps=0, active=True):
    flat = flatten_parameters(networks)
    generator = torch.Generator().manual_seed(5)
    moments = OptimizerState(
        0.01 * torch.randn(flat.shape, generator=generator) * (steps > 0),
        1e-4 * torch.rand(flat.shape, generator=generator) * (steps > 0),
        torch.full(flat.shape, float(steps)),
    )
    return Learner(flat, moments, torch.tensor(active))


def in_order(batch):
    return torch.arange(batch.size)


def both(networks, settings, batch, coefs, *, learner=None, order=None):
    """(changed learner, metrics) of the definition and of the native function."""
    order = in_order(batch) if order is None else order
    learner = learner or learner_of(networks)
    before = [tensor.clone() for tensor in (learner.parameters, *learner.optimizer)]
    results = [
        epoch(learner, batch, order, coefs)
        for epoch in (
            one_by_one(make_step(networks, settings), batch_size=settings.batch_size),
            NativeEpoch(networks, settings),
        )
    ]
    after = (learner.parameters, *learner.optimizer)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))  # it is pure
    return results


def check_equal(results, *, rtol=1e-4, atol=1e-6):
    (expected, expected_metrics), (found, found_metrics) = results
    pairs = [
        (found.parameters, expected.parameters),
        *zip(found.optimizer, expected.optimizer, strict=True),
        *zip(found_metrics, expected_metrics, strict=True),
    ]
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    assert torch.equal(found.active, expected.active)


SETTINGS = [
    {},
    {"clip_range_vf": 0.2, "normalize_advantage": "none"},
    {"normalize_advantage": "rollout", "max_grad_norm": 1e9, "vf_coef": 0.1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("space", [BOX, WIDE, FOUR, CHOICES], ids=str)
def test_several_steps_end_where_those_of_the_definition_end(space, settings):
    networks, settings = networks_for(space), hyper(batch_size=37, **settings)
    batch = batch_for(networks, 4 * 37)
    coefs = coefficients(networks, actor=3e-3, critic=1e-3, ent_coef=0.01)
    check_equal(both(networks, settings, batch, coefs))


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
@pytest.mark.parametrize("hidden", [(), (5,), (16, 64), (33, 7, 20)], ids=str)
def test_every_shape_of_network(hidden, activation):
    networks = networks_for(BOX, hidden=hidden, activation=activation)
    batch = batch_for(networks, 64)
    check_equal(both(networks, hyper(batch_size=16), batch, coefficients(networks)))


def test_it_goes_on_from_the_moments_of_earlier_steps():
    networks = networks_for(BOX)
    batch = batch_for(networks, 64)
    learner = learner_of(networks, steps=1_000)
    results = both(networks, hyper(batch_size=16), batch, coefficients(networks), learner=learner)
    check_equal(results)
    assert (results[1][0].optimizer.step == 1_004).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13])
def test_a_smaller_minibatch_needs_no_other_function(rows):
    networks = networks_for(BOX)
    batch = batch_for(networks, 16 + rows)
    results = both(networks, hyper(batch_size=16), batch, coefficients(networks))
    check_equal(results)
    assert results[1][1].applied.all()


def test_advantages_without_spread_move_no_policy():
    networks = networks_for(BOX)
    batch = batch_for(networks, 16)._replace(advantages=torch.full((16,), 0.1))
    results = both(networks, hyper(batch_size=16, vf_coef=0.0), batch, coefficients(networks))
    check_equal(results)
    assert results[1][1].policy_loss == 0.0


def test_the_kl_stop_comes_before_the_step_that_goes_too_far_and_ends_the_rest():
    networks = networks_for(BOX)
    batch = batch_for(networks, 160)
    coefs = coefficients(networks, actor=3e-2)
    free = both(networks, hyper(batch_size=16), batch, coefs)
    target_kl = 1.01 * float(free[0][1].approx_kl[:3].max()) / 1.5
    results = both(networks, hyper(batch_size=16, target_kl=target_kl), batch, coefs)
    check_equal(results)
    (_, expected), (learner, metrics) = results
    assert metrics.applied.tolist() == expected.applied.tolist()
    assert metrics.evaluated.tolist() == expected.evaluated.tolist()
    assert 3 <= metrics.applied.sum() < len(metrics.applied)
    assert not learner.active


@pytest.mark.parametrize("settings", [*SETTINGS, {"target_kl": 0.03}], ids=str)
@pytest.mark.parametrize("space", [BOX, CHOICES], ids=str)
def test_a_thread_for_each_network_changes_no_bit(space, settings):
    networks = networks_for(space, hidden=(33, 16))
    settings = hyper(batch_size=17, **settings)
    batch = batch_for(networks, 40 * 17 + 5)
    coefs = coefficients(networks, actor=3e-3, critic=1e-3, ent_coef=0.01)
    alone, together = (
        NativeEpoch(networks, settings, n_threads=n)(
            learner_of(networks), batch, in_order(batch), coefs
        )
        for n in (1, 2)
    )
    for one, two in zip(
        [alone[0].parameters, *alone[0].optimizer, alone[0].active, *alone[1]],
        [together[0].parameters, *together[0].optimizer, together[0].active, *together[1]],
        strict=True,
    ):
        assert torch.equal(one, two)
    assert alone[1].applied[:5].all()


def test_nothing_is_applied_after_a_stop():
    networks = networks_for(BOX)
    learner = learner_of(networks, active=False)
    batch = batch_for(networks, 32)
    results = both(networks, hyper(batch_size=16), batch, coefficients(networks), learner=learner)
    check_equal(results)
    assert torch.equal(results[1][0].parameters, learner.parameters)


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("log_probs", np.nan),  # an infinite one gives a ratio that is clipped
        *itertools.product(("observations", "advantages", "returns"), (np.nan, np.inf, -np.inf)),
    ],
)
def test_a_loss_that_is_no_number_changes_nothing(quantity, number):
    networks = networks_for(BOX)
    batch = batch_for(networks, 32)
    getattr(batch, quantity)[20] = number
    results = both(networks, hyper(batch_size=16), batch, coefficients(networks))
    (expected, expected_metrics), (found, metrics) = results
    assert metrics.applied.tolist() == expected_metrics.applied.tolist() == [True, False]
    torch.testing.assert_close(found.parameters, expected.parameters)
    assert not torch.isfinite(torch.stack([metrics.loss[1], metrics.grad_norm[1]])).all()


@pytest.mark.parametrize(("bound", "sign"), [(LOG_STD_MIN, -1.0), (LOG_STD_MAX, 1.0)])
def test_the_standard_deviation_stays_within_its_bounds(bound, sign):
    networks = networks_for(BOX)
    with torch.no_grad():
        networks.log_std.fill_(bound)
    batch = batch_for(networks, 64)
    coefs = coefficients(networks, actor=0.1, ent_coef=sign * 100.0)
    results = both(networks, hyper(batch_size=16), batch, coefs)
    check_equal(results, rtol=1e-3, atol=1e-4)
    assert torch.equal(results[1][0].parameters[:2], torch.full((2,), bound))


@pytest.mark.parametrize("space", [BOX, FOUR], ids=str)
def test_a_whole_update_has_the_metrics_of_the_definition(space):
    settings = hyper(batch_size=8, n_epochs=4, target_kl=1.0)
    results = []
    for native in (False, True):
        networks = networks_for(space)
        epoch = NativeEpoch(networks, settings) if native else None
        _, metrics = run(
            networks, batch_for(networks, 37), settings, coefficients(networks), epoch=epoch
        )
        results.append((flatten_parameters(networks), metrics))
    (eager, eager_metrics), (native, native_metrics) = results
    torch.testing.assert_close(native, eager, rtol=1e-4, atol=1e-6)
    for name, value in vars(eager_metrics).items():
        found = getattr(native_metrics, name)
        assert found == (value if value is None else pytest.approx(value, rel=1e-4, abs=1e-6))


def test_rows_that_are_not_contiguous_are_refused():
    networks = networks_for(BOX)
    batch = batch_for(networks, 32)
    odd = type(batch)(*(tensor[::2] for tensor in batch))
    with pytest.raises(ValueError, match="contiguous"):
        NativeEpoch(networks, hyper(batch_size=16))(
            learner_of(networks), odd, in_order(odd), coefficients(networks)
        )


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ([0, 32], "rows 0 to 32 for 32 rows"),
        ([-1, 3], "rows -1 to 3 for 32 rows"),
        ([], "one row's index or more"),
        ([0.0], "in int64"),
    ],
)
def test_an_order_of_other_rows_is_refused(order, why):
    networks = networks_for(BOX)
    order = torch.tensor(order) if order else torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match=why):
        NativeEpoch(networks, hyper(batch_size=16))(
            learner_of(networks), batch_for(networks, 32), order, coefficients(networks)
        )


def test_rows_come_in_the_order_given():
    networks, settings = networks_for(CHOICES), hyper(batch_size=7)
    batch, generator = batch_for(networks, 50), torch.Generator().manual_seed(3)
    order = torch.randperm(50, generator=generator)
    shuffled = both(networks, settings, batch, coefficients(networks), order=order)
    check_equal(shuffled)
    sorted_before = both(networks, settings, batch.rows(order), coefficients(networks))
    assert torch.equal(shuffled[1][0].parameters, sorted_before[1][0].parameters)


# --- building ---


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ppo"


def native(space=BOX):
    return NativeEpoch(networks_for(space), hyper(batch_size=16))


@pytest.mark.usefixtures("empty_cache")
def test_a_second_start_runs_no_compiler(monkeypatch):
    native()
    monkeypatch.setattr(build, "_run", lambda command: pytest.fail(f"ran {command}"))
    native()


def test_what_is_built_lies_in_a_folder_of_the_users_own(empty_cache):
    native()
    (library,) = empty_cache.iterdir()
    assert library.suffix == ".so"
    assert empty_cache.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("empty_cache")
def test_several_processes_may_build_at_once():
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: native(), range(3)))


@pytest.mark.usefixtures("empty_cache")
def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found; install"):
        native()


def test_the_compiler_may_be_named_by_cxx(monkeypatch):
    monkeypatch.setenv("CXX", sys.executable)
    assert build.cpp_compiler() == sys.executable


def test_a_compiler_that_fails_leaves_one_line_and_no_file(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="false failed") as caught:
        native()
    assert "\n" not in str(caught.value)
    assert list(empty_cache.iterdir()) == []


def test_a_library_that_cannot_be_loaded_is_a_failure_to_build(empty_cache):
    native()
    (library,) = empty_cache.iterdir()
    library.write_text("no library")
    with pytest.raises(BuildError, match=r"ELF|too short|mach-o"):
        load_library_again(library)


def load_library_again(library):
    # Under another name: the loader knows the first one already.
    library.rename(library.with_stem("other"))
    original = build._key
    try:
        build._key = lambda *_: "other"
        native()
    finally:
        build._key = original


def test_a_cache_that_others_may_write_to_is_not_used(empty_cache):
    empty_cache.mkdir()
    empty_cache.chmod(0o777)
    with pytest.raises(BuildError, match="nobody else may write to it"):
        cache_folder()


def test_a_cache_that_cannot_be_made_is_a_failure_to_build(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="file"):
        load_library({})


@pytest.mark.parametrize("change", [{"PPO_BETA1": "0.8"}, {"PPO_ACTOR": "3,8,3"}])
def test_another_definition_is_another_library(change):
    definitions = {"PPO_ACTOR": "3,8,2", "PPO_BETA1": "0.9"}
    compiler = sys.executable
    assert build._key(compiler, definitions) != build._key(compiler, definitions | change)


def test_loading_it_leaves_the_rounding_of_the_process_alone():
    """Code linked with -ffast-math would flush the smallest numbers of the process to zero."""
    program = (
        "import numpy as np\n"
        "from tests.test_native import native\n"
        "native()\n"
        "print(np.float64(2.0) ** -1060 * np.float64(0.5) > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"]


def test_the_networks_of_several_runs_do_not_meet():
    """One library serves all runs of a shape in a process."""
    networks = [networks_for(BOX, seed=seed) for seed in (1, 2)]
    settings = hyper(batch_size=16)
    epochs = [NativeEpoch(network, settings) for network in networks]
    batches = [batch_for(network, 32) for network in networks]
    learners = [learner_of(network) for network in networks]
    for turn, which in itertools.product(range(2), (0, 1)):
        learners[which], _ = epochs[which](
            learners[which],
            batches[which],
            torch.arange(16 * turn, 16 * turn + 16),
            coefficients(networks[which]),
        )
    for network, batch, learner in zip(networks, batches, learners, strict=True):
        alone, _ = NativeEpoch(network, settings)(
            learner_of(network), batch, in_order(batch), coefficients(network)
        )
        assert torch.equal(alone.parameters, learner.parameters)


@pytest.mark.parametrize("space", [BOX, FOUR], ids=str)
@pytest.mark.parametrize("target_kl", [None, 1e-9])
def test_value_updates_only(space, target_kl):
    networks = networks_for(space)
    settings = hyper(batch_size=16, target_kl=target_kl, max_grad_norm=0.05)
    batch = batch_for(networks, 70)
    coefs = coefficients(networks, policy_learns=False)
    learner = learner_of(networks, steps=50)
    results = both(networks, settings, batch, coefs, learner=learner)
    check_equal(results)
    policy = ~critic_mask(networks)
    for learned, _ in results:
        assert torch.equal(learned.parameters[policy], learner.parameters[policy])
        for before, after in zip(learner.optimizer, learned.optimizer, strict=True):
            assert torch.equal(before[policy], after[policy])
        assert (learned.optimizer.step[~policy] == 55.0).all()
    threaded = NativeEpoch(networks, settings, n_threads=2)(learner, batch, in_order(batch), coefs)
    for one, two in zip(results[1][0].optimizer, threaded[0].optimizer, strict=True):
        assert torch.equal(one, two)
    assert torch.equal(results[1][0].parameters, threaded[0].parameters)
