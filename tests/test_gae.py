"""The two-gate estimator against hand calculations, definitions and identities."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo.gae import bootstrap_weights, compute_gae, td_residuals
from tests.oracles import mixture_advantages, random_trajectories, trajectories, unhurried

DATA = json.loads((Path(__file__).parent / "data" / "gae_cases.json").read_text())
CASES = {case["name"]: case for case in DATA["cases"]}

unit = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


def column(numbers, dtype=torch.float64):
    return torch.tensor(numbers, dtype=dtype).reshape(-1, 1)


def inputs_of(case, dtype=torch.float64):
    numbers = [column(case[k], dtype) for k in ("rewards", "values", "next_values")]
    flags = [column(case[k], torch.bool) for k in ("terminated", "truncated")]
    return (*numbers, *flags)


def estimate(case, dtype=torch.float64):
    return compute_gae(
        *inputs_of(case, dtype),
        gamma=case["gamma"],
        gae_lambda=case["gae_lambda"],
        cut=column(case["cut"], torch.bool),
    )


def small(dtype=torch.float64):
    """Two rows of three environments, for the refusals."""
    numbers = [torch.ones(2, 3, dtype=dtype) for _ in range(3)]
    flags = [torch.zeros(2, 3, dtype=torch.bool) for _ in range(2)]
    names = ("rewards", "values", "next_values", "terminated", "truncated")
    return dict(zip(names, [*numbers, *flags], strict=True))


# Literal cases


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_gives_the_expected_numbers(name, dtype):
    case = CASES[name]
    advantages, returns = estimate(case, dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert advantages.flatten().tolist() == pytest.approx(case["advantages"], abs=tolerance)
    assert returns.flatten().tolist() == pytest.approx(case["returns"], abs=tolerance)


@pytest.mark.parametrize(
    ("name", "fault"), [(n, fault) for n, case in CASES.items() for fault in case.get("wrong", {})]
)
def test_case_differs_from_the_known_wrong_answers(name, fault):
    advantages = estimate(CASES[name])[0].flatten().tolist()
    assert advantages != pytest.approx(CASES[name]["wrong"][fault], abs=1e-6)


def test_all_cases_at_once_are_the_cases_one_by_one():
    """Cases of equal length and hyperparameters side by side: no environment reads another."""
    names = ["truncation_inside_a_rollout", "both_flags_terminated_wins"]
    columns = [inputs_of(CASES[name]) for name in names]
    stacked = [torch.cat(parts, dim=1) for parts in zip(*columns, strict=True)]
    advantages, _ = compute_gae(*stacked, gamma=0.9, gae_lambda=0.5)
    expected = torch.cat([column(CASES[name]["advantages"]) for name in names], dim=1)
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize(
    "moment", DATA["moments"], ids=lambda m: f"lambda={m['gae_lambda']},V={m['middle_value']}"
)
def test_exact_moments_of_the_two_step_experiment(moment):
    """Reward 0, then 0 or 2 with equal chance and a termination: both paths, side by side."""
    middle = moment["middle_value"]
    advantages, _ = compute_gae(
        torch.tensor([[0.0, 0.0], [0.0, 2.0]], dtype=torch.float64),
        torch.tensor([[0.9, 0.9], [middle, middle]], dtype=torch.float64),
        torch.tensor([[middle, middle], [0.0, 0.0]], dtype=torch.float64),
        torch.tensor([[False, False], [True, True]]),
        torch.zeros(2, 2, dtype=torch.bool),
        gamma=moment["gamma"],
        gae_lambda=moment["gae_lambda"],
    )
    first = advantages[0]
    assert float(first.mean()) == pytest.approx(moment["mean"], abs=1e-12)
    assert float(first.var(correction=0)) == pytest.approx(moment["variance"], abs=1e-12)


def test_every_committed_case_is_present():
    assert len(CASES) == len(DATA["cases"]) == 10
    assert len(DATA["moments"]) == 6
    assert sum(len(case.get("wrong", {})) for case in DATA["cases"]) == 4


def test_last_row_is_cut_whether_told_or_not():
    case = CASES["truncation_inside_a_rollout"]
    told = dict(case, cut=[False, False, True])
    assert torch.equal(estimate(case)[0], estimate(told)[0])


# Independent oracle


@given(trajectories(), unit, unit)
@settings(unhurried, max_examples=200)
def test_equals_the_mixture_of_k_step_estimates(rows, gamma, gae_lambda):
    advantages, returns = compute_gae(
        *rows.inputs, gamma=gamma, gae_lambda=gae_lambda, cut=rows.cut
    )
    for n, env in enumerate(rows.columns):
        expected = mixture_advantages(env, gamma, gae_lambda)
        assert advantages[:, n].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        targets = [a + v for a, v in zip(expected, env.values, strict=True)]
        assert returns[:, n].tolist() == pytest.approx(targets, rel=1e-9, abs=1e-9)


def test_equals_the_mixture_in_float32_on_a_long_rollout():
    rows = random_trajectories(256, 4)
    numbers = [tensor.float() for tensor in rows.inputs[:3]]
    advantages, _ = compute_gae(
        *numbers, rows.terminated, rows.truncated, gamma=0.99, gae_lambda=0.95, cut=rows.cut
    )
    for n, env in enumerate(rows.columns):
        expected = mixture_advantages(env, 0.99, 0.95)
        assert advantages[:, n].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


# Identities


@given(trajectories(), unit, unit, st.integers(0, 2**31))
@settings(unhurried, max_examples=150)
def test_value_error_travels_along_the_path_as_predicted(rows, gamma, gae_lambda, seed):
    """Two value functions on the same path: the advantages differ by a sum of value errors.

    -e(s_t) + gamma (1 - lambda) sum_j (gamma lambda)^(j-1) e(s_{t+j})
            + gamma (gamma lambda)^(L-1) e(s_{t+L}), the last zero after a termination.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = [
        torch.randn(rows.values.shape, generator=generator, dtype=torch.float64) for _ in range(2)
    ]
    error, error_reached = noise
    goes_on = ~(rows.terminated | rows.truncated | rows.cut)[:-1]
    error_reached[:-1] = torch.where(goes_on, error[1:], error_reached[:-1])

    def advantages(values, next_values):
        return compute_gae(
            rows.rewards,
            values,
            next_values,
            rows.terminated,
            rows.truncated,
            gamma=gamma,
            gae_lambda=gae_lambda,
            cut=rows.cut,
        )[0]

    difference = advantages(rows.values + error, rows.next_values + error_reached) - advantages(
        rows.values, rows.next_values
    )
    decay = gamma * gae_lambda
    for n, env in enumerate(rows.columns):
        for t in range(len(env.rewards)):
            end = env.last_row_of_fragment(t)
            length = end - t + 1
            middle = sum(decay ** (j - 1) * float(error[t + j, n]) for j in range(1, length))
            tail = 0.0 if env.terminated[end] else float(error_reached[end, n])
            expected = (
                -float(error[t, n])
                + gamma * (1 - gae_lambda) * middle
                + gamma * decay ** (length - 1) * tail
            )
            assert float(difference[t, n]) == pytest.approx(expected, abs=1e-9)


