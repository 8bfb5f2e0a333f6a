"""The configuration of a run: one validated, frozen model per section of the YAML file.

The files in `configs/` explain every key to the person who turns it; here are the types, the
ranges, the defaults, and the combinations that cannot work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ppo.config_errors import Problem
from ppo.config_types import (
    Count,
    Device,
    EnvId,
    EnvKwargs,
    EnvSteps,
    EverySteps,
    Fraction,
    HiddenSizes,
    Name,
    NonNegative,
    Positive,
    Text,
    Whole,
)
from ppo.strict_yaml import KeyPath, dump

_ADAPTIVE_KL_DEFAULTS = {
    "desired_kl": 0.01,
    "min_learning_rate": 1e-5,
    "max_learning_rate": 1e-2,
}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class EnvConfig(_Section):
    """Which environment, how many copies of it, and what its time limit means."""

    id: EnvId
    n_envs: Annotated[Count, Field(le=65_536)] = 8
    backend: Literal["auto", "sync", "async", "mujoco"] = "auto"
    autoreset: Literal["same_step", "next_step"] = "same_step"
    kwargs: EnvKwargs = Field(default_factory=dict)
    max_episode_steps: Count | None = None
    time_limit: Literal["external", "task"] = "external"


class PolicyConfig(_Section):
    """Shape of the actor and of the critic, which are separate networks."""

    hidden_sizes: HiddenSizes = (64, 64)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    # The distribution keeps log_std within these bounds; outside of them it would not learn.
    log_std_init: Annotated[float, Field(ge=-5.0, le=2.0)] = 0.0


class NormalizeConfig(_Section):
    """Running normalisation of observations and rewards."""

    observations: bool = True
    rewards: bool = True
    clip: Positive = 10.0


@dataclass(frozen=True)
class AdaptiveKL:
    """Settings of the adaptive_kl schedule: KL per iteration, bounds of the learning rate."""

    desired_kl: float
    min_learning_rate: float
    max_learning_rate: float


class PPOConfig(_Section):
    """Hyperparameters; names and meanings are Stable-Baselines3's.

    `desired_kl`, `min_learning_rate` and `max_learning_rate` are numbers under the adaptive_kl
    schedule and None under every other one.
    """

    total_timesteps: EnvSteps
    n_steps: Count = 256
    n_epochs: Count = 10
    batch_size: Count = 64
    learning_rate: Positive = 3e-4
    lr_schedule: Literal["constant", "linear", "adaptive_kl"] = "constant"
    desired_kl: Positive | None = None
    min_learning_rate: Positive | None = None
    max_learning_rate: Positive | None = None
    gamma: Fraction = 0.99
    gae_lambda: Fraction = 0.95
    clip_range: Positive = 0.2
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    clip_range_vf: Positive | None = None
    normalize_advantage: Literal["minibatch", "rollout", "none"] = "minibatch"
    ent_coef: NonNegative = 0.0
    ent_coef_schedule: Literal["constant", "linear"] = "constant"
    vf_coef: NonNegative = 0.5
    max_grad_norm: Positive = 0.5
    target_kl: Positive | None = None
    check_rollout: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill_adaptive_kl(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("lr_schedule") != "adaptive_kl":
            return data
        given = {key: value for key, value in data.items() if value is not None}
        return {**data, **_ADAPTIVE_KL_DEFAULTS, **given}

    @property
    def adaptive_kl(self) -> AdaptiveKL | None:
        """The settings of the adaptive_kl schedule; None under every other schedule."""
        if self.lr_schedule != "adaptive_kl":
            return None
        assert self.desired_kl is not None
        assert self.min_learning_rate is not None
        assert self.max_learning_rate is not None
        return AdaptiveKL(self.desired_kl, self.min_learning_rate, self.max_learning_rate)


class CriticConfig(_Section):
    """What the critic does differently from the actor, and what is done about a poor one."""

    learning_rate: Positive | None = None
    warmup_iterations: Annotated[Whole, Field(ge=0, le=2**31 - 1)] = 0
    gate: Literal["off", "warn", "value_epochs", "hold_policy"] = "warn"
    # Explained variance is at most 1, and 0 is what a constant reaches.
    min_explained_variance: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.3
    extra_value_epochs: Count = 10
    max_held_iterations: Count = 20


class EvalConfig(_Section):
    """Evaluation during training, and the defaults of `ppo eval`."""

    every: EverySteps = 0
    episodes: Count = 10
    n_envs: Count | None = None
    deterministic: bool = True
    max_episode_steps: Count = 10_000


class CheckpointConfig(_Section):
    """How often the run is saved, in env steps, and how many step_N.pt stay."""

    every: EverySteps = 100_000
    keep: Annotated[Whole, Field(ge=0, le=2**31 - 1)] = 3


class LoggingConfig(_Section):
    """What is written and shown beside the CSV files."""

    tensorboard: bool = True
    progress: Literal["auto", "live", "plain", "off"] = "auto"


class Config(_Section):
    """A whole run."""

    name: Name | None = None
    seed: Annotated[Whole, Field(ge=0, le=2**32 - 1)] = 0
    device: Device = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    torch_threads: Annotated[Count, Field(le=1024)] = 1
    runs_dir: Text = "runs"
    env: EnvConfig
    policy: PolicyConfig = PolicyConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    ppo: PPOConfig
    critic: CriticConfig = CriticConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="before")
    @classmethod
    def _open_sections(cls, data: Any) -> Any:
        """A section that is absent or empty holds its defaults; what it requires is then named."""
        if not isinstance(data, dict):
            return data
        return {**data, **{name: {} for name in section_models() if data.get(name) is None}}

    @model_validator(mode="after")
    def _check_combinations(self) -> "Config":
        problems = list(_impossible(self))
        if problems:
            raise PydanticCustomError("combination", "impossible", {"problems": problems})
        return self

    @property
    def eval_n_envs(self) -> int:
        """Environments of an evaluation: each plays the same number of episodes."""
        if self.eval.n_envs is not None:
            return self.eval.n_envs
        most = min(self.env.n_envs, self.eval.episodes)
        return next(n for n in range(most, 0, -1) if self.eval.episodes % n == 0)

    def to_mapping(self) -> dict[str, Any]:
        """Plain Python: dicts, lists, text, numbers, booleans and None, every key present."""
        mapping = self.model_dump()
        mapping["policy"]["hidden_sizes"] = list(self.policy.hidden_sizes)
        return mapping

    def to_yaml(self) -> str:
        """Every key, resolved; reading it back gives an equal configuration, floats to the bit."""
        return dump(self.to_mapping())


def section_models() -> dict[str, type[BaseModel]]:
    """Name and model of every section of the YAML file."""
    return {
        name: info.annotation
        for name, info in Config.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
    }


def config_keys() -> tuple[str, ...]:
    """Every key of the YAML file, dotted, in the order of the schema; sections included."""
    keys: list[str] = []
    sections = section_models()
    for name in Config.model_fields:
        keys.append(name)
        if name in sections:
            keys += [f"{name}.{key}" for key in sections[name].model_fields]
    return tuple(keys)


def _impossible(config: Config) -> Iterator[Problem]:
    """Combinations of valid values that cannot work, each with its reason."""
    yield from _impossible_batches(config)
    yield from _impossible_schedules(config.ppo)
    yield from _impossible_critic(config)
    episodes, n_envs = config.eval.episodes, config.eval.n_envs
    if n_envs is not None and episodes % n_envs != 0:
        yield Problem(
            ("eval", "n_envs"),
            f"every environment plays the same number of episodes, but eval.episodes {episodes} is "
            f"not a multiple of eval.n_envs {n_envs}; null chooses a number that fits",
            others=(("eval", "episodes"),),
        )


def _impossible_batches(config: Config) -> Iterator[Problem]:
    ppo, n_envs = config.ppo, config.env.n_envs
    rows = ppo.n_steps * n_envs
    sizes: tuple[KeyPath, ...] = (("ppo", "n_steps"), ("env", "n_envs"), ("ppo", "batch_size"))
    product = f"ppo.n_steps * env.n_envs = {ppo.n_steps} * {n_envs} = {rows}"
    if rows == 1:
        yield Problem(
            ("ppo", "n_steps"),
            "a rollout of one row (ppo.n_steps 1, env.n_envs 1) has nothing to compare its "
            "advantage with; raise one of the two",
            others=sizes,
        )
    elif ppo.batch_size > rows:
        yield Problem(
            ("ppo", "batch_size"),
            f"ppo.batch_size {ppo.batch_size} is larger than the rollout, {product}",
            others=sizes,
        )
    elif ppo.batch_size == 1 and ppo.normalize_advantage == "minibatch":
        yield Problem(
            ("ppo", "batch_size"),
            "ppo.normalize_advantage minibatch turns the advantage of a minibatch of one row into "
            "0, so nothing is learnt; raise ppo.batch_size or normalise over the rollout",
            others=(("ppo", "normalize_advantage"),),
        )
    total = -(-ppo.total_timesteps // n_envs) * n_envs
    if total < ppo.batch_size <= rows:
        yield Problem(
            ("ppo", "total_timesteps"),
            f"a run of {total} env steps (ppo.total_timesteps, in whole steps of env.n_envs "
            f"{n_envs}) never fills one minibatch of ppo.batch_size {ppo.batch_size}, so it "
            "learns nothing; raise the total or lower the batch size",
            others=(("ppo", "batch_size"), ("env", "n_envs")),
        )


def _impossible_critic(config: Config) -> Iterator[Problem]:
    critic, rollout = config.critic, config.ppo.n_steps * config.env.n_envs
    iterations = -(-config.ppo.total_timesteps // rollout)
    if critic.warmup_iterations >= iterations:
        yield Problem(
            ("critic", "warmup_iterations"),
            f"critic.warmup_iterations {critic.warmup_iterations} leaves nothing of the run's"
            f" {iterations} iterations for the policy to learn in",
            others=(("ppo", "total_timesteps"), ("ppo", "n_steps"), ("env", "n_envs")),
        )
    needing = {
        "warmup_iterations": critic.warmup_iterations > 0,
        "gate": critic.gate in ("value_epochs", "hold_policy"),
    }
    for key, needs in needing.items():
        if needs and config.ppo.vf_coef == 0.0:
            yield Problem(
                ("critic", key),
                f"critic.{key} {getattr(critic, key)} updates the value function alone, but with"
                " ppo.vf_coef 0 it does not learn",
                others=(("ppo", "vf_coef"),),
            )


def _impossible_schedules(ppo: PPOConfig) -> Iterator[Problem]:
    schedule: tuple[KeyPath, ...] = (("ppo", "lr_schedule"),)
    if ppo.adaptive_kl is None:
        for key in _ADAPTIVE_KL_DEFAULTS:
            if getattr(ppo, key) is not None:
                yield Problem(
                    ("ppo", key),
                    f"belongs to ppo.lr_schedule adaptive_kl, but ppo.lr_schedule is "
                    f"{ppo.lr_schedule}; remove the one or change the other",
                    others=schedule,
                )
        return
    low, high = ppo.adaptive_kl.min_learning_rate, ppo.adaptive_kl.max_learning_rate
    bounds: tuple[KeyPath, ...] = (("ppo", "min_learning_rate"), ("ppo", "max_learning_rate"))
    if low > high:
        yield Problem(
            ("ppo", "min_learning_rate"),
            f"ppo.min_learning_rate {low} is above ppo.max_learning_rate {high}",
            others=bounds,
        )
    elif not low <= ppo.learning_rate <= high:
        yield Problem(
            ("ppo", "learning_rate"),
            f"adaptive_kl starts from ppo.learning_rate {ppo.learning_rate}, which is outside of "
            f"[ppo.min_learning_rate, ppo.max_learning_rate] = [{low}, {high}]",
            others=(*bounds, *schedule),
        )
