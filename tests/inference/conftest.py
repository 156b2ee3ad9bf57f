"""One thread, for what is measured in processor time."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Threads that wait for one another spin, and spinning counts as processor time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
