"""Environments as the trainer sees them: the only place that makes one."""

from ppo.envs.make import make_env
from ppo.envs.vector import EnvBatch, EnvStep, make_vector_env

__all__ = ["EnvBatch", "EnvStep", "make_env", "make_vector_env"]
