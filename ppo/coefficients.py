"""What the schedules say at one point of a run."""

from typing import NamedTuple

import torch

from ppo import schedules
from ppo.agent import Agent
from ppo.config import Config
from ppo.parameters import learning_rate_vector
from ppo.update import Coefficients


class Scheduled(NamedTuple):
    """The values of one iteration.

    Attributes:
        learning_rate: of the actor.
        clip_range: of the policy's ratio.
        ent_coef: of the entropy bonus.
    """

    learning_rate: float
    clip_range: float
    ent_coef: float

    @classmethod
    def at(
        cls, config: Config, *, adapted_rate: float, env_steps: int, total_timesteps: int
    ) -> "Scheduled":
        """The values at so many env steps of so many; `adapted_rate` is adaptive_kl's."""
        ppo = config.ppo

        def scheduled(initial: float, schedule: str) -> float:
            if schedule != "linear":
                return initial
            return schedules.linear(initial, env_steps=env_steps, total_timesteps=total_timesteps)

        return cls(
            learning_rate=adapted_rate
            if ppo.lr_schedule == "adaptive_kl"
            else scheduled(ppo.learning_rate, ppo.lr_schedule),
            clip_range=scheduled(ppo.clip_range, ppo.clip_range_schedule),
            ent_coef=scheduled(ppo.ent_coef, ppo.ent_coef_schedule),
        )

    def coefficients(self, agent: Agent, config: Config) -> Coefficients:
        """As the update takes them, for both networks; the critic keeps its ratio to the actor."""
        critic = config.critic.learning_rate or config.ppo.learning_rate
        return Coefficients(
            learning_rate_vector(
                agent.networks,
                actor=self.learning_rate,
                critic=self.learning_rate * (critic / config.ppo.learning_rate),
            ),
            torch.tensor(self.clip_range, device=agent.device),
            torch.tensor(self.ent_coef, device=agent.device),
            torch.tensor(True, device=agent.device),
        )

    def metrics(self) -> dict[str, float]:
        """As they are logged."""
        return {f"train/{name}": value for name, value in self._asdict().items()}

    def describe(self, config: Config, *, end: int) -> str:
        """What follows from here on, for every value that may change; the run ends at `end`."""
        ppo = config.ppo
        courses = (ppo.lr_schedule, ppo.clip_range_schedule, ppo.ent_coef_schedule)
        words = []
        for (name, value), schedule in zip(self._asdict().items(), courses, strict=True):
            course = f"linear to 0 at {end:,}" if schedule == "linear" else schedule
            words.append(f"{name.replace('_', ' ')} {value:.3g}, {course}")
        return "; ".join(words)
