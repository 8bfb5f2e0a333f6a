from dataclasses import fields, replace

import pytest
import torch

from ppo.rollout import Batch, Rollout, flatten_valid

T, N, D, A = 3, 2, 4, 2


def numbered(valid=None):
    """Every row's numbers say (t, n): 10 * t + n, plus a hundred for each column."""
    row = 10 * torch.arange(T)[:, None] + torch.arange(N)
    columns = [row + 100 * k for k in range(8)]
    wide = [columns[k][..., None].expand(T, N, size) for k, size in enumerate((D, D, A))]
    flags = torch.zeros(T, N, dtype=torch.bool)
    everywhere = torch.ones(T, N, dtype=torch.bool)
    return Rollout(
        *wide, *columns[3:8], flags, flags.clone(), everywhere if valid is None else valid
    )


def returns_and_advantages(rollout):
    return rollout.rewards + 1000, rollout.rewards + 2000


def test_rows_without_an_action_are_left_out_of_every_column():
    valid = torch.tensor([[True, False], [True, True], [False, True]])
    rollout = numbered(valid)
    batch = flatten_valid(rollout, *returns_and_advantages(rollout))
    rows = torch.tensor([0, 10, 11, 21])
    assert rollout.n_valid == batch.size == 4
    assert batch.observations.tolist() == [[row] * D for row in rows.tolist()]
    assert batch.actions.tolist() == [[200 + row] * A for row in rows.tolist()]
    assert batch.log_probs.tolist() == (300 + rows).tolist()
    assert batch.values.tolist() == (600 + rows).tolist()
    assert batch.advantages.tolist() == (1400 + rows).tolist()
    assert batch.returns.tolist() == (2400 + rows).tolist()


def test_all_rows_are_kept_in_time_major_order():
    rollout = numbered()
    batch = flatten_valid(rollout, *returns_and_advantages(rollout))
    assert batch.log_probs.tolist() == [300, 301, 310, 311, 320, 321]
    assert batch.observations.shape == (T * N, D)
    assert batch.actions.shape == (T * N, A)


def test_no_valid_row_gives_an_empty_batch():
    rollout = numbered(torch.zeros(T, N, dtype=torch.bool))
    assert flatten_valid(rollout, *returns_and_advantages(rollout)).size == rollout.n_valid == 0


@pytest.mark.parametrize("name", [field.name for field in fields(Rollout)])
def test_a_column_of_another_length_is_refused(name):
    rollout = numbered()
    with pytest.raises(ValueError, match=r"is \[.*\] in a rollout of \["):
        replace(rollout, **{name: getattr(rollout, name)[:-1]})


def test_rows_keep_the_columns_together():
    batch = Batch(*(torch.arange(7) + 10 * k for k in range(6)))
    picked = batch.rows(torch.tensor([4, 0, 4]))
    assert [column.tolist() for column in picked] == [
        [10 * k + 4, 10 * k, 10 * k + 4] for k in range(6)
    ]