@given(trajectories(), unit)
@unhurried
def test_lambda_zero_is_the_residual(rows, gamma):
    advantages, returns = compute_gae(*rows.inputs, gamma=gamma, gae_lambda=0.0, cut=rows.cut)
    residuals = td_residuals(*rows.inputs[:4], gamma=gamma)
    assert torch.equal(advantages, residuals)
    for n, env in enumerate(rows.columns):
        targets = [r + gamma * env.reached_value(t) for t, r in enumerate(env.rewards)]
        assert returns[:, n].tolist() == pytest.approx(targets, abs=1e-10)


@given(trajectories(), unit)
@unhurried
def test_lambda_one_is_the_discounted_rewards_and_the_value_at_the_end(rows, gamma):
    _, returns = compute_gae(*rows.inputs, gamma=gamma, gae_lambda=1.0, cut=rows.cut)
    for n, env in enumerate(rows.columns):
        for t in range(len(env.rewards)):
            end = env.last_row_of_fragment(t)
            discounted = [gamma ** (i - t) * env.rewards[i] for i in range(t, end + 1)]
            tail = gamma ** (end - t + 1) * env.reached_value(end)
            expected = math.fsum([*discounted, tail])
            assert float(returns[t, n]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_residuals_by_hand():
    residuals = td_residuals(
        column([1, 0, 2]),
        column([1, 1.5, 0.5]),
        column([1.5, 0.5, 99]),
        column([False, False, True], torch.bool),
        gamma=0.9,
    )
    assert residuals.flatten().tolist() == pytest.approx([1.35, -1.05, 1.5])


def test_residuals_of_a_truncated_row_keep_the_bootstrap():
    """The residual takes no other flag than `terminated`, so a time limit cannot close it."""
    case = CASES["truncated_keeps_bootstrap"]
    residuals = td_residuals(*inputs_of(case)[:4], gamma=case["gamma"])
    assert residuals.item() == pytest.approx(1.7)


@given(trajectories(max_envs=9), unit, unit, st.randoms(use_true_random=False))
@unhurried
def test_permuting_environments_permutes_the_result(rows, gamma, gae_lambda, random):
    order = list(range(rows.rewards.shape[1]))
    random.shuffle(order)
    permuted = rows.map(lambda tensor: tensor[:, order])
    straight = compute_gae(*rows.inputs, gamma=gamma, gae_lambda=gae_lambda, cut=rows.cut)
    shuffled = compute_gae(*permuted.inputs, gamma=gamma, gae_lambda=gae_lambda, cut=permuted.cut)
    for before, after in zip(straight, shuffled, strict=True):
        assert torch.equal(before[:, order], after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wide_rollout_is_its_environments_one_by_one(dtype):
    """Wide enough for vector instructions and their remainder; equal to the last bit."""
    rows = random_trajectories(24, 37)
    numbers = [tensor.to(dtype) for tensor in rows.inputs[:3]]
    inputs = (*numbers, rows.terminated, rows.truncated)
    together = compute_gae(*inputs, gamma=0.99, gae_lambda=0.95, cut=rows.cut)
    for n in range(37):
        alone = compute_gae(
            *(tensor[:, n : n + 1] for tensor in inputs),
            gamma=0.99,
            gae_lambda=0.95,
            cut=rows.cut[:, n : n + 1],
        )
        for whole, one in zip(together, alone, strict=True):
            assert torch.equal(whole[:, n : n + 1], one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_layout_does_not_matter(dtype):
    rows = random_trajectories(24, 37)
    inputs = [*(tensor.to(dtype) for tensor in rows.inputs[:3]), rows.terminated, rows.truncated]
    strided = [tensor.T.contiguous().T for tensor in inputs]
    assert not strided[0].is_contiguous()
    plain = compute_gae(*inputs, gamma=0.99, gae_lambda=0.95)
    other = compute_gae(*strided, gamma=0.99, gae_lambda=0.95)
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize("kind", ["terminated", "truncated", "cut"])
def test_nothing_after_a_boundary_changes_what_is_before_it(kind):
    boundary = 5
    for seed in range(20):
        rows, other = random_trajectories(12, 9, seed), random_trajectories(12, 9, seed + 1000)
        getattr(rows, kind)[boundary] = True
        spliced = [
            torch.cat([mine[: boundary + 1], 1e6 * theirs[boundary + 1 :]])
            if mine.dtype != torch.bool
            else torch.cat([mine[: boundary + 1], theirs[boundary + 1 :]])
            for mine, theirs in zip(
                (*rows.inputs, rows.cut), (*other.inputs, other.cut), strict=True
            )
        ]
        straight = compute_gae(*rows.inputs, gamma=0.99, gae_lambda=0.95, cut=rows.cut)
        changed = compute_gae(*spliced[:5], gamma=0.99, gae_lambda=0.95, cut=spliced[5])
        for a, b in zip(straight, changed, strict=True):
            assert torch.equal(a[: boundary + 1], b[: boundary + 1])
            assert not torch.equal(a[boundary + 1 :], b[boundary + 1 :])


def test_what_comes_after_an_open_row_does_change_it():
    rows = random_trajectories(2, 1)
    for flag in (rows.terminated, rows.truncated, rows.cut):
        flag[0] = False
    changed = rows.rewards + torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    hyperparameters = {"gamma": 0.9, "gae_lambda": 0.5}
    before, _ = compute_gae(*rows.inputs, **hyperparameters)
    after, _ = compute_gae(changed, *rows.inputs[1:], **hyperparameters)
    assert float((after - before)[0]) == pytest.approx(0.45)


@given(trajectories(), unit, unit, st.floats(-1e6, 1e6))
@unhurried
def test_a_terminated_row_ignores_the_state_it_reached(rows, gamma, gae_lambda, value):
    poisoned = torch.where(rows.terminated, torch.full_like(rows.values, value), rows.next_values)
    straight = compute_gae(*rows.inputs, gamma=gamma, gae_lambda=gae_lambda, cut=rows.cut)
    changed = compute_gae(
        rows.rewards,
        rows.values,
        poisoned,
        rows.terminated,
        rows.truncated,
        gamma=gamma,
        gae_lambda=gae_lambda,
        cut=rows.cut,
    )
    assert all(torch.equal(a, b) for a, b in zip(straight, changed, strict=True))


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_truncated_row_takes_the_value_of_the_state_it_reached(row):
    case = CASES["truncation_inside_a_rollout"]
    truncated = [t == row for t in range(3)]
    richer = [v + (t == row) for t, v in enumerate(case["next_values"])]
    before, _ = estimate(dict(case, truncated=truncated))
    after, _ = estimate(dict(case, truncated=truncated, next_values=richer))
    assert float((after - before)[row]) == pytest.approx(0.9)


def test_a_perfect_critic_has_no_advantage_at_any_lambda():
    """Constant reward 1 for ever, cut by time limits: V = 1 / (1 - gamma) explains all of it."""
    gamma, shape = 0.9, (7, 2)
    value = torch.full(shape, 1 / (1 - gamma), dtype=torch.float64)
    truncated = torch.zeros(shape, dtype=torch.bool)
    truncated[3] = True
    for gae_lambda in (0.0, 0.5, 1.0):
        advantages, _ = compute_gae(
            torch.ones(shape, dtype=torch.float64),
            value,
            value,
            torch.zeros(shape, dtype=torch.bool),
            truncated,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        torch.testing.assert_close(advantages, torch.zeros_like(value), atol=1e-12, rtol=0)


# Numbers in, numbers out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_that_goes_in_comes_out(dtype):
    rows = small(dtype)
    advantages, returns = compute_gae(**rows, gamma=0.99, gae_lambda=0.95)
    assert (advantages.dtype, returns.dtype) == (dtype, dtype)
    assert advantages.shape == returns.shape == (2, 3)
    rows.pop("truncated")
    assert td_residuals(**rows, gamma=0.99).dtype == dtype


def test_gradients_do_not_flow():
    rows = small()
    for name in ("rewards", "values", "next_values"):
        rows[name].requires_grad_()
    advantages, returns = compute_gae(**rows, gamma=0.99, gae_lambda=0.95)
    assert not advantages.requires_grad
    assert not returns.requires_grad
    rows.pop("truncated")
    assert not td_residuals(**rows, gamma=0.99).requires_grad


def test_inputs_are_left_as_they_were():
    rows = random_trajectories(6, 3)
    fields = (*rows.inputs, rows.cut)
    copies = [tensor.clone() for tensor in fields]
    compute_gae(*rows.inputs, gamma=0.99, gae_lambda=0.95, cut=rows.cut)
    bootstrap_weights(rows.terminated, rows.truncated, gamma=0.99, cut=rows.cut)
    assert all(torch.equal(a, b) for a, b in zip(fields, copies, strict=True))


# Refusals


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, -math.inf, True, "0.9", None])
def test_hyperparameter_outside_the_unit_interval_is_refused(name, value):
    hyperparameters = {"gamma": 0.9, "gae_lambda": 0.9, name: value}
    with pytest.raises(ValueError, match=rf"^{name} must be a number in \[0, 1\], not "):
        compute_gae(**small(), **hyperparameters)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan])
