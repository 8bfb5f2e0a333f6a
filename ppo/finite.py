"""Numbers that environments and networks exchange must be ones that float32 can hold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppo.errors import NonFiniteError

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_TINY = float(np.finfo(np.float32).tiny)


def check_finite(
    quantity: str,
    numbers: NDArray[Any],
    *,
    env_step: int | NDArray[np.int64],
    of: str = "",
) -> None:
    """Refuse NaN, infinity, and what would overflow float32.

    Args:
        quantity: "reward" or "observation".
        numbers: of every environment, [N] or [N, D].
        env_step: where that was, one number or one for each environment, [N].
        of: what the env steps are counted in, where it is not the run.

    Raises:
        NonFiniteError: naming the first environment that is at fault.
    """
    if (np.abs(numbers) <= FLOAT32_MAX).all():  # false for NaN, too
        return
    usable = (np.abs(numbers) <= FLOAT32_MAX).reshape(numbers.shape[0], -1).all(axis=1)
    env = int(usable.argmin())
    shown = np.array2string(numbers[env], threshold=8, precision=4, max_line_width=10_000)
    kind = "non-finite" if not np.isfinite(numbers[env]).all() else "too large (for float32)"
    place = int(np.broadcast_to(env_step, numbers.shape[:1])[env])
    raise NonFiniteError(
        f"environment {env} returned a {kind} {quantity} at env step {place}{of}: {shown}"
    )


def check_policy(outputs: NDArray[Any], *, env_step: int, of: str = "") -> None:
    """Refuse outputs of the policy's network, [N, n_outputs], that are no numbers to act on.

    Args:
        outputs: of every environment.
        env_step: before which they were to be acted on.
        of: what the env steps are counted in, where it is not the run.

    Raises:
        NonFiniteError: saying that the parameters are at fault, and not the environment.
    """
    if not np.isfinite(outputs).all():
        raise NonFiniteError(
            f"the policy's outputs are not finite at env step {env_step}{of}: its parameters have"
            " blown up; a lower ppo.learning_rate may help"
        )
