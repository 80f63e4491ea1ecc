"""What stands in for the calls of a dispatch where a test gives a queue its events by hand."""

from types import SimpleNamespace
from typing import Any

from infra.cluster.exclusions import Exclusions
from infra.cluster.placement import PlacementConfig
from infra.cluster.timeline import Timeline


def calls() -> Any:
    """Of a cluster that forgets and waits for nothing."""
    return SimpleNamespace(
        timeline=Timeline(),
        silent=set(),
        forget=lambda *_: None,
        unawait=lambda _: None,
        took=None,
        lacking={},
        exclusions=Exclusions(PlacementConfig(), str),
    )