def test_gamma_outside_the_unit_interval_is_refused_everywhere(value):
    rows = small()
    with pytest.raises(ValueError, match="gamma must be a number in"):
        bootstrap_weights(rows["terminated"], rows["truncated"], gamma=value)
    rows.pop("truncated")
    with pytest.raises(ValueError, match="gamma must be a number in"):
        td_residuals(**rows, gamma=value)


def refused(message, **changes):
    with pytest.raises(ValueError, match=message):
        compute_gae(**{**small(), **changes}, gamma=0.99, gae_lambda=0.95)


@pytest.mark.parametrize("name", ["values", "next_values", "terminated", "truncated", "cut"])
@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (3, 2)])
def test_shape_that_differs_is_refused(name, shape):
    """Shapes that would broadcast, too."""
    kind = torch.float64 if "values" in name else torch.bool
    expected = rf"^{name} has shape \[{shape[0]}, {shape[1]}\], but rewards have \[2, 3\]"
    refused(expected, **{name: torch.ones(shape).to(kind)})


@pytest.mark.parametrize("shape", [(), (6,), (2, 3, 1), (0, 3), (2, 0)])
def test_rows_that_are_not_time_major_are_refused(shape):
    """A trailing 1, a flat array, nothing at all."""
    names = ("rewards", "values", "next_values")
    changes = {name: torch.ones(shape, dtype=torch.float64) for name in names}
    flags = {name: torch.zeros(shape, dtype=torch.bool) for name in ("terminated", "truncated")}
    refused(r"^rewards must be \[T, N\] with T, N >= 1, not \[", **changes, **flags)


