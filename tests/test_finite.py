"""Numbers from environments that the networks cannot take."""

import numpy as np
import pytest

from ppo.errors import NonFiniteError
from ppo.finite import check_finite


@pytest.mark.parametrize(
    ("number", "kind"),
    [(np.nan, "non-finite"), (-np.inf, "non-finite"), (1e300, "too large"), (-1e39, "too large")],
)
def test_the_environment_at_fault_is_named_with_its_own_env_step(number, kind):
    numbers = np.zeros((3, 2))
    numbers[1, 1] = number
    with pytest.raises(
        NonFiniteError, match=rf"^environment 1 returned a {kind}.* at env step 7: "
    ):
        check_finite("observation", numbers, env_step=np.array([5, 7, 9]))


def test_one_place_serves_all_environments():
    with pytest.raises(NonFiniteError, match=r"environment 2 .* reward at env step 40 of a test: "):
        check_finite("reward", np.array([0.0, 1.0, np.nan]), env_step=40, of=" of a test")


def test_what_float32_can_hold_passes():
    largest = float(np.finfo(np.float32).max)
    check_finite("reward", np.array([largest, -largest, 0.0]), env_step=0)
