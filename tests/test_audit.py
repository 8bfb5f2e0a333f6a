"""`ppo check-env`: every broken environment is found, and for nothing else."""

import json

import numpy as np
import pytest

from ppo.diagnose.audit import audit, settings_of
from ppo.diagnose.audit_rules import lost_share
from tests.runs import command

# Environment, kind of finding, its subject, and words of what was seen.
BROKEN = [
    ("Endless", "fault", "ends", "no episode ended in 400 env steps, and there is no time limit"),
    ("IntFlags", "fault", "flags", "terminated or truncated is of type int"),
    ("SelfResetting", "fault", "last observation", "is the first one of the next"),
    ("Reusing", "fault", "observation buffer", "changed when the environment went on"),
    ("IntReward", "fault", "reward", "the reward is of type int"),
    ("ArrayReward", "fault", "reward", "the reward is an array of shape (1,)"),
    ("NanReward", "fault", "reward", "rewards are not finite"),
    ("Doubles", "fault", "observation dtype", "observations are float64, but the space says"),
    ("Outside", "fault", "observation range", "outside of their space, in entries [1]"),
    ("Unseeded", "fault", "seeds", "gave something else the second time"),
    ("Fragile", "fault", "extreme actions", "the lowest actions give observations or rewards"),
    ("RaisingAtTheEdge", "fault", "extreme actions", "raised ValueError: too strong"),
    ("SharedState", "fault", "last observation", "are not those that the environment returned"),
    ("Raising", "fault", "failure", "raised RuntimeError: the motor is broken"),
    ("BothFlags", "note", "both flags", "ended with terminated and truncated at once"),
    ("Unbounded", "note", "action bounds", "1 of 1 entries of an action have no bound"),
    ("FarBounds", "note", "action bounds", "bounds are 0 to 10"),
    ("OneStart", "note", "seeds", "two seeds gave the same observations and rewards"),
]
# What else these are, unavoidably.
ALSO = {
    # The comparison of last observations would need episodes that can be repeated.
    "Unseeded": {"last observation"},
    # In one process every copy moves the others; in processes of their own none does.
    "SharedState": {"last observation"},
    # A reward that is not finite is so at the bounds, too.
    "NanReward": {"extreme actions"},
}


def audited(name, **settings):
    settings = {"gamma": 0.9, "steps": 400, "seed": 0} | settings
    env_id = name if "-v" in name else f"tests.broken_toys:broken/{name}-v0"
    return audit(settings_of(env_id, []), **settings)


def test_a_clean_environment_has_no_faults():
    result = audited("Clean")
    assert result.findings == [
        finding for finding in result.findings if finding.subject == "time limit"
    ]
    assert result.faults == []
    assert result.facts["terminated"] > 0


@pytest.mark.parametrize(("name", "kind", "subject", "words"), BROKEN, ids=str)
def test_a_broken_environment_is_found_and_for_nothing_else(name, kind, subject, words):
    result = audited(name)
    found = [f for f in result.findings if f.kind == kind and f.subject == subject]
    assert found, [(f.subject, f.seen) for f in result.findings]
    assert words in found[0].seen
    assert found[0].harm
    assert found[0].advice
    others = {f.subject for f in result.faults} - {subject} - ALSO.get(name, set())
    assert others == set()


@pytest.mark.parametrize("name", ["NoReward", "WrongShape", "NanObservation"])
def test_what_training_would_refuse_is_a_fault(name):
    assert audited(name).faults


def test_the_twin_that_stays_in_its_bounds_has_no_faults():
    assert audited("Inside").faults == []


def test_a_limit_of_its_own_is_noted():
    assert "without a limit that Gymnasium knows of" not in str(audited("OwnLimit").findings)
    result = audited("OwnLimit")
    (note,) = [f for f in result.notes if f.subject == "time limit"]
    assert "cut off after 5 env steps; at gamma 0.9 that is 74% of V" in note.seen


@pytest.mark.parametrize(("length", "gamma"), [(1, 0.9), (50, 0.99), (1000, 0.99), (7, 0.5)])
def test_the_share_of_v_that_a_wrong_bootstrap_loses(length, gamma):
    """A constant reward of 1: V is 1 / (1 - gamma) everywhere, and what is learned is less."""
    endless = 1 / (1 - gamma)
    cut_off = [sum(gamma**k for k in range(length - t)) for t in range(length)]
    expected = np.mean([1 - value / endless for value in cut_off])
    assert lost_share(length, gamma) == pytest.approx(expected, rel=1e-9)
    assert lost_share(length, 1.0) == 1.0


@pytest.mark.parametrize(
    ("env_id", "limit", "notes"),
    [
        ("HalfCheetah-v5", 1000, {"ends"}),
        ("Hopper-v5", 1000, set()),
        ("Reacher-v5", 50, {"ends"}),
        ("Pendulum-v1", 200, {"ends"}),
        ("CartPole-v1", 500, {"time limit"}),
    ],
)
def test_gymnasiums_own_tasks(env_id, limit, notes):
    result = audited(env_id, gamma=0.99, steps=1500)
    assert result.faults == []
    assert {finding.subject for finding in result.notes} == notes
    assert result.facts["time limit"] == limit


def test_the_exit_status_is_0_only_without_faults():
    clean = command("check-env", "tests.broken_toys:broken/Clean-v0", "--steps", "200")
    assert clean.status == 0, clean.err
    assert "faults: none" in clean.out
    broken = command("check-env", "tests.broken_toys:broken/Reusing-v0", "--steps", "200")
    assert broken.status == 1
    assert "faults: 1" in broken.out
    assert "observation buffer: an observation that was returned changed" in broken.out


def test_the_record_for_programs():
    done = command("check-env", "tests.broken_toys:broken/IntReward-v0", "--steps", "200", "--json")
    assert done.status == 1
    record = json.loads(done.out)
    assert record["env_id"] == "tests.broken_toys:broken/IntReward-v0"
    (fault,) = record["faults"]
    assert fault.keys() == {"kind", "subject", "seen", "harm", "advice"}
    assert record["facts"]["env steps played"] == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["HalfCheeta-v5"], "did you mean 'HalfCheetah-v5'"),
        (["no.such.module:Task-v0"], "cannot import 'no.such.module'"),
        (["CartPole-v1", "--ppo.gamma", "0.9"], "--ppo.gamma: an audit takes keys of the env part"),
        (["CartPole-v1", "--env.kwargs.nonsense", "1"], "cannot make CartPole-v1"),
        (["CartPole-v1", "--steps", "1"], "--steps"),
        (["CartPole-v1", "--gamma", "1.5"], "--gamma"),
        ([], "exactly one ID is needed"),
    ],
)
def test_bad_input_is_told_in_a_line(arguments, message):
    done = command("check-env", *arguments)
    assert done.status not in (0, None)
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_the_env_part_of_a_config_can_be_given():
    done = command(
        *("check-env", "Hopper-v5", "--env.max_episode_steps", "5", "--steps", "100"),
        *("--env.kwargs.terminate_when_unhealthy", "false", "--json"),
    )
    assert done.status == 0, done.out
    facts = json.loads(done.out)["facts"]
    assert facts["time limit"] == 5
    assert facts["terminated"] == 0