@pytest.mark.parametrize("name", ["values", "next_values"])
def test_dtype_that_differs_is_refused(name):
    changes = {name: torch.ones(2, 3, dtype=torch.float32)}
    refused(rf"^{name} is torch.float32, but rewards are torch.float64", **changes)


@pytest.mark.parametrize("name", ["rewards", "values", "next_values"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bool, torch.complex64])
def test_dtype_other_than_float32_and_float64_is_refused(name, dtype):
    refused(
        rf"^{name} must be float32 or float64, not {dtype}", **{name: torch.ones(2, 3).to(dtype)}
    )


@pytest.mark.parametrize("name", ["rewards", "values", "next_values"])
def test_a_number_that_is_no_tensor_is_refused(name):
    refused(rf"^{name} must be a torch tensor, not ndarray", **{name: torch.ones(2, 3).numpy()})


@pytest.mark.parametrize("name", ["terminated", "truncated", "cut"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8])
def test_flag_that_is_not_bool_is_refused(name, dtype):
    flag = torch.zeros(2, 3, dtype=dtype)
    refused(rf"^{name} must be a bool tensor, not {dtype}", **{name: flag})
    refused(rf"^{name} must be a bool tensor, not ndarray", **{name: flag.bool().numpy()})


@pytest.mark.parametrize("name", ["rewards", "values", "next_values"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_number_that_is_not_finite_is_refused_with_its_place(name, number):
    tensor = torch.ones(2, 3, dtype=torch.float64)
    tensor[1, 2] = number
    refused(rf"^{name} must be finite, but is {number} at row 1, env 2", **{name: tensor})
    rows = small()
    rows.pop("truncated")
    with pytest.raises(ValueError, match=f"^{name} must be finite"):
        td_residuals(**{**rows, name: tensor}, gamma=0.9)


def test_number_that_is_not_finite_is_refused_where_it_is_not_used():
    """After a termination, too: a NaN there says that something else is wrong."""
    rows = small()
    rows["terminated"][0, 0] = True
    rows["next_values"][0, 0] = math.nan
    with pytest.raises(ValueError, match="next_values must be finite, but is nan at row 0, env 0"):
        compute_gae(**rows, gamma=0.99, gae_lambda=0.95)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_advantages_that_overflow_are_refused(dtype, sign):
    rows = small(dtype)
    rows["rewards"][:] = sign * torch.finfo(dtype).max
    rows["values"][:] = -sign * torch.finfo(dtype).max
    with pytest.raises(ValueError, match=rf"^advantages overflowed {dtype}"):
        compute_gae(**rows, gamma=0.99, gae_lambda=0.95)
    rows.pop("truncated")
    with pytest.raises(ValueError, match=rf"^td_residuals overflowed {dtype}"):
        td_residuals(**rows, gamma=0.99)


def test_returns_that_overflow_are_refused():
    """The advantages are finite here; only A + V is not."""
    large = 0.9 * torch.finfo(torch.float32).max
    numbers = [[0, large], [large, 0], [large, 0]]
    rewards, values, next_values = (column(n, torch.float32) for n in numbers)
    off = torch.zeros(2, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^returns overflowed torch.float32"):
        compute_gae(rewards, values, next_values, off, off, gamma=1.0, gae_lambda=1.0)


def test_large_numbers_that_do_not_overflow_are_taken():
    rows = small(torch.float32)
    rows["rewards"][:] = 1e38
    advantages, _ = compute_gae(**rows, gamma=0.5, gae_lambda=0.5)
    assert float(advantages[0, 0]) == pytest.approx(1.25e38)


# Weight of the bootstrapped value


@given(trajectories(), unit)
@unhurried
def test_bootstrap_weights_by_counting_steps(rows, gamma):
    weights = bootstrap_weights(rows.terminated, rows.truncated, gamma=gamma, cut=rows.cut)
    assert weights.dtype == torch.float64
    for n, env in enumerate(rows.columns):
        for t in range(len(env.rewards)):
            end = env.last_row_of_fragment(t)
            expected = 0.0 if env.terminated[end] else gamma ** (end - t + 1)
            assert float(weights[t, n]) == pytest.approx(expected, abs=1e-12)


@given(trajectories(cuts=False), unit)
@unhurried
def test_bootstrap_weights_are_how_returns_answer_to_values_at_the_ends(rows, gamma):
    """Adding 1 to the value of every state reached at an end adds the weight to the return."""
    ends = rows.terminated | rows.truncated
    ends[-1] = True

    def returns(next_values):
        inputs = (rows.rewards, rows.values, next_values, rows.terminated, rows.truncated)
        return compute_gae(*inputs, gamma=gamma, gae_lambda=1.0)[1]

    answer = returns(rows.next_values + ends.double()) - returns(rows.next_values)
    weights = bootstrap_weights(rows.terminated, rows.truncated, gamma=gamma)
    torch.testing.assert_close(weights, answer, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("terminated", "truncated", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3).bool(), "terminated must be a bool tensor"),
        (torch.zeros(2, 3).bool(), torch.zeros(2, 3), "truncated must be a bool tensor"),
        (torch.zeros(2, 3).bool(), torch.zeros(3, 2).bool(), "truncated has shape"),
        (torch.zeros(2, 3).bool(), torch.zeros(2, 1).bool(), "truncated has shape"),
        (torch.zeros(0, 3).bool(), torch.zeros(0, 3).bool(), r"\[T, N\] with T, N >= 1"),
    ],
)
def test_bootstrap_weights_refuse_what_the_estimator_refuses(terminated, truncated, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_weights(terminated, truncated, gamma=0.9)


def test_bootstrap_weights_by_hand():
    terminated = column([False, False, True, False, False, False], torch.bool)
    truncated = column([False, False, False, False, True, False], torch.bool)
    weights = bootstrap_weights(terminated, truncated, gamma=0.5)
    assert weights.flatten().tolist() == [0, 0, 0, 0.25, 0.5, 0.5]
