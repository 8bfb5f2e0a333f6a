"""Independent estimators in plain Python, from the definitions rather than the recursion."""

import math
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Column:
    """One environment's rows in time order; a row without a flag continues into the next."""

    rewards: list[float]
    values: list[float]
    next_values: list[float]
    terminated: list[bool]
    truncated: list[bool]
    cut: list[bool]

    def last_row_of_fragment(self, t: int) -> int:
        """Index of the row at which the fragment that holds row t ends."""
        for row in range(t, len(self.rewards)):
            if self.terminated[row] or self.truncated[row] or self.cut[row]:
                return row
        return len(self.rewards) - 1

    def reached_value(self, row: int) -> float:
        """What the state that row reached is worth: nothing after a termination."""
        return 0.0 if self.terminated[row] else self.next_values[row]


def k_step_advantage(column: Column, t: int, k: int, gamma: float) -> float:
    """k real rewards, then a bootstrapped value, less the baseline."""
    rewards = [gamma**i * column.rewards[t + i] for i in range(k)]
    tail = gamma**k * column.reached_value(t + k - 1)
    return math.fsum([*rewards, tail, -column.values[t]])


def mixture_advantages(column: Column, gamma: float, gae_lambda: float) -> list[float]:
    """Mixture of all k-step advantages; the longest one takes the weight that is left."""
    advantages = []
    for t in range(len(column.rewards)):
        length = column.last_row_of_fragment(t) - t + 1
        weights = [(1 - gae_lambda) * gae_lambda ** (k - 1) for k in range(1, length)]
        weights.append(gae_lambda ** (length - 1))
        assert math.isclose(math.fsum(weights), 1.0, abs_tol=1e-12)
        estimates = [k_step_advantage(column, t, k, gamma) for k in range(1, length + 1)]
        products = (w * a for w, a in zip(weights, estimates, strict=True))
        advantages.append(math.fsum(products))
    return advantages


@dataclass(frozen=True)
class Trajectories:
    """The same rows twice: as tensors [T, N], and as one column for each environment."""

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    terminated: Tensor
    truncated: Tensor
    cut: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Positional arguments of compute_gae."""
        return self.rewards, self.values, self.next_values, self.terminated, self.truncated

    @property
    def columns(self) -> list[Column]:
        """One for each environment."""
        fields = (*self.inputs, self.cut)
        return [Column(*(f[:, n].tolist() for f in fields)) for n in range(self.rewards.shape[1])]

    def map(self, change) -> "Trajectories":
        """With `change` applied to every tensor."""
        return Trajectories(*(change(f) for f in (*self.inputs, self.cut)))


# A busy machine makes drawing slow; that says nothing about the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ROW_ENDS = ("goes on", "goes on", "goes on", "terminated", "truncated", "both", "cut")


def trajectories_from(ends, rewards, values, reached) -> Trajectories:
    """Consistent rows from [T][N] lists: a row that goes on reaches the next row's state."""
    end = [[ROW_ENDS.index(e) for e in row] for row in ends]
    codes = torch.tensor(end)
    terminated = (codes == ROW_ENDS.index("terminated")) | (codes == ROW_ENDS.index("both"))
    truncated = (codes == ROW_ENDS.index("truncated")) | (codes == ROW_ENDS.index("both"))
    cut = codes == ROW_ENDS.index("cut")
    value = torch.tensor(values, dtype=torch.float64)
    next_values = torch.tensor(reached, dtype=torch.float64)
    goes_on = ~(terminated | truncated | cut)[:-1]
    next_values[:-1] = torch.where(goes_on, value[1:], next_values[:-1])
    reward = torch.tensor(rewards, dtype=torch.float64)
    return Trajectories(reward, value, next_values, terminated, truncated, cut)


@st.composite
def trajectories(draw, *, max_rows: int = 12, max_envs: int = 3, cuts: bool = True):
    """Trajectories with every kind of boundary, the last row's included."""
    n_rows, n_envs = draw(st.integers(1, max_rows)), draw(st.integers(1, max_envs))
    ends = st.sampled_from(ROW_ENDS if cuts else [e for e in ROW_ENDS if e != "cut"])
    numbers = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))

    def table(elements):
        row = st.lists(elements, min_size=n_envs, max_size=n_envs)
        return draw(st.lists(row, min_size=n_rows, max_size=n_rows))

    return trajectories_from(table(ends), table(numbers), table(numbers), table(numbers))


def random_trajectories(n_rows: int, n_envs: int, seed: int = 0, *, cuts: bool = True):
    """A large one, from a seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(n_rows, n_envs, generator=generator, dtype=torch.float64).tolist()

    n_kinds = len(ROW_ENDS) if cuts else len(ROW_ENDS) - 1
    codes = torch.randint(0, n_kinds, (n_rows, n_envs), generator=generator).tolist()
    ends = [[ROW_ENDS[code] for code in row] for row in codes]
    return trajectories_from(ends, normal(), normal(), normal())
