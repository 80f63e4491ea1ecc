"""Machines of one's own: network namespaces with an address each, with nothing else in common."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.links import network as networks


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[networks.Network]:
    """A network without machines; it has no way out."""
    if reason := networks.available():
        pytest.skip(reason)
    with networks.network(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="module")
def until() -> Callable[..., Any]:
    def poll(true: Callable[[], Any], seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.5)
        return found

    return poll
