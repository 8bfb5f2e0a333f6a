"""Fixed references by which returns of different tasks are put on one scale.

Zero is the mean return of uniformly random actions (50 episodes of Gymnasium's own environment; 10
of HumanoidStandup). One is a published return of PPO after 1,000,000 env steps, of the task's v4 or
v3 where there is none for v5; its only purpose is to stay the same.
"""

from typing import NamedTuple


class Reference(NamedTuple):
    """The two ends of the scale.

    Attributes:
        random: return that is 0.
        published: return that is 1.
        source: of the latter.
    """

    random: float
    published: float
    source: str

    def normalise(self, score: float) -> float:
        """A return on this scale."""
        return (score - self.random) / (self.published - self.random)


_KLIP, _CLEANRL, _TIANSHOU = "KLip-PPO, v4", "CleanRL, v4", "Tianshou, v3, maximum over training"

REFERENCES = {
    "Ant-v5": Reference(-38.4, 2193.0, _KLIP),
    "HalfCheetah-v5": Reference(-283.2, 1955.0, _KLIP),
    "Hopper-v5": Reference(17.9, 2598.0, _KLIP),
    "Humanoid-v5": Reference(111.4, 660.0, _KLIP),
    "InvertedDoublePendulum-v5": Reference(47.1, 9231.0, _TIANSHOU),
    "InvertedPendulum-v5": Reference(4.8, 963.0, _CLEANRL),
    "Pusher-v5": Reference(-148.8, -40.4, _CLEANRL),
    "Reacher-v5": Reference(-43.6, -4.1, _TIANSHOU),
    "Swimmer-v5": Reference(-0.6, 67.0, _TIANSHOU),
    "Walker2d-v5": Reference(1.3, 3717.0, _KLIP),
    "CartPole-v1": Reference(25.1, 500.0, "the highest return that there is"),
    "Pendulum-v1": Reference(-1227.8, 0.0, "the upper bound of its return"),
}
