"""Generalised advantage estimation with two gates.

    bootstrap_t = not terminated_t
    continue_t  = not (terminated_t or truncated_t or cut_t)
    delta_t     = r_t + gamma * bootstrap_t * V(next_t) - V(s_t)
    A_t         = delta_t + gamma * lambda * continue_t * A_{t+1}
    target_t    = A_t + V(s_t)

The first gate asks whether the state that was reached has a future at all; the second, whether
the next row of the array is that future. A time limit closes the second and leaves the first
open. Every function is pure, time-major `[T, N]`, and carries no gradient.
"""

import math

import torch
from torch import Tensor


def td_residuals(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    *,
    gamma: float,
) -> Tensor:
    """One-step temporal-difference residuals.

        delta_t = r_t + gamma * bootstrap_t * V(next_t) - V(s_t)

    Args:
        rewards: r_t as the learner sees them, [T, N], float32 or float64.
        values: V(s_t) of the critic snapshot at collection, [T, N].
        next_values: V of the state that row t reached, before any reset, [T, N]; ignored where
            the row terminated.
        terminated: the task itself ended at row t, bool [T, N].
        gamma: discount per env step, in [0, 1].

    Returns:
        delta, [T, N], in the dtype that went in, without gradient.

    Raises:
        ValueError: if shapes or dtypes differ, a flag is not bool, a number is not finite, gamma
            is outside [0, 1], or the result overflows.

    Reference: Schulman et al. 2015, arXiv:1506.02438, eq. 10.
    """
    _check_unit_interval("gamma", gamma)
    _check_numbers(rewards=rewards, values=values, next_values=next_values)
    _check_flags(rewards, terminated=terminated)
    with torch.no_grad():
        delta = _residuals(rewards, values, next_values, terminated, gamma)
    _check_no_overflow(td_residuals=delta)
    return delta


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    cut: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and lambda-return targets by GAE.

        A_t      = delta_t + gamma * lambda * continue_t * A_{t+1}
        target_t = A_t + V(s_t)

    Truncated and cut rows bootstrap from `next_values`; terminated rows ignore it, also when both
    flags are set. The last row is always cut. Both results come from one residual, so a value
    target cannot disagree with its advantage.

    Args:
        rewards: r_t as the learner sees them, [T, N], float32 or float64.
        values: V(s_t) of the critic snapshot at collection, [T, N].
        next_values: V of the state that row t reached, before any reset, [T, N].
        terminated: the task itself ended at row t, bool [T, N].
        truncated: something outside the task ended the episode (a time limit), bool [T, N].
        gamma: discount per env step, in [0, 1].
        gae_lambda: weight of longer estimates, in [0, 1]; 0 is one-step TD, 1 the discounted
            rewards up to the end of the fragment plus its bootstrapped value.
        cut: the collector stopped at row t while the episode went on, bool [T, N].

    Returns:
        Advantages and targets, each [T, N], in the dtype that went in, without gradient.

    Raises:
        ValueError: if shapes or dtypes differ, a flag is not bool, a number is not finite, gamma
            or lambda is outside [0, 1], or a result overflows; the message says which.

    Reference: Schulman et al. 2015, arXiv:1506.02438, eq. 16.
    """
    _check_unit_interval("gamma", gamma)
    _check_unit_interval("gae_lambda", gae_lambda)
    _check_numbers(rewards=rewards, values=values, next_values=next_values)
    _check_flags(rewards, terminated=terminated, truncated=truncated)
    if cut is not None:
        _check_flags(rewards, cut=cut)
    with torch.no_grad():
        delta = _residuals(rewards, values, next_values, terminated, gamma)
        continues = ~(terminated | truncated if cut is None else terminated | truncated | cut)
        advantages = _discounted_sums(delta, gamma * gae_lambda * continues.to(delta.dtype))
        returns = advantages + values
    _check_no_overflow(advantages=advantages, returns=returns)
    return advantages, returns


def bootstrap_weights(
    terminated: Tensor, truncated: Tensor, *, gamma: float, cut: Tensor | None = None
) -> Tensor:
    """Weight gamma^L that a lambda = 1 return still gives to a bootstrapped value.

    L counts the env steps from row t to the end of its fragment; the weight is zero where that
    end is a termination. Returns float64 [T, N].

    Raises:
        ValueError: as `compute_gae`.
    """
    _check_unit_interval("gamma", gamma)
    _check_flags(terminated, of="terminated", terminated=terminated, truncated=truncated)
    _check_time_major("terminated", terminated)
    zeros = torch.zeros(terminated.shape, dtype=torch.float64, device=terminated.device)
    if cut is not None:
        _check_flags(terminated, of="terminated", cut=cut)
    closes = (terminated | truncated if cut is None else terminated | truncated | cut).clone()
    closes[-1] = True
    # The estimator is linear in its inputs: its response to V = 1 at the ends is the weight.
    weights, _ = compute_gae(
        zeros, zeros, closes.double(), terminated, truncated, gamma=gamma, gae_lambda=1.0, cut=cut
    )
    return weights


def _residuals(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, gamma: float
) -> Tensor:
    bootstrap = (~terminated).to(rewards.dtype)
    return rewards + gamma * bootstrap * next_values - values


def _discounted_sums(delta: Tensor, decay: Tensor) -> Tensor:
    """The solution of A_t = delta_t + decay_t * A_{t+1} with A_T = 0, over [T, N].

    By doubling: `sums` holds delta_t + decay_t * delta_{t+1} + ... over the next 1, 2, 4, ... rows
    and `reach` the product of the same rows' decays, so that log2(T) steps over whole arrays do
    what one step per row would. Where a chain is closed, its decay is zero, and so is every
    product across it.
    """
    sums, reach, rows = delta.clone(), decay, 1
    while rows < len(delta):
        sums = torch.cat((torch.addcmul(sums[:-rows], reach[:-rows], sums[rows:]), sums[-rows:]))
        reach = torch.cat((reach[:-rows] * reach[rows:], torch.zeros_like(reach[-rows:])))
        rows *= 2
    return sums


def _check_unit_interval(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a number in [0, 1], not {value!r}")


def _check_numbers(**tensors: Tensor) -> None:
    rewards = tensors["rewards"]
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a torch tensor, not {type(tensor).__name__}")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be float32 or float64, not {tensor.dtype}")
        if tensor.dtype != rewards.dtype:
            raise ValueError(f"{name} is {tensor.dtype}, but rewards are {rewards.dtype}")
        _check_time_major(name, tensor)
        _check_shape(name, tensor, rewards)
        if not bool(torch.isfinite(tensor).all()):
            row, env = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            number = float(tensor[row, env].detach())
            raise ValueError(f"{name} must be finite, but is {number} at row {row}, env {env}")


def _check_time_major(name: str, tensor: Tensor) -> None:
    if tensor.ndim != 2 or tensor.numel() == 0:
        raise ValueError(f"{name} must be [T, N] with T, N >= 1, not {list(tensor.shape)}")


def _check_flags(like: Tensor, of: str = "rewards", **flags: Tensor) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, Tensor) or flag.dtype != torch.bool:
            kind = flag.dtype if isinstance(flag, Tensor) else type(flag).__name__
            raise ValueError(f"{name} must be a bool tensor, not {kind}")
        _check_shape(name, flag, like, of)


def _check_shape(name: str, tensor: Tensor, like: Tensor, of: str = "rewards") -> None:
    if tensor.shape != like.shape:
        shape, expected = list(tensor.shape), list(like.shape)
        raise ValueError(f"{name} has shape {shape}, but {of} have {expected}")


def _check_no_overflow(**results: Tensor) -> None:
    for name, result in results.items():
        if not math.isfinite(float(result.abs().max())):
            raise ValueError(f"{name} overflowed {result.dtype}: rewards or values are too large")
