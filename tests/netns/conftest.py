"""Machines of one's own: network namespaces with an address each, with nothing else in common."""

from collections.abc import Iterator

import pytest

from tests.links import network as networks


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[networks.Network]:
    """A network without machines; it has no way out."""
    if reason := networks.available():
        pytest.skip(reason)
    with networks.network(tmp_path_factory.mktemp("machines")) as made:
        yield made
