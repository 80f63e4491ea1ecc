"""What the tests of the benches share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """A measurement in this process takes one thread, which other tests are not to keep."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
