import warnings

import pytest
import torch
from gymnasium import spaces

from ppo import compilation
from ppo.compilation import WORTHWHILE_GRADIENT_STEPS, CompiledEpoch, choose
from ppo.parameters import flatten_parameters
from ppo.update import make_step
from tests.test_update import batch_for, coefficients, hyper, networks_for, run

CPU, BOX, FOUR = torch.device("cpu"), spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(4)


@pytest.mark.parametrize(("setting", "compiled"), [("on", True), ("off", False)])
@pytest.mark.parametrize("steps", [1, 10**9])
def test_a_setting_is_obeyed(setting, compiled, steps):
    choice = choose(setting, gradient_steps=steps, device=CPU)
    assert choice.compiled == compiled
    assert choice.reason == f"compile: {setting}"


@pytest.mark.parametrize(
    ("steps", "compiled"),
    [(WORTHWHILE_GRADIENT_STEPS - 1, False), (WORTHWHILE_GRADIENT_STEPS, True)],
)
def test_auto_compiles_where_the_time_comes_back(steps, compiled, monkeypatch):
    monkeypatch.setattr(compilation.shutil, "which", lambda name: f"/usr/bin/{name}")
    choice = choose("auto", gradient_steps=steps, device=CPU)
    assert choice.compiled == compiled
    assert f"{steps:,} gradient steps" in choice.reason


def test_auto_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
    choice = choose("auto", gradient_steps=10**9, device=CPU)
    assert not choice.compiled
    assert choice.reason == "no C++ compiler found"


def test_the_compiler_may_be_named_by_cxx(monkeypatch):
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(
        compilation.shutil, "which", lambda name: name if name == "my-compiler" else None
    )
    assert choose("auto", gradient_steps=10**9, device=CPU).compiled


class FakeCompiler:
    """Stands for torch.compile: counts the calls of what it made, and fails where it is told to."""

    def __init__(self, error=None):
        self.error, self.sizes = error, []

    def __call__(self, epoch, **options):
        def compiled(learner, minibatches, coefs):
            self.sizes.append([minibatch.size for minibatch in minibatches])
            if self.error is not None:
                raise self.error
            return epoch(learner, minibatches, coefs)

        return compiled


def eager_result(size):
    networks = networks_for(BOX)
    _, metrics = run(networks, batch_for(networks, size), hyper(), coefficients(networks))
    return flatten_parameters(networks), metrics


def stepped(size, n_minibatches):
    networks = networks_for(BOX)
    epoch = CompiledEpoch(make_step(networks, hyper()), batch_size=8, n_minibatches=n_minibatches)
    batch, coefs = batch_for(networks, size), coefficients(networks)
    _, metrics = run(networks, batch, hyper(), coefs, epoch=epoch)
    return flatten_parameters(networks), metrics


@pytest.mark.parametrize(
    ("size", "n_minibatches", "compiled"),
    [
        (19, 2, [[8, 8]]),  # and 3 rows eagerly
        (40, 5, [[8]] * 5),  # no group divides five
        (64, 8, [[8, 8, 8, 8]] * 2),
        (44, 8, [[8, 8, 8, 8]]),  # a short rollout: 8 and 4 rows eagerly
        (7, 2, []),
    ],
)
def test_what_fills_no_group_goes_through_the_eager_function(
    size, n_minibatches, compiled, monkeypatch
):
    compiler = FakeCompiler()
    monkeypatch.setattr(torch, "compile", compiler)
    parameters, metrics = stepped(size, n_minibatches)
    assert compiler.sizes == compiled * hyper().n_epochs
    expected, expected_metrics = eager_result(size)
    assert torch.equal(parameters, expected)
    assert metrics == expected_metrics


@pytest.mark.parametrize(
    "error", [RuntimeError("no such header\nlong story"), ImportError(), ValueError("%s")]
)
def test_a_failed_compilation_costs_one_warning_and_no_number(error, monkeypatch):
    compiler = FakeCompiler(error)
    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.warns(RuntimeWarning, match="compiling the update failed; going on") as caught:
        parameters, metrics = stepped(19, 2)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert type(error).__name__ in message
    assert "\n" not in message
    assert compiler.sizes == [[8, 8]]  # it is not tried again
    expected, expected_metrics = eager_result(19)
    assert torch.equal(parameters, expected)
    assert metrics == expected_metrics


def test_ctrl_c_while_compiling_is_no_failure_of_the_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", FakeCompiler(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        stepped(8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("space", [BOX, FOUR], ids=["box", "discrete"])
def test_the_compiled_step_is_the_eager_one(space):
    settings = hyper(target_kl=1.0, clip_range_vf=0.2, n_epochs=4)
    results = []
    for compiled in (False, True):
        networks = networks_for(space)
        step = make_step(networks, settings)
        epoch = CompiledEpoch(step, batch_size=8, n_minibatches=4) if compiled else None
        batch = batch_for(networks, 37)
        coefs = coefficients(networks, actor=3e-3, ent_coef=0.01)
        with warnings.catch_warnings():
            # The compiler warns of its own affairs; that it failed stays an error.
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="compiling the update failed")
            _, metrics = run(networks, batch, settings, coefs, step=step, epoch=epoch)
        results.append((flatten_parameters(networks), metrics))
    (eager, eager_metrics), (compiled, compiled_metrics) = results
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert compiled_metrics.n_updates == eager_metrics.n_updates == 20
    assert compiled_metrics.loss == pytest.approx(eager_metrics.loss, rel=1e-3)
    assert compiled_metrics.grad_norm == pytest.approx(eager_metrics.grad_norm, rel=1e-3)
