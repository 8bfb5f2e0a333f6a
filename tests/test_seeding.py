"""Random streams: repeatable, and never the same twice."""

import gymnasium
import pytest
import torch

from ppo.seeding import Stream, env_seeds, torch_generator


def draws(generator):
    return torch.randint(0, 2**62, (4,), generator=generator).tolist()


def test_env_seeds_are_repeatable_plain_integers():
    seeds = env_seeds(1, Stream.TRAINING_ENVS, 8)
    assert seeds == env_seeds(1, Stream.TRAINING_ENVS, 8)
    assert len(seeds) == 8
    assert all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)


def test_every_environment_of_every_run_has_a_seed_of_its_own():
    """Neighbouring run seeds, training and evaluation, resumed twice: all different."""
    streams = [stream for stream in Stream if stream.name.endswith("_ENVS")]
    assert len(streams) >= 2
    seeds = [
        env_seed
        for run_seed in range(50)
        for stream in streams
        for attempt in range(3)
        for env_seed in env_seeds(run_seed, stream, 16, attempt=attempt)
    ]
    assert len(set(seeds)) == len(seeds) == 50 * len(streams) * 3 * 16


def test_more_environments_leave_the_first_ones_as_they_were():
    few, many = (env_seeds(3, Stream.TRAINING_ENVS, n) for n in (4, 9))
    assert many[:4] == few


def test_environments_of_neighbouring_runs_start_differently():
    """Through an environment's own generator, as the first reset sees it."""
    first = []
    with gymnasium.make("CartPole-v1") as env:
        for run_seed in (0, 1):
            for seed in env_seeds(run_seed, Stream.TRAINING_ENVS, 4):
                first.append(tuple(env.reset(seed=seed)[0].tolist()))
    assert len(set(first)) == 8


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63])
def test_any_seed_makes_generators(seed):
    generator = torch_generator(seed, Stream.ACTIONS)
    assert draws(generator) == draws(torch_generator(seed, Stream.ACTIONS))


def test_generators_of_streams_and_seeds_differ():
    generators = [torch_generator(seed, stream) for seed in range(5) for stream in Stream]
    sequences = {tuple(draws(generator)) for generator in generators}
    assert len(sequences) == 5 * len(Stream)


def test_no_two_environments_of_a_run_share_a_seed():
    """Not only probably: 65,536 words of 32 bits would hold a pair in four runs of ten."""
    streams = (Stream.TRAINING_ENVS, Stream.EVALUATION_ENVS, Stream.SELECTION_ENVS)
    seeds = [seed for stream in streams for seed in env_seeds(7, stream, 65_536)]
    assert len(seeds) == len(set(seeds)) == 3 * 65_536


def test_generators_leave_the_global_one_alone():
    state = torch.get_rng_state()
    draws(torch_generator(0, Stream.ACTIONS))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_seed_keeps_its_meaning():
    """Recorded: another number here means that every published seed names another run."""
    assert env_seeds(0, Stream.TRAINING_ENVS, 2) == [2377455347, 1336800755]
    assert torch_generator(0, Stream.INITIALISATION).initial_seed() == 1317536309490288386
