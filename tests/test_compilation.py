import pytest
import torch
from gymnasium import spaces

from ppo import compilation
from ppo.compilation import WORTHWHILE_GRADIENT_STEPS, CompiledEpoch, choose
from ppo.native.build import BuildError
from ppo.parameters import flatten_parameters
from ppo.update import make_step, one_by_one
from tests.test_update import batch_for, coefficients, hyper, networks_for, run

CPU, BOX = torch.device("cpu"), spaces.Box(-1.0, 1.0, (2,))


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
    monkeypatch.setattr(compilation, "cpp_compiler", lambda: "/usr/bin/g++")
    choice = choose("auto", gradient_steps=steps, device=CPU)
    assert choice.compiled == compiled
    assert f"{steps:,} gradient steps" in choice.reason


def test_auto_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(compilation, "cpp_compiler", lambda: None)
    choice = choose("auto", gradient_steps=10**9, device=CPU)
    assert not choice.compiled
    assert choice.reason == "no C++ compiler found"


@pytest.mark.parametrize("setting", ["auto", "on"])
def test_another_device_steps_eagerly(setting):
    choice = choose(setting, gradient_steps=10**9, device=torch.device("cuda"))
    assert not choice.compiled
    assert choice.reason == "compiled steps are for the CPU"


def eager_epoch():
    return one_by_one(make_step(networks_for(BOX), hyper()), batch_size=hyper().batch_size)


def updated(epoch):
    networks = networks_for(BOX)
    batch = batch_for(networks, 19)
    _, metrics = run(networks, batch, hyper(), coefficients(networks), epoch=epoch)
    return flatten_parameters(networks), metrics


def test_the_function_is_built_once_and_at_its_first_use():
    eager = eager_epoch()
    built = []

    def build():
        built.append(True)
        return eager

    epoch = CompiledEpoch(build, eager)
    assert (built, epoch.seconds_compiling) == ([], 0.0)
    updated(epoch)
    assert built == [True]
    assert epoch.seconds_compiling > 0.0


def test_a_failed_compilation_costs_one_warning_and_no_number():
    eager = eager_epoch()
    tried = []

    def build():
        tried.append(True)
        raise BuildError("g++ failed: no such header")

    with pytest.warns(RuntimeWarning, match="failed; going on without .g.. failed: no") as caught:
        parameters, metrics = updated(CompiledEpoch(build, eager))
    assert len(caught) == len(tried) == 1
    expected, expected_metrics = updated(eager)
    assert torch.equal(parameters, expected)
    assert metrics == expected_metrics


def test_ctrl_c_while_compiling_is_no_failure_of_the_compiler():
    def build():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        updated(
            CompiledEpoch(
                build,
                eager_epoch(),
            )
        )
