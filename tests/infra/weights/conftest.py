"""Publishers of small versions, and readers who do not wait."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.weights import mirror
from infra.weights.publisher import Publisher
from infra.weights.version import SyncConfig
from tests.infra.conftest import empty_place
from tests.infra.weights.versions import CONFIG, WINDOW


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow), "nas"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty place. While one waits, versions cross S3 in `test_weights_faults.py` alone."""
    return empty_place(request, tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UNSEEN_SECONDS", "UNSEEN_HERE_SECONDS", "TORN_SECONDS"):
        monkeypatch.setattr(mirror, name, 0.0)


@pytest.fixture
def open_publisher(place: str, tmp_path: Path) -> Iterator[Callable[..., Publisher]]:
    """Publishers of one run, whose background is done when the test ends."""
    opened = []
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_text('{"model": "small"}')

    def make(config: SyncConfig = CONFIG) -> Publisher:
        opened.append(Publisher(place, config, window=WINDOW, files=files, sampling={"temperature": 1.0}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
