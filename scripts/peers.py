"""Other trainers with this project's hyperparameters, for the benchmark and the comparison."""

from typing import Any

N_ENVS, N_STEPS = 8, 256


def sb3_ppo(env_id: str, *, seed: int, base: type[Any] | None = None, **changes: Any) -> Any:
    """Stable-Baselines3: MlpPolicy's defaults, DummyVecEnv, VecNormalize, one torch thread.

    Args:
        base: a subclass of Stable-Baselines3's PPO, or SBX's, to make instead.
        changes: of the hyperparameters; `n_envs` too.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    n_envs = changes.pop("n_envs", N_ENVS)
    settings: dict[str, Any] = {
        "n_steps": N_STEPS,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "device": "cpu",
        "seed": seed,
    }
    envs = VecNormalize(make_vec_env(env_id, n_envs=n_envs, seed=seed), gamma=0.99)
    return (base or PPO)("MlpPolicy", envs, **(settings | changes))


def sbx_ppo() -> type[Any]:
    """SBX's PPO, which learns with JAX."""
    from sbx import PPO

    ppo: type[Any] = PPO
    return ppo
