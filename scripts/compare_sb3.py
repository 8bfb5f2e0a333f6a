"""The same data and the same minibatches through Stable-Baselines3 and through this project.

A rollout is collected with the config's task and a fresh agent. Its rows go through
Stable-Baselines3's rollout buffer and this project's estimator; then, from equal weights, the same
minibatches in the same order go through Stable-Baselines3's `PPO.train` and this project's update,
eager and compiled. The largest difference of every quantity is printed, and the exit status is 0
only where all that should agree does. Stable-Baselines3 comes with the `bench` and `dev` extras.

    python scripts/compare_sb3.py configs/hopper.yaml --env.max_episode_steps 30
"""

import argparse
import sys

import torch
from gymnasium import spaces
from sb3_parity import (
    SMALL,
    TOLERANCE,
    Difference,
    Learned,
    compare_estimates,
    compare_learning,
    hyperparameters_of,
    learn_ours,
    learn_theirs,
)

from ppo.agent import Agent
from ppo.collector import RolloutCollector
from ppo.command_line import split_arguments
from ppo.config import Config, load_config
from ppo.envs import make_vector_env
from ppo.errors import UserError
from ppo.gae import compute_gae
from ppo.native.build import BuildError
from ppo.native.step import NativeEpoch
from ppo.rollout import Batch, Rollout, flatten_valid
from ppo.seeding import Stream, env_seeds, torch_generator
from ppo.update import Hyperparameters

ON_PURPOSE = """\
| difference on purpose | here | Stable-Baselines3 | why |
|---|---|---|---|
| reward at a time limit | the environment's; V(last) is a column of its own | gamma V(last) is \
added to it | a value is never scaled, clipped or logged as a reward; the advantages are the same |
| log_std | kept within [-5, 2] after each step | free | ratios stay finite; the same until a \
bound is reached |
| train/loss | mean over the update | of its last minibatch | one minibatch says little |
| train/n_updates | gradient steps | epochs | an update that the KL stop ends takes fewer |
| values | in one batch after collecting | at every vector step | the critic does not move in \
between; the same to rounding |
| Discrete(start=k) | counted from k on the way to the environment | ignored | the action sent is \
the one that was meant |
"""


def collect(config: Config) -> tuple[spaces.Space[object], Rollout]:
    """The first rollout of a fresh agent."""
    with make_vector_env(config.env, autoreset="same_step") as envs:
        agent = Agent.create(
            config,
            observation_size=envs.observation_size,
            action_space=envs.action_space,
            device=torch.device("cpu"),
        )
        collector = RolloutCollector(envs, generator=torch_generator(config.seed, Stream.ACTIONS))
        collector.reset(env_seeds(config.seed, Stream.TRAINING_ENVS, config.env.n_envs))
        collected = collector.collect(agent, config.ppo.n_steps, env_step_budget=sys.maxsize)
        return envs.action_space, collected.rollout


def shuffled_update(
    config: Config,
    action_space: spaces.Space[object],
    batch: Batch,
    settings: Hyperparameters,
    *,
    compiled: bool,
) -> tuple[Learned, Learned, list[Difference]]:
    """Both updates from the same fresh weights."""

    def fresh() -> Agent:
        return Agent.create(
            config,
            observation_size=batch.observations.shape[1],
            action_space=action_space,
            device=torch.device("cpu"),
        )

    networks = fresh().networks
    theirs = learn_theirs(networks, action_space, batch, config, settings, seed=config.seed)
    epoch = NativeEpoch(networks, settings) if compiled else None
    ours = learn_ours(networks, batch, config, settings, seed=config.seed, epoch=epoch)
    return ours, theirs, compare_learning(ours, theirs, networks)


def table(title: str, differences: list[Difference]) -> str:
    rows = [
        f"| {each.quantity} | {each.absolute:.1e} | {each.relative:.1e} |"
        f" {'' if each.agrees else '**differs**'} |"
        for each in differences
    ]
    head = "| quantity | largest difference | relative | |\n|---|---|---|---|"
    return "\n".join([f"\n**{title}**\n", head, *rows])


def compare(config: Config) -> bool:
    """Print everything; whether all that should agree does."""
    action_space, rollout = collect(config)
    print(
        f"{config.env.id}: {rollout.n_valid} rows of {config.env.n_envs} environments,"
        f" {int(rollout.terminated.sum())} terminated,"
        f" {int((rollout.truncated & ~rollout.terminated).sum())} truncated"
    )
    if not bool((rollout.terminated | rollout.truncated).any()):
        print("No episode ended: set a shorter --env.max_episode_steps to compare ends.")
    gamma, everything = config.ppo.gamma, []
    for gae_lambda in dict.fromkeys((config.ppo.gae_lambda, 0.0, 0.9, 1.0)):
        found = compare_estimates(rollout, gamma=gamma, gae_lambda=gae_lambda)
        print(table(f"Estimating, lambda {gae_lambda:g}", found))
        everything += found
    advantages, returns = compute_gae(
        rollout.learner_rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        gae_lambda=config.ppo.gae_lambda,
    )
    batch = flatten_valid(rollout, advantages, returns)
    first = batch.rows(torch.arange(min(config.ppo.batch_size, batch.size)))
    for rows, n_epochs in ((first, 1), (batch, 1), (batch, config.ppo.n_epochs)):
        settings = hyperparameters_of(config, n_epochs=n_epochs)
        for compiled in (False, True):
            try:
                ours, _, found = shuffled_update(
                    config, action_space, rows, settings, compiled=compiled
                )
            except BuildError as error:
                print(f"\nThe compiled update was left out: {error}")
                continue
            how = "compiled" if compiled else "eager"
            print(table(f"Learning, {how}, gradient steps: {ours.steps}", found))
            everything += found
    print(f"\n{ON_PURPOSE}")
    return all(difference.agrees for difference in everything)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Any key of the config is a flag too: --env.max_episode_steps 30",
    )
    parser.add_argument("config", help="a YAML file")
    arguments, rest = parser.parse_known_args()
    try:
        _, overrides = split_arguments([arguments.config, *rest], "CONFIG")
        config = load_config(arguments.config, overrides)
        if config.ppo.normalize_advantage == "rollout":
            raise UserError(
                "ppo.normalize_advantage: rollout is not known to Stable-Baselines3; compare with"
                " --ppo.normalize_advantage minibatch"
            )
        torch.set_num_threads(config.torch_threads)
        agrees = compare(config)
    except UserError as error:
        parser.exit(2, f"compare_sb3: {error}\n")
    print(
        "All agrees" if agrees else "Something differs",
        f"(to {TOLERANCE:g} of the largest number, or {SMALL:g}).",
    )
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
