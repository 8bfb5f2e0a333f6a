"""What a run will do, worked out before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ppo.config import Config


@dataclass(frozen=True)
class Plan:
    """The budget of a run, or of what is left of it.

    Exact, except that NEXT_STEP's reset rows bring no env step.

    Attributes:
        env_steps: at the end of the run: total_timesteps rounded up to a multiple of n_envs.
        rollout: env steps of a full rollout.
        iterations: to the end of the run.
        last_rollout: env steps of the last one.
        learns_from_last: the last rollout fills at least one minibatch.
        gradient_steps: to the end of the run, if no KL stop ends an update early.
    """

    env_steps: int
    rollout: int
    iterations: int
    last_rollout: int
    learns_from_last: bool
    gradient_steps: int

    @classmethod
    def of(cls, config: Config, *, done: int = 0) -> "Plan":
        """The plan of a config, from `done` env steps on."""
        ppo, n_envs = config.ppo, config.env.n_envs
        rollout = ppo.n_steps * n_envs
        env_steps = ceil(ppo.total_timesteps / n_envs) * n_envs
        iterations = ceil((env_steps - done) / rollout)
        last = env_steps - done - (iterations - 1) * rollout
        learns_from_last = last >= ppo.batch_size
        minibatches = (iterations - 1) * ceil(rollout / ppo.batch_size)
        minibatches += ceil(last / ppo.batch_size) if learns_from_last else 0
        return cls(
            env_steps, rollout, iterations, last, learns_from_last, minibatches * ppo.n_epochs
        )

    def describe(self, config: Config, *, done: int = 0) -> str:
        """One line for the user; `done` env steps lie before it."""
        after = f", {done:,} of them done, the others" if done else ""
        about = "about " if config.env.autoreset == "next_step" else ""
        most = "at most " if config.ppo.target_kl is not None else about
        line = (
            f"{self.env_steps:,} env steps{after} in {about}{self.iterations:,} iterations of"
            f" {config.env.n_envs} envs x {config.ppo.n_steps} steps,"
            f" {most}{self.gradient_steps:,} gradient steps"
        )
        if self.last_rollout != self.rollout:
            line += f"; the last rollout has {self.last_rollout:,} env steps"
            line += "" if self.learns_from_last else " and is too short to learn from"
        critic, iterations_done = config.critic, done // self.rollout
        if critic.warmup_iterations > iterations_done:
            line += f"; the first {critic.warmup_iterations:,} iterations update the critic alone"
        if critic.gate == "value_epochs":
            line += "; more gradient steps where the critic is poor"
        return line


def evaluation_due(config: Config, env_steps: int, evaluated_at: int) -> bool:
    """An evaluation during training is to be made now."""
    every = config.eval.every
    return every > 0 and env_steps // every > evaluated_at // every


def nothing_left(config: Config, counters: Mapping[str, int]) -> bool:
    """A run that was saved with these counters has nothing to go on with."""
    done = counters["env_steps"]
    trained = done >= Plan.of(config).env_steps
    return trained and not evaluation_due(config, done, counters["evaluated_at"])
