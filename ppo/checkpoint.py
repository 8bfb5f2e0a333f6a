"""The state of a run at the end of an iteration: everything that going on needs, in one file."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch

from ppo.agent import Agent
from ppo.config import Config
from ppo.critic import CriticWatch
from ppo.seeding import Stream, torch_generator
from ppo.statistics import RecentEpisodes
from ppo.storage import damage_named
from ppo.update import OptimizerState


@dataclass
class TrainingState:
    """What an iteration changes.

    Attributes:
        agent: networks and normalisers.
        optimizer: Adam's moments.
        actions: generator of the actions' noise.
        permutations: generator of the minibatch order.
        learning_rate: of the actor in the next iteration (moved by adaptive_kl only).
        env_steps: done, in all environments together.
        iterations: done.
        n_updates: gradient steps done.
        resumes: how often the run was taken up again, once it had begun to step.
        evaluated_at: env steps at the last evaluation during training.
        saved_at: env steps at the last step_N checkpoint.
        best_return: best mean return of an evaluation during training, if there was one.
        environments: where the environments and their episodes stand, if they can say.
        recent: the last hundred training episodes.
        critic: how good the critic was lately, and what its gate has done.
    """

    agent: Agent
    optimizer: OptimizerState
    actions: torch.Generator
    permutations: torch.Generator
    learning_rate: float
    env_steps: int = 0
    iterations: int = 0
    n_updates: int = 0
    resumes: int = 0
    evaluated_at: int = 0
    saved_at: int = 0
    best_return: float | None = None
    environments: dict[str, Any] | None = None
    recent: RecentEpisodes = field(default_factory=RecentEpisodes)
    critic: CriticWatch = field(default_factory=CriticWatch)

    @classmethod
    def fresh(
        cls,
        config: Config,
        *,
        observation_size: int,
        action_space: gymnasium.Space[Any],
        device: torch.device,
    ) -> "TrainingState":
        """The state before the first iteration, drawn from the run's seed."""
        agent = Agent.create(
            config, observation_size=observation_size, action_space=action_space, device=device
        )
        return cls(
            agent=agent,
            optimizer=OptimizerState.zeros(agent.networks),
            actions=torch_generator(config.seed, Stream.ACTIONS),
            permutations=torch_generator(config.seed, Stream.PERMUTATIONS),
            learning_rate=config.ppo.learning_rate,
        )

    def capture(self, config: Config) -> dict[str, Any]:
        """Copies of everything, as tensors and plain Python: the contents of a checkpoint."""
        return {
            "config": config.to_mapping(),
            "agent": self.agent.state(),
            "optimizer": {
                name: tensor.detach().cpu().clone()
                for name, tensor in self.optimizer._asdict().items()
            },
            "generators": {
                "actions": self.actions.get_state(),
                "permutations": self.permutations.get_state(),
            },
            "learning_rate": self.learning_rate,
            "counters": {
                "env_steps": self.env_steps,
                "iterations": self.iterations,
                "n_updates": self.n_updates,
                "resumes": self.resumes,
                "evaluated_at": self.evaluated_at,
                "saved_at": self.saved_at,
            },
            "best_return": self.best_return,
            "environments": _as_tensors(self.environments),
            "recent_episodes": self.recent.state(),
            "critic": self.critic.state(),
        }

    @classmethod
    def restore(
        cls, contents: dict[str, Any], config: Config, device: torch.device
    ) -> "TrainingState":
        """The state that `capture` took; `config` may differ in what does not shape the agent.

        Raises:
            CheckpointError: if something is missing from the contents, or is not what it must be.
        """
        with damage_named("the checkpoint"):
            agent = Agent.from_state(contents["agent"], config, device)
            state = cls(
                agent=agent,
                optimizer=_optimizer(contents["optimizer"], agent),
                actions=torch.Generator(),
                permutations=torch.Generator(),
                learning_rate=contents["learning_rate"],
                best_return=contents["best_return"],
                environments=_as_arrays(contents["environments"]),
                critic=CriticWatch.from_state(**contents["critic"]),
                **contents["counters"],
            )
            state.actions.set_state(contents["generators"]["actions"])
            state.permutations.set_state(contents["generators"]["permutations"])
            state.recent.load_state(contents["recent_episodes"])
        return state


def _optimizer(contents: dict[str, Any], agent: Agent) -> OptimizerState:
    """The moments in a checkpoint; those of other parameters would be read past their end."""
    fresh = OptimizerState.zeros(agent.networks)
    for name, there in fresh._asdict().items():
        stored = contents[name]
        if stored.shape != there.shape or stored.dtype != there.dtype:
            raise ValueError(
                f"the optimizer's {name} is {list(stored.shape)} {stored.dtype}, not"
                f" {list(there.shape)} {there.dtype}"
            )
    return OptimizerState(**{name: value.to(agent.device) for name, value in contents.items()})


def _as_tensors(tree: Any) -> Any:
    """Arrays as tensors, which a checkpoint may hold; everything else as it is."""
    match tree:
        case dict():
            return {key: _as_tensors(value) for key, value in tree.items()}
        case list():
            return [_as_tensors(value) for value in tree]
        case np.ndarray():
            return torch.from_numpy(tree.copy())
    return tree


def _as_arrays(tree: Any) -> Any:
    """What `_as_tensors` was given."""
    match tree:
        case dict():
            return {key: _as_arrays(value) for key, value in tree.items()}
        case list():
            return [_as_arrays(value) for value in tree]
        case torch.Tensor():
            return tree.numpy().copy()
    return tree
