"""One PPO update: epochs of shuffled minibatches, and the pure function that does one of them.

`minibatch_step` is a function of (parameters, optimiser state, minibatch, coefficients) and of
nothing else, on any device. It is the definition: `ppo.native` builds the same function for the
CPU, thirty times as fast on small networks. All parameters are one flat vector, which makes the
global gradient clip and Adam a handful of operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ppo import losses
from ppo.agent import ActorCritic
from ppo.distributions import DiagonalGaussian
from ppo.parameters import (
    ParameterLayout,
    critic_mask,
    flatten_parameters,
    load_parameters,
    parameter_bounds,
)
from ppo.rollout import Batch

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-5
KL_TOLERANCE = 1.5


class OptimizerState(NamedTuple):
    """Adam's moments and the gradient steps taken, of every parameter, [P] each.

    The steps are counted by parameter because the policy may stand still while the critic learns.
    """

    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor

    @classmethod
    def zeros(cls, networks: nn.Module) -> "OptimizerState":
        """No step taken yet."""
        flat = flatten_parameters(networks)
        return cls(*(torch.zeros_like(flat) for _ in cls._fields))


class Coefficients(NamedTuple):
    """What may change from one iteration to the next: tensors, so that nothing recompiles.

    Attributes:
        learning_rates: of every parameter, [P].
        clip_range: of the policy's ratio, [].
        ent_coef: of the entropy bonus, [].
        policy_learns: False freezes the policy: its parameters and moments stay, its gradient
            does not count in the clip, and no KL stop applies; [] bool.
    """

    learning_rates: Tensor
    clip_range: Tensor
    ent_coef: Tensor
    policy_learns: Tensor


@dataclass(frozen=True)
class Hyperparameters:
    """What stays the same for the whole run."""

    n_epochs: int
    batch_size: int
    clip_range_vf: float | None
    normalize_advantage: Literal["minibatch", "rollout", "none"]
    vf_coef: float
    max_grad_norm: float
    target_kl: float | None


class StepMetrics(NamedTuple):
    """Diagnostics of one gradient step, [] each, or of K in a row, [K] each.

    Attributes:
        evaluated: the update had not been stopped before this minibatch (bool).
        applied: its gradient step was taken (bool).
    """

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    grad_norm: Tensor
    evaluated: Tensor
    applied: Tensor


class Learner(NamedTuple):
    """What a gradient step changes."""

    parameters: Tensor
    optimizer: OptimizerState
    active: Tensor


class Losses(NamedTuple):
    """The terms of the objective and their diagnostics, [] each."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


StepFunction = Callable[[Learner, Batch, Coefficients], tuple[Learner, StepMetrics]]
# Takes an order of the batch's rows, [M] int64, as well.
EpochFunction = Callable[[Learner, Batch, Tensor, Coefficients], tuple[Learner, StepMetrics]]


def compute_losses(
    networks: Callable[[Tensor], tuple[Any, Tensor]],
    minibatch: Batch,
    coefficients: Coefficients,
    hyperparameters: Hyperparameters,
) -> tuple[Tensor, Losses]:
    """The objective that a gradient step minimises, and its terms.

        loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss

    Reference: Schulman et al. 2017, arXiv:1707.06347, eq. 7 and 9.
    """
    policy, values = networks(minibatch.observations)
    logratio = policy.log_prob(minibatch.actions) - minibatch.log_probs
    ratio = logratio.exp()
    advantages = minibatch.advantages
    if hyperparameters.normalize_advantage == "minibatch":
        advantages = losses.normalize_advantages(advantages)
    policy_loss = losses.clipped_policy_loss(ratio, advantages, clip_range=coefficients.clip_range)
    value_loss = losses.value_loss(
        values,
        minibatch.returns,
        old_values=minibatch.values,
        clip_range_vf=hyperparameters.clip_range_vf,
    )
    entropy_loss = -policy.entropy().mean()
    loss = policy_loss + coefficients.ent_coef * entropy_loss + hyperparameters.vf_coef * value_loss
    terms = Losses(
        policy=policy_loss.detach(),
        value=value_loss.detach(),
        entropy=entropy_loss.detach(),
        approx_kl=losses.approx_kl(logratio.detach()),
        clip_fraction=losses.clip_fraction(ratio.detach(), clip_range=coefficients.clip_range),
    )
    return loss, terms


