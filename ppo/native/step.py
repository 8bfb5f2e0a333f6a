"""The native minibatch step, as the pure function of `ppo.update` that it stands for."""

import ctypes
import math
from itertools import chain

import torch
from torch import Tensor

from ppo.agent import ActorCritic
from ppo.distributions import LOG_STD_MAX, LOG_STD_MIN, CategoricalHead
from ppo.losses import ADVANTAGE_EPSILON
from ppo.native.build import load_library
from ppo.networks import ACTIVATIONS
from ppo.rollout import Batch
from ppo.update import (
    ADAM_BETAS,
    ADAM_EPSILON,
    KL_TOLERANCE,
    Coefficients,
    Hyperparameters,
    Learner,
    OptimizerState,
    StepMetrics,
)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("observations", ctypes.c_void_p),
        ("actions", ctypes.c_void_p),
        ("log_probs", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("advantages", ctypes.c_void_p),
        ("returns", ctypes.c_void_p),
    )


class _Settings(ctypes.Structure):
    _fields_ = (
        ("clip_range", ctypes.c_float),
        ("ent_coef", ctypes.c_float),
        ("vf_coef", ctypes.c_float),
        ("max_grad_norm", ctypes.c_float),
        ("kl_limit", ctypes.c_float),
        ("clip_range_vf", ctypes.c_float),
        ("normalize_advantages", ctypes.c_int32),
        ("policy_learns", ctypes.c_int32),
    )


class _Learner(ctypes.Structure):
    _fields_ = (
        ("parameters", ctypes.c_void_p),
        ("exp_avg", ctypes.c_void_p),
        ("exp_avg_sq", ctypes.c_void_p),
        ("step", ctypes.c_void_p),
        ("active", ctypes.c_void_p),
    )


class NativeEpoch:
    """Gradient steps over minibatches in their order, by a function built for these networks.

    Args:
        networks: on the CPU, in float32; only their shape is read.
        hyperparameters: of the run.
        n_threads: with 2, actor and critic step side by side, to the same results.

    Raises:
        BuildError: if the function cannot be built.
    """

    def __init__(
        self, networks: ActorCritic, hyperparameters: Hyperparameters, *, n_threads: int = 1
    ) -> None:
        self._hyperparameters = hyperparameters
        self._n_threads = n_threads
        self._library = load_library(_definitions(networks, hyperparameters.batch_size))
        self._library.run_minibatches.restype = None

    def __call__(
        self, learner: Learner, batch: Batch, order: Tensor, coefficients: Coefficients
    ) -> tuple[Learner, StepMetrics]:
        """As `ppo.update.one_by_one` of the minibatch step."""
        _check_readable(batch, order)
        batch_size = self._hyperparameters.batch_size
        optimizer = OptimizerState(*(tensor.clone() for tensor in learner.optimizer))
        changed = Learner(learner.parameters.clone(), optimizer, learner.active.clone())
        metrics = torch.empty(math.ceil(len(order) / batch_size), len(StepMetrics._fields))
        self._library.run_minibatches(
            ctypes.byref(
                _Learner(
                    changed.parameters.data_ptr(),
                    optimizer.exp_avg.data_ptr(),
                    optimizer.exp_avg_sq.data_ptr(),
                    optimizer.step.data_ptr(),
                    changed.active.data_ptr(),
                )
            ),
            ctypes.byref(_Batch(*(tensor.data_ptr() for tensor in batch))),
            ctypes.c_void_p(order.data_ptr()),
            len(order),
            batch_size,
            ctypes.byref(self._settings(coefficients)),
            ctypes.c_void_p(coefficients.learning_rates.data_ptr()),
            ctypes.c_void_p(metrics.data_ptr()),
            self._n_threads,
        )
        measured = StepMetrics(*metrics.unbind(dim=1))
        return changed, measured._replace(
            evaluated=measured.evaluated.bool(), applied=measured.applied.bool()
        )

    def _settings(self, coefficients: Coefficients) -> _Settings:
        settings = self._hyperparameters
        limit = math.inf if settings.target_kl is None else KL_TOLERANCE * settings.target_kl
        return _Settings(
            clip_range=float(coefficients.clip_range),
            ent_coef=float(coefficients.ent_coef),
            vf_coef=settings.vf_coef,
            max_grad_norm=settings.max_grad_norm,
            kl_limit=limit,
            clip_range_vf=math.inf if settings.clip_range_vf is None else settings.clip_range_vf,
            normalize_advantages=settings.normalize_advantage == "minibatch",
            policy_learns=bool(coefficients.policy_learns),
        )


def _check_readable(batch: Batch, order: Tensor) -> None:
    if not all(tensor.is_contiguous() for tensor in (*batch, order)):
        raise ValueError("the rows of a batch must be contiguous in memory")
    if order.dtype != torch.int64 or len(order) == 0:
        raise ValueError("an order is one row's index or more, in int64")
    low, high = torch.aminmax(order)
    if low < 0 or high >= batch.size:
        raise ValueError(f"an order of rows {int(low)} to {int(high)} for {batch.size} rows")


def _definitions(networks: ActorCritic, max_rows: int) -> dict[str, str]:
    """The macros of the source, for these networks."""
    activation_of = {kind: name for name, kind in ACTIVATIONS.items()}
    activations = {type(layer) for layer in networks.actor if type(layer) in activation_of}
    (activation,) = activations or {torch.nn.Tanh}  # none, where there is no hidden layer
    beta1, beta2 = ADAM_BETAS
    definitions = {
        "PPO_ACTOR": _sizes(networks.actor),
        "PPO_CRITIC": _sizes(networks.critic),
        "PPO_ACTIVATION": activation_of[activation].capitalize(),
        "PPO_MAX_ROWS": str(max_rows),
        "PPO_LOG_STD_MIN": f"{LOG_STD_MIN!r}f",
        "PPO_LOG_STD_MAX": f"{LOG_STD_MAX!r}f",
        "PPO_BETA1": repr(beta1),
        "PPO_BETA2": repr(beta2),
        "PPO_ADAM_EPSILON": f"{ADAM_EPSILON!r}f",
        "PPO_ADVANTAGE_EPSILON": repr(ADVANTAGE_EPSILON),
    }
    if isinstance(networks.head, CategoricalHead):
        definitions["PPO_CHOICES"] = ",".join(map(str, networks.head.sizes))
    return definitions


def _sizes(network: torch.nn.Sequential) -> str:
    layers = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    sizes = chain([layers[0].in_features], (layer.out_features for layer in layers))
    return ",".join(map(str, sizes))
