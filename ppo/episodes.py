"""The record of one finished training episode."""

from dataclasses import dataclass
from typing import Literal

Ended = Literal["terminated", "truncated"]


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode, in the environment's own reward.

    Attributes:
        env_steps: global env steps when it ended.
        env: which of the environments, from 0.
        episode_return: undiscounted sum of the environment's rewards.
        length: env steps in the episode.
        ended: how; an episode that did both at once terminated.
    """

    env_steps: int
    env: int
    episode_return: float
    length: int
    ended: Ended
