import json

import numpy as np
import pytest

from ppo.envs import EnvStep
from ppo.episodes import Episode
from ppo.statistics import EPISODE_WINDOW, EpisodeAccumulators, EpisodeSummary, RecentEpisodes


def step_of(rewards, *, terminated=(), truncated=(), resetting=(), terms=None):
    """One vector step; the sets name environments."""
    n = len(rewards)

    def flags(envs):
        return np.isin(np.arange(n), list(envs))

    return EnvStep(
        observations=np.zeros((n, 1)),
        reached=np.zeros((n, 1)),
        rewards=np.array(rewards, dtype=np.float64),
        terminated=flags(terminated),
        truncated=flags(truncated),
        acted=~flags(resetting),
        reward_terms={k: np.array(v, dtype=np.float64) for k, v in (terms or {}).items()},
    )


def summary(value, *, ended="terminated", length=1, terms=None):
    return EpisodeSummary(Episode(10, 0, float(value), length, ended), terms or {})


def test_sums_run_per_environment_until_an_end():
    accumulators = EpisodeAccumulators.of_size(2)
    for rewards in ([1, 10], [2, 20], [4, 40]):
        accumulators.add(step_of(rewards))
    assert accumulators.returns.tolist() == [7, 70]
    assert accumulators.lengths.tolist() == [3, 3]
    accumulators.clear(np.array([False, True]))
    accumulators.add(step_of([8, 80]))
    assert accumulators.returns.tolist() == [15, 80]
    assert accumulators.lengths.tolist() == [4, 1]


def test_discounted_returns_run_on_from_rollout_to_rollout_and_end_with_an_episode():
    accumulators = EpisodeAccumulators.of_size(2)
    rewards = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    ended = np.array([[False, False], [False, True], [False, False]])
    running = accumulators.discount(rewards, ended, 0.5)
    assert running.tolist() == [[1, 10], [2.5, 25], [5.25, 40]]
    running = accumulators.discount(np.array([[8.0, 80.0]]), np.array([[True, False]]), 0.5)
    assert running.tolist() == [[10.625, 100]]
    running = accumulators.discount(np.array([[16.0, 16.0]]), np.zeros((1, 2), bool), 0.5)
    assert running.tolist() == [[16, 66]]


def test_a_reset_step_counts_for_nothing():
    accumulators = EpisodeAccumulators.of_size(2)
    accumulators.add(step_of([1, 1]))
    accumulators.add(step_of([0, 1], resetting={0}))
    assert accumulators.returns.tolist() == [1, 2]
    assert accumulators.lengths.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("flags", "ended"),
    [
        ({"terminated": {1}}, "terminated"),
        ({"truncated": {1}}, "truncated"),
        ({"terminated": {1}, "truncated": {1}}, "terminated"),
    ],
)
def test_an_episode_says_how_it_ended(flags, ended):
    accumulators = EpisodeAccumulators.of_size(2)
    accumulators.add(step_of([1, 2], terms={"reward_run": [3, 4]}))
    step = step_of([1, 5], terms={"reward_run": [3, 6], "reward_late": [0, 7]}, **flags)
    accumulators.add(step)
    told = accumulators.summaries(step, step.terminated | step.truncated, env_steps=44)
    assert told == [
        EpisodeSummary(Episode(44, 1, 7.0, 2, ended), {"reward_run": 10.0, "reward_late": 7.0})
    ]


def test_terms_start_again_with_the_next_episode():
    accumulators = EpisodeAccumulators.of_size(1)
    step = step_of([1], terminated={0}, terms={"reward_run": [3]})
    for _ in range(2):
        accumulators.add(step)
        (told,) = accumulators.summaries(step, step.terminated, env_steps=1)
        accumulators.clear(step.terminated)
        assert told.terms == {"reward_run": 3.0}
    assert step.reward_terms["reward_run"].tolist() == [3.0]


def test_without_an_episode_there_is_no_mean():
    assert RecentEpisodes().metrics() == {}


def test_means_over_the_episodes():
    recent = RecentEpisodes()
    recent.extend([summary(1, terms={"reward_run": 5.0}), summary(3, ended="truncated", length=4)])
    assert recent.metrics() == {
        "rollout/ep_rew_mean": 2.0,
        "rollout/ep_len_mean": 2.5,
        "rollout/terminated_share": 0.5,
        "rollout/truncated_share": 0.5,
        "rollout/reward_run": 5.0,
    }


def test_the_window_holds_the_last_hundred():
    recent = RecentEpisodes()
    recent.extend([summary(value) for value in range(130)])
    assert len(recent) == EPISODE_WINDOW == 100
    assert recent.metrics()["rollout/ep_rew_mean"] == np.mean(range(30, 130))


def test_the_state_survives_as_plain_python():
    recent = RecentEpisodes()
    recent.extend([summary(k, ended="truncated", terms={"reward_run": k}) for k in range(5)])
    again = RecentEpisodes()
    again.extend([summary(99)])
    again.load_state(json.loads(json.dumps(recent.state())))
    assert again.metrics() == recent.metrics()
    assert again.state() == recent.state()


def test_a_state_that_was_taken_does_not_change_any_more():
    recent = RecentEpisodes()
    recent.extend([summary(1, terms={"reward_run": 2.0})])
    state = recent.state()
    recent.extend([summary(5)])
    assert len(state) == 1
