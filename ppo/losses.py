"""The loss terms of PPO, one mathematical operation per function.

Everything is per row of a minibatch, [B], and returns a scalar tensor unless it says otherwise.
"""

import torch
from torch import Tensor

ADVANTAGE_EPSILON = 1e-8


def normalize_advantages(advantages: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) over the rows given, with n - 1 in the standard deviation.

    A single row, or rows without spread, give zeros. Shape [B] in and out.
    """
    _check_rows(advantages=advantages)
    # Subtracting a row first makes constants cancel exactly, whatever the mean rounds to; in
    # float64 the squares of large advantages do not overflow.
    shifted = advantages.double() - advantages[0].double()
    centred = shifted - shifted.mean()
    variance = centred.square().sum() / max(advantages.shape[0] - 1, 1)
    return (centred / (variance.sqrt() + ADVANTAGE_EPSILON)).to(advantages.dtype)


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, *, clip_range: float | Tensor) -> Tensor:
    """The clipped surrogate objective, negated so that it is minimised.

        L = -mean(min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A))

    Args:
        ratio: pi(a|s) / pi_old(a|s), [B].
        advantages: as the policy uses them (normalised or not), [B].
        clip_range: eps.

    Reference: Schulman et al. 2017, arXiv:1707.06347, eq. 7.
    """
    _check_rows(ratio=ratio, advantages=advantages)
    # The stubs do not know that clamp takes either kind of bound.
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def value_loss(
    values: Tensor,
    returns: Tensor,
    *,
    old_values: Tensor | None = None,
    clip_range_vf: float | None = None,
) -> Tensor:
    """Mean squared error of the critic, without one half.

    With `clip_range_vf`, the prediction may move at most that far from `old_values`, the values
    stored at collection; the unit is that of the (scaled) returns. All tensors [B].
    """
    _check_rows(values=values, returns=returns)
    if clip_range_vf is not None:
        if old_values is None:
            raise ValueError("clip_range_vf needs old_values, the values stored at collection")
        _check_rows(values=values, old_values=old_values)
        values = old_values + torch.clamp(values - old_values, -clip_range_vf, clip_range_vf)
    return (values - returns).square().mean()


def approx_kl(logratio: Tensor) -> Tensor:
    """KL(pi_old || pi) from samples of pi_old: mean((ratio - 1) - logratio), never negative.

    Reference: Schulman 2020, "Approximating KL divergence", estimator k3.
    """
    _check_rows(logratio=logratio)
    return (torch.expm1(logratio) - logratio).mean()


def clip_fraction(ratio: Tensor, *, clip_range: float | Tensor) -> Tensor:
    """Share of rows whose ratio has left [1 - eps, 1 + eps]."""
    _check_rows(ratio=ratio)
    return ((ratio - 1.0).abs() > clip_range).to(ratio.dtype).mean()


def explained_variance(predictions: Tensor, targets: Tensor) -> float:
    """1 - Var(targets - predictions) / Var(targets); NaN where the targets have no spread.

    1 is a perfect critic, 0 is no better than a constant, below 0 is worse than one.
    """
    _check_rows(predictions=predictions, targets=targets)
    targets64 = targets.detach().double()
    residuals = targets64 - predictions.detach().double()
    if bool((targets64 == targets64[0]).all()):
        return float("nan")
    return float(1.0 - residuals.var(correction=0) / targets64.var(correction=0))


def _check_rows(**tensors: Tensor) -> None:
    """All [B] with the same B >= 1: a silent [B, 1] - [B] would broadcast to [B, B]."""
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if tensor.ndim != 1 or tensor.shape != first.shape or tensor.shape[0] == 0:
            shapes = {key: list(value.shape) for key, value in tensors.items()}
            raise ValueError(f"{name} must be [B] like the others, with B >= 1; got {shapes}")
