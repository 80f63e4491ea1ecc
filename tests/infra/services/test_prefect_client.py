"""A client of Prefect's API says nothing to a stranger, also where the server dies just before the call."""

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from infra.services.prefect_client import guarded_client
from tests.conftest import free_port
from tests.flows.test_prefect_lost import stranger_at


@pytest.mark.parametrize("there", [True, False])
def test_each_connection_is_checked_once_it_is_there(there: bool) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    asked: list[bool] = []

    def serves(*, now: bool = False) -> bool:
        asked.append(now)
        return there

    with (
        stranger_at(url) as heard,
        temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}),
        guarded_client(serves, auth=("user", "word")) as client,
    ):
        for _ in range(2):
            if there:
                client.hello()
            else:
                with pytest.raises(httpx.ConnectError, match="another server than the one meant"):
                    client.hello()
    assert [each.split()[:2] for each in heard] == [["GET", "/api/hello"]] * (2 if there else 0)
    assert asked == [True] * 2  # the stranger of the tests keeps no connection open
