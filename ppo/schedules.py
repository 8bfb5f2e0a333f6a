"""Values that change over a run, by env steps done when an iteration starts."""

ADAPTIVE_KL_FACTOR = 1.5


def linear(initial: float, *, env_steps: int, total_timesteps: int) -> float:
    """From `initial` at env step 0 down to 0 at the end of the budget, and never below."""
    return initial * max(0.0, 1.0 - env_steps / total_timesteps)


def adaptive_kl(
    learning_rate: float, *, approx_kl: float, desired_kl: float, minimum: float, maximum: float
) -> float:
    """Learning rate of the next iteration, from the KL divergence that this one caused.

    Divided by 1.5 above twice the desired KL, multiplied by 1.5 below half of it, and kept within
    [minimum, maximum].
    """
    if approx_kl > 2.0 * desired_kl:
        learning_rate /= ADAPTIVE_KL_FACTOR
    elif approx_kl < 0.5 * desired_kl:
        learning_rate *= ADAPTIVE_KL_FACTOR
    return min(max(learning_rate, minimum), maximum)
