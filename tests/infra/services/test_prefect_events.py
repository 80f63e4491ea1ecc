"""Events wait until Prefect's server has them, and a stranger on its port hears nothing."""

import time
from pathlib import Path

from prefect.events import emit_event
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from infra.services.prefect_events import AWAY_SECONDS, Outbox
from infra.services.prefect_link import PrefectLink
from tests.conftest import free_port
from tests.flows.test_prefect_lost import stranger_at
from tests.processes import until


class JustDied(PrefectLink):
    """To a home's server that answered when it was asked last."""

    def __init__(self, home: Path, url: str) -> None:
        super().__init__(home, url)
        self.is_ours = True
        self.asked: list[bool] = []

    def serves(self, *, now: bool = False) -> bool:
        self.asked.append(now)
        return not now


def test_a_stranger_that_has_just_taken_the_port_hears_nothing(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    link = JustDied(tmp_path, url)
    with stranger_at(url) as heard, temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: "user:word"}):
        outbox = Outbox(link)
        outbox.open()
        emit_event("something", {"prefect.resource.id": "one"})
        until(lambda: link.asked.count(True) >= 2, seconds=10 * AWAY_SECONDS)
        began = time.monotonic()
        assert outbox.close(10.0) == 1
        assert time.monotonic() - began < 5.0
    assert heard == []
