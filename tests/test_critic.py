"""The verdict on the critic, and what its gate does about a poor one."""

import json
import math
from pathlib import Path

import pytest

from ppo.config_models import CriticConfig
from ppo.critic import CriticWatch, Reading, judge

RECORDED = json.loads((Path(__file__).parent / "data" / "critic_readings.json").read_text())


def readings(explained, weight=0.2, n=20):
    return [Reading(explained, weight)] * n


@pytest.mark.parametrize("name", RECORDED)
def test_verdicts_on_recorded_runs(name):
    recorded = RECORDED[name]
    verdict = judge([Reading(*row) for row in recorded["readings"]])
    assert verdict.kind == recorded["verdict"]
    assert verdict.explained_variance == pytest.approx(recorded["median"], abs=5e-3)
    assert verdict.kind in verdict.describe()
    assert recorded["says"] in verdict.describe()


def test_every_verdict_is_among_the_recorded_runs():
    verdicts = {recorded["verdict"] for recorded in RECORDED.values()}
    assert verdicts == {"healthy", "weak", "sick", "cannot tell"}


@pytest.mark.parametrize(
    ("explained", "kind"),
    [
        (1.0, "healthy"),
        (0.51, "healthy"),
        (0.5, "weak"),
        (0.3, "weak"),
        (0.29, "sick"),
        (-3.0, "sick"),
    ],
)
def test_the_thresholds(explained, kind):
    assert judge(readings(explained)).kind == kind


def test_the_median_of_the_last_twenty_iterations_counts():
    old, half = readings(-5.0, n=50), [*readings(0.1, n=9), *readings(0.9, n=11)]
    verdict = judge([*old, *half])
    assert (verdict.explained_variance, verdict.iterations) == (0.9, 20)
    outlier = judge([*readings(0.6, n=19), Reading(-1e6, 0.2)])
    assert outlier.kind == "healthy"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "0 iterations are too few"),
        (readings(0.9, n=4), "4 iterations are too few"),
        (readings(0.9, weight=0.51), "51% of the lambda = 1 returns' weight"),
        (readings(math.nan), "no spread"),
        ([*readings(math.nan, n=11), *readings(0.9, n=9)], "no spread"),
    ],
)
def test_it_says_when_it_cannot_tell(given, reason):
    verdict = judge(given)
    assert verdict.kind == "cannot tell"
    assert reason in verdict.describe()


def test_a_few_rollouts_without_spread_do_not_matter():
    assert judge([*readings(0.9, n=15), *readings(math.nan, n=5)]).kind == "healthy"
    assert judge(readings(0.9, weight=0.5)).kind == "healthy"


def watch(explained, n=20, weight=0.2):
    seen = CriticWatch()
    seen.readings.extend(readings(explained, weight, n))
    return seen


def decide(seen, gate="warn", *, iterations=50, done=0.5, **settings):
    return seen.decide(CriticConfig(gate=gate, **settings), iterations=iterations, done=done)


@pytest.mark.parametrize("gate", ["off", "warn", "value_epochs", "hold_policy"])
def test_no_gate_acts_on_a_good_critic(gate):
    decision = decide(watch(0.3), gate)
    assert (decision.policy_learns, decision.extra_value_epochs) == (True, 0)
    assert decision.message is None


@pytest.mark.parametrize("gate", ["off", "warn", "value_epochs", "hold_policy"])
@pytest.mark.parametrize(
    "unknown", [{"done": 0.099}, {"n": 4}, {"weight": 0.6}, {"explained": math.nan}], ids=str
)
def test_no_gate_acts_before_it_can_tell(gate, unknown):
    known = {"explained": -1.0, "done": 0.5} | unknown
    done = known.pop("done")
    decision = decide(watch(**known), gate, done=done)
    assert (decision.policy_learns, decision.extra_value_epochs) == (True, 0)
    assert decision.message is None


def test_off_says_nothing_and_warn_says_it_once():
    assert decide(watch(0.1), "off").message is None
    seen = watch(0.1)
    first, second = decide(seen), decide(seen)
    assert "explains 0.10 of the variance" in first.message
    assert "min_explained_variance 0.3" in first.message
    assert "bootstrap first" in first.message
    assert second.message is None
    assert first.policy_learns
    assert second.policy_learns


def test_value_epochs_go_on_until_the_critic_is_better():
    seen = watch(0.1)
    decisions = [decide(seen, "value_epochs", extra_value_epochs=7) for _ in range(3)]
    assert [d.extra_value_epochs for d in decisions] == [7, 7, 7]
    assert all(d.policy_learns for d in decisions)
    assert "7 more value epochs" in decisions[0].message
    seen.readings.extend(readings(0.9))
    assert decide(seen, "value_epochs").extra_value_epochs == 0


def test_the_policy_is_held_for_so_many_iterations_at_most():
    seen = watch(0.1)
    decisions = [decide(seen, "hold_policy", max_held_iterations=3) for _ in range(6)]
    assert [d.policy_learns for d in decisions] == [False] * 3 + [True] * 3
    assert "for 3 iterations at most" in decisions[0].message
    assert "was held for 3 iterations" in decisions[3].message
    assert [d.message is None for d in decisions] == [False, True, True, False, True, True]


def test_a_critic_that_recovered_can_be_held_for_again():
    seen = watch(0.1)
    for _ in range(3):
        decide(seen, "hold_policy", max_held_iterations=2)
    seen.readings.extend(readings(0.9))
    assert decide(seen, "hold_policy", max_held_iterations=2).policy_learns
    seen.readings.extend(readings(0.1))
    held = [decide(seen, "hold_policy", max_held_iterations=2).policy_learns for _ in range(3)]
    assert held == [False, False, True]


def test_warm_up_comes_before_every_gate():
    for gate in ("off", "warn", "value_epochs", "hold_policy"):
        settings = {"warmup_iterations": 3, "iterations": 2, "done": 0.0}
        assert not decide(watch(0.9), gate, **settings).policy_learns
        assert decide(watch(0.9), gate, **settings | {"iterations": 3}).policy_learns


@pytest.mark.parametrize("done", [1, 3])
def test_the_state_survives(done):
    seen = watch(0.1)
    for _ in range(done):
        decide(seen, "hold_policy", max_held_iterations=2)
    again = CriticWatch.from_state(**json.loads(json.dumps(seen.state())))
    assert again == seen
    assert again.readings.maxlen == seen.readings.maxlen
    ours, theirs = (decide(one, "hold_policy", max_held_iterations=2) for one in (again, seen))
    assert ours == theirs
