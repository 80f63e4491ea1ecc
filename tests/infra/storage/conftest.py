"""Locks that are given up and found dead within seconds."""

import pytest

from infra.storage import lock
from tests.infra.storage.owners import DEAD


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(lock, "DEAD_SECONDS", DEAD)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.1)
