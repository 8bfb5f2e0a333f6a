"""What all tests share."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As a run has it: for such small tensors, more threads only wait for each other."""
    torch.set_num_threads(1)
