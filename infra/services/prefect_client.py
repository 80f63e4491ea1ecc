"""Clients of Prefect's API that tell a stranger nothing: what takes the port of a server that has just died."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client

CONNECTED = "connection.connect_tcp.complete"  # an event of httpcore, of which httpx passes on all


class Serves(Protocol):
    """Whether Prefect's server is there, and the one meant; ``now``: asked anew, not remembered."""

    def __call__(self, *, now: bool = False) -> bool: ...


def guarded_client(serves: Serves, **settings: Any) -> SyncPrefectClient:
    """A client, to be entered, that sends nothing over a connection behind which is a stranger; `settings` are httpx's.
    Its requests raise `httpx.ConnectError` then."""
    client = get_client(sync_client=True, httpx_settings=settings)
    guard(client, serves)
    return client


def guard(client: SyncPrefectClient, serves: Serves) -> None:
    """Make a client one of those of `guarded_client`."""

    def trace(event: str, info: Mapping[str, Any]) -> None:
        # Who is asked after the connection is there: whoever took the port before holds it still, and cannot answer.
        if event == CONNECTED and not serves(now=True):
            info["return_value"].close()
            raise httpx.ConnectError("it is busy, or another server than the one meant answers there")

    def hook(request: httpx.Request) -> None:
        request.extensions["trace"] = trace

    hooks: dict[str, list[Callable[..., Any]]] = client._client.event_hooks  # Prefect has no way to it but this one
    client._client.event_hooks = {**hooks, "request": [*hooks["request"], hook]}
