"""What a page of a stranger, open in somebody's browser, can send to a server of this machine, and what it gets."""

import http.client
import ssl
import urllib.parse
from collections.abc import Mapping

FOREIGN = "https://evil.example"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "prefect",
}


def status(
    url: str,
    method: str = "GET",
    body: str | None = None,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> int:
    """The status of the answer. `headers` replace those that a browser or a program would send."""
    where = urllib.parse.urlsplit(url)
    made = (
        http.client.HTTPSConnection(where.netloc, timeout=20, context=context)
        if where.scheme == "https"
        else http.client.HTTPConnection(where.netloc, timeout=20)
    )
    try:
        made.request(method, where.path or "/", body, headers)
        return made.getresponse().status
    finally:
        made.close()


def refused(url: str, password: Mapping[str, str], context: ssl.SSLContext | None = None) -> dict[str, int]:
    """The statuses that a stranger gets at `url`, by what gives it away."""
    asked = {"Content-Type": "application/json", **password}

    def got(method: str, body: str | None = None, **headers: str) -> int:
        return status(url, method, body, context, **headers)

    found = {
        "nothing": got("POST", "{}", **{"Content-Type": "application/json"}),
        "a foreign page": got("POST", "{}", Origin=FOREIGN, **asked),
        "a foreign name": got("POST", "{}", Host="evil.example", **asked),
        "a preflight": got("OPTIONS", Origin=FOREIGN, **{"Access-Control-Request-Method": "POST"}),
        "a foreign socket": got("GET", Origin=FOREIGN, **UPGRADE, **password),
        "a socket of a foreign name": got("GET", Host="evil.example", **UPGRADE, **password),
    }
    if not password:  # nobody has one: a certificate stands for it, or nothing is secret
        del found["nothing"]
    return found
