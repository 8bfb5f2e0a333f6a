"""What an advantage is made of: rewards, bootstrapped values, and the value it is held against."""

from typing import NamedTuple

import numpy as np

from ppo.diagnose.rows import Floats, Rows, backward_sums


class Addends(NamedTuple):
    """Three numbers for every row, [R] each, whose sum is the advantage.

    Attributes:
        rewards: sum over the rest of the chain of (gamma lambda)^l r.
        bootstrapped: gamma (1 - lambda) times the sum of (gamma lambda)^(j-1) V of the states in
            between, and gamma (gamma lambda)^(L-1) V of the state at its end; 0 after a
            termination.
        minus_value: -V(s_t).
    """

    rewards: Floats
    bootstrapped: Floats
    minus_value: Floats


def addends(rows: Rows, *, gamma: float, gae_lambda: float) -> Addends:
    """The three addends of every row's advantage.

    The lambda-return is a mixture of k-step returns: each state on the way is bootstrapped from
    with weight (1 - lambda), and the end of the chain with all the weight that is left.

    Reference: Schulman et al. 2015, arXiv:1506.02438, eq. 16, with the sums taken apart.
    """
    decay = gamma * gae_lambda * rows.continues
    weight = np.where(rows.continues, 1.0 - gae_lambda, 1.0) * rows.bootstraps
    # A next value after a termination is nobody's value, and may be anything.
    reached = np.where(rows.bootstraps, rows.next_values, 0.0)
    return Addends(
        rewards=backward_sums(rows.rewards, decay),
        bootstrapped=backward_sums(gamma * weight * reached, decay),
        minus_value=-rows.values,
    )


def realised_returns(rows: Rows, *, gamma: float) -> Floats:
    """Discounted rewards from every row to the end of its episode, [R].

    Where the episode did not terminate, what comes after its last row is V of the state reached.
    A row that a rollout's end cut goes on with the next row of its episode, if that is there.
    """
    ended = rows.terminated | rows.truncated
    same_episode = np.append(
        (rows.env[1:] == rows.env[:-1]) & (rows.episode[1:] == rows.episode[:-1]), False
    )
    goes_on = ~ended & same_episode
    tail = np.where(~goes_on & rows.bootstraps, gamma * rows.next_values, 0.0)
    return backward_sums(rows.rewards + tail, gamma * goes_on)
