"""A service that ends with its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.services.supervisor import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "service", tmp_path / "service.log")
    made.hold()
    yield made
    made.release()