def make_step(networks: ActorCritic, hyperparameters: Hyperparameters) -> StepFunction:
    """The pure minibatch step for networks of this architecture; their own weights are not read."""
    layout = ParameterLayout.of(networks)
    low, high = parameter_bounds(networks)
    of_critic = critic_mask(networks)

    def objective(
        parameters: Tensor, minibatch: Batch, coefficients: Coefficients
    ) -> tuple[Tensor, Losses]:
        named = layout.unflatten(parameters)
        return compute_losses(
            lambda observations: torch.func.functional_call(networks, named, (observations,)),
            minibatch,
            coefficients,
            hyperparameters,
        )

    def minibatch_step(
        learner: Learner, minibatch: Batch, coefficients: Coefficients
    ) -> tuple[Learner, StepMetrics]:
        gradient, loss, terms = _gradient(objective, learner.parameters, minibatch, coefficients)
        with torch.no_grad():
            learns = coefficients.policy_learns | of_critic
            gradient = torch.where(learns, gradient, 0.0)
            grad_norm = torch.linalg.vector_norm(gradient)
            clipped = gradient * (hyperparameters.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
            parameters, optimizer = adam(
                learner.parameters, clipped, learner.optimizer, coefficients.learning_rates
            )
            # Projected, not only clamped in the forward pass: a bound must be a place that the
            # gradient can leave again.
            parameters = torch.clamp(parameters, low, high)
            applied = learner.active & torch.isfinite(loss) & torch.isfinite(grad_norm)
            if hyperparameters.target_kl is not None:
                near = terms.approx_kl <= KL_TOLERANCE * hyperparameters.target_kl
                applied = applied & (near | ~coefficients.policy_learns)
            moved = applied & learns
            changed = Learner(
                torch.where(moved, parameters, learner.parameters),
                OptimizerState(
                    *(
                        torch.where(moved, new, old)
                        for new, old in zip(optimizer, learner.optimizer, strict=True)
                    )
                ),
                applied,
            )
        metrics = StepMetrics(
            terms.policy,
            terms.value,
            terms.entropy,
            loss,
            terms.approx_kl,
            terms.clip_fraction,
            grad_norm,
            learner.active,
            applied,
        )
        return changed, metrics

    return minibatch_step


def one_by_one(step: StepFunction, *, batch_size: int) -> EpochFunction:
    """Gradient steps over the batch in the order given, minibatch by minibatch.

    The last minibatch may be shorter. The metrics are [K] each, for K minibatches.
    """

    def epoch(
        learner: Learner, batch: Batch, order: Tensor, coefficients: Coefficients
    ) -> tuple[Learner, StepMetrics]:
        metrics = []
        for index in torch.split(order, batch_size):
            learner, measured = step(learner, batch.rows(index), coefficients)
            metrics.append(measured)
        return learner, StepMetrics(*(torch.stack(rows) for rows in zip(*metrics, strict=True)))

    return epoch


def join(parts: Sequence[StepMetrics]) -> StepMetrics:
    """Metrics of several rows of gradient steps as one, in their order."""
    return StepMetrics(*(torch.cat(rows) for rows in zip(*parts, strict=True)))


def adam(
    parameters: Tensor, gradient: Tensor, state: OptimizerState, learning_rates: Tensor
) -> tuple[Tensor, OptimizerState]:
    """One step of Adam over flat vectors [P] (Kingma and Ba 2014, arXiv:1412.6980, alg. 1)."""
    beta1, beta2 = ADAM_BETAS
    step = state.step + 1.0
    exp_avg = torch.lerp(state.exp_avg, gradient, 1.0 - beta1)
    exp_avg_sq = torch.lerp(state.exp_avg_sq, gradient.square(), 1.0 - beta2)
    mean = exp_avg / (1.0 - beta1**step)
    deviation = (exp_avg_sq / (1.0 - beta2**step)).sqrt() + ADAM_EPSILON
    return parameters - learning_rates * mean / deviation, OptimizerState(exp_avg, exp_avg_sq, step)


def _gradient(
    objective: Callable[[Tensor, Batch, Coefficients], tuple[Tensor, Losses]],
    parameters: Tensor,
    minibatch: Batch,
    coefficients: Coefficients,
) -> tuple[Tensor, Tensor, Losses]:
    """(gradient [P], loss [], terms) of the objective with respect to the parameters."""
    leaf = parameters.detach().requires_grad_()
    with torch.enable_grad():
        loss, terms = objective(leaf, minibatch, coefficients)
        (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, loss.detach(), terms


@dataclass(frozen=True)
class UpdateMetrics:
    """Diagnostics of one update: means over the minibatches that were evaluated.

    Attributes:
        approx_kl: mean over the last epoch that was begun, as SB3 logs it.
        n_updates: gradient steps taken.
        stopped_early: the KL divergence ended the update.
        finite: no loss, gradient or parameter was NaN or infinite, nor is a loss of the networks
            as the update leaves them.
    """

    policy_loss: float
    value_loss: float
    entropy_loss: float
    loss: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    std: float | None
    n_updates: int
    stopped_early: bool
    finite: bool

    def scalars(self) -> dict[str, float]:
        """As they are logged, under Stable-Baselines3's tags."""
        scalars = {
            "train/policy_gradient_loss": self.policy_loss,
            "train/value_loss": self.value_loss,
            "train/entropy_loss": self.entropy_loss,
            "train/loss": self.loss,
            "train/approx_kl": self.approx_kl,
            "train/clip_fraction": self.clip_fraction,
            "train/grad_norm": self.grad_norm,
            "train/stopped_early": float(self.stopped_early),
        }
        return scalars if self.std is None else {**scalars, "train/std": self.std}


def update(
    networks: ActorCritic,
    optimizer: OptimizerState,
    batch: Batch,
    coefficients: Coefficients,
    *,
    epoch: EpochFunction,
    hyperparameters: Hyperparameters,
    generator: torch.Generator,
) -> tuple[OptimizerState, UpdateMetrics]:
    """Epochs of shuffled minibatches over the valid rows; changes the networks.

    Every row is visited once an epoch, in a fresh order. A KL stop ends all epochs, before the
    step that would have gone too far.
    """
    if hyperparameters.normalize_advantage == "rollout":
        batch = batch._replace(advantages=losses.normalize_advantages(batch.advantages))
    device = batch.log_probs.device
    active = torch.ones((), dtype=torch.bool, device=device)
    learner = Learner(flatten_parameters(networks), optimizer, active)
    epochs: list[StepMetrics] = []
    for _ in range(hyperparameters.n_epochs):
        order = torch.randperm(batch.size, generator=generator).to(device)
        learner, metrics = epoch(learner, batch, order, coefficients)
        epochs.append(metrics)
        if not bool(learner.active):  # the one point of an epoch where the host waits
            break
    load_parameters(networks, learner.parameters)
    summary = _summarise(epochs, networks, batch)
    usable = _usable(networks, batch.rows(order[: hyperparameters.batch_size]))
    return learner.optimizer, replace(summary, finite=summary.finite and usable)


def _usable(networks: ActorCritic, minibatch: Batch) -> bool:
    """What a next loss is made of is finite after the last step, too: no later one would tell."""
    with torch.no_grad():
        policy, values = networks(minibatch.observations)
        log_probs = policy.log_prob(minibatch.actions)
    return bool(torch.isfinite(log_probs).all() and torch.isfinite(values.square()).all())


def _summarise(epochs: list[StepMetrics], networks: ActorCritic, batch: Batch) -> UpdateMetrics:
    steps = join(epochs)
    seen = steps.evaluated
    last_epoch = seen.clone()
    last_epoch[: len(seen) - len(epochs[-1].loss)] = False
    evaluated = torch.stack(steps[:-2])[:, seen]  # [diagnostics, minibatches evaluated]
    policy, value, entropy, loss, _, clipped, grad_norm = evaluated.mean(dim=1).tolist()
    parameters = flatten_parameters(networks)
    finite = bool(torch.isfinite(evaluated).all() and torch.isfinite(parameters).all())
    return UpdateMetrics(
        policy_loss=policy,
        value_loss=value,
        entropy_loss=entropy,
        loss=loss,
        approx_kl=float(steps.approx_kl[last_epoch].mean()),
        clip_fraction=clipped,
        grad_norm=grad_norm,
        std=_mean_std(networks, batch),
        n_updates=int(steps.applied.sum()),
        stopped_early=finite and not bool(steps.applied.all()),
        finite=finite,
    )


def _mean_std(networks: ActorCritic, batch: Batch) -> float | None:
    """Mean standard deviation of the policy after the update; None where it has none."""
    with torch.no_grad():
        policy = networks.policy(batch.observations[:1])
    return float(policy.log_std.exp().mean()) if isinstance(policy, DiagonalGaussian) else None
