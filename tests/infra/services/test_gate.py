"""Who passes the gate: pages of strangers do not, whatever the server behind it would say."""

import asyncio
import json
import time
from typing import Any

import pytest

from infra.services import gate as gates
from infra.services.asgi import GatedApplication
from infra.services.gate import Answer, Gate, basic, proof, signed
from infra.services.links import link

AUTH = "rlvf:secret"
HOST = ("host", "127.0.0.1:4200")
PASSWORD = ("authorization", f"Basic {basic(AUTH)}")
GATE = Gate(AUTH, 4200, ["192.168.1.5", "first", "fe80::1"])


def status(*headers: tuple[str, str], method: str = "POST", path: str = "/api/flows", query: str = "") -> int:
    """200 stands for a request that passes."""
    answer = GATE.answer(method, path, query, headers)
    return 200 if answer is None else answer.status


def cookie(until: float, auth: str = AUTH, port: int = 4200) -> tuple[str, str]:
    return "cookie", f"theme=dark; rlvf-{port}={signed(auth, 'page', until)}; other=1"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([HOST], 401),
        ([HOST, PASSWORD], 200),
        ([HOST, ("authorization", f"Basic {basic('rlvf:wrong')}")], 401),
        ([HOST, ("authorization", "Bearer secret")], 401),
        ([HOST, ("authorization", "Basic é")], 401),
        ([PASSWORD], 403),
        ([HOST, HOST, PASSWORD], 403),
        ([("host", "evil.example:4200"), PASSWORD], 403),
        ([("host", "127.0.0.1.evil.example"), PASSWORD], 403),
        ([("host", "[::1]:4200"), PASSWORD], 200),
        ([("host", "[fe80:0::1]:4200"), PASSWORD], 200),
        ([("host", "First:9000"), PASSWORD], 200),  # a tunnel has a port of its own
        ([("host", "[::1"), PASSWORD], 403),
        ([HOST, PASSWORD, ("origin", "http://127.0.0.1:4200")], 200),
        ([HOST, PASSWORD, ("origin", "https://evil.example")], 403),
        ([HOST, PASSWORD, ("origin", "http://127.0.0.1:9999")], 403),  # another program of this machine
        ([HOST, PASSWORD, ("origin", "null")], 403),
        ([HOST, PASSWORD, ("origin", "")], 403),
        ([HOST, PASSWORD, ("sec-fetch-site", "cross-site")], 403),
        ([HOST, PASSWORD, ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")], 403),
        ([HOST, PASSWORD, ("sec-fetch-site", "same-origin")], 200),
        ([HOST, cookie(time.time() + 10**6)], 200),
        ([HOST, cookie(time.time() - 1)], 401),
        ([HOST, cookie(time.time() + 60, "rlvf:wrong")], 401),
        ([HOST, cookie(time.time() + 60, port=5000)], 401),
        ([HOST, ("cookie", f"rlvf-4200={signed(AUTH, 'link', time.time() + 10**6)}")], 401),
        ([HOST, ("cookie", "rlvf-4200=zz.00")], 401),
    ],
)
def test_host_origin_and_secret_are_asked_for(headers: list[tuple[str, str]], expected: int) -> None:
    assert status(*headers) == expected


def test_a_link_sets_a_cookie_and_goes_on_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    address = link("http://127.0.0.1:4200/runs?a=1#/there", AUTH)
    path, _, rest = address.removeprefix("http://127.0.0.1:4200").partition("?")
    query, fragment = rest.split("#")
    assert fragment == "/there"
    answer = GATE.answer("GET", path, query, [HOST])
    assert isinstance(answer, Answer)
    assert answer.status == 200
    assert 'location.replace("/runs?a=1" + location.hash)' in answer.body
    (set_cookie,) = [value for name, value in answer.headers if name == "set-cookie"]
    assert "HttpOnly; SameSite=Strict" in set_cookie
    assert status(HOST, ("cookie", set_cookie.partition(";")[0]), method="GET") == 200
    assert status(HOST, method="POST", query=query) == 401  # it opens a page, and does nothing else
    assert status(("host", "evil.example"), method="GET", query=query) == 403
    later = time.time() + gates.LINK_SECONDS + 1
    monkeypatch.setattr(gates.time, "time", lambda: later)
    assert status(HOST, method="GET", query=query) == 401


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "/</script><script>alert(1)//"])
def test_a_link_leads_to_nobody_else(path: str) -> None:
    answer = GATE.answer("GET", path, f"key={signed(AUTH, 'link', time.time() + 10**6)}", [HOST])
    assert answer is not None
    target = answer.body.split("location.replace(")[1].split(" + ")[0]
    assert json.loads(target)[1] not in "/\\"
    assert "<" not in target


def test_the_proof_is_of_this_port_and_tells_nothing_else() -> None:
    answer = GATE.answer("GET", gates.PROOF, "of=nonce", [HOST])
    assert answer is not None
    assert answer.body == proof(AUTH, 4200, "nonce") != proof(AUTH, 4201, "nonce")
    forged = GATE.answer("GET", gates.PROOF, "of=page+ff", [HOST])  # what is signed for a cookie is written otherwise
    assert forged is not None
    assert forged.body not in signed(AUTH, "page", 255)
    assert GATE.answer("GET", gates.PROOF, "of=nonce", [("host", "evil.example")]).status == 403  # type: ignore[union-attr]


def test_without_a_password_strangers_are_refused_all_the_same() -> None:
    open_gate = Gate(None, 8900, [])
    assert open_gate.answer("POST", "/verify", "", [("host", "127.0.0.1:8900")]) is None
    for headers in ([("host", "evil.example")], [("host", "127.0.0.1:8900"), ("origin", "https://evil.example")]):
        answer = open_gate.answer("POST", "/verify", "", headers)
        assert answer is not None
        assert answer.status == 403


def talked(headers: list[tuple[str, str]], said: list[str], subprotocols: tuple[str, ...] = ("prefect",)) -> list[Any]:
    """What is sent back over a websocket to an application that accepts, speaks, listens and answers."""
    sent: list[Any] = []
    messages = [{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": text} for text in said)]

    async def application(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "early"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "websocket.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("text") or message.get("code") or message["type"])

    scope = {"type": "websocket", "path": "/api/events/in", "query_string": b"", "subprotocols": subprotocols}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    asyncio.run(GatedApplication(application, GATE)(scope, receive, send))
    return sent


def test_a_websocket_is_asked_too() -> None:
    right, wrong = (json.dumps({"type": "auth", "token": token}) for token in (AUTH, "rlvf:wrong"))
    accepted = "websocket.accept"
    known = [HOST, cookie(time.time() + 10**6), ("origin", "http://127.0.0.1:4200")]
    assert talked(known, ["hello"]) == [accepted, "early", "hello"]
    assert talked([HOST, PASSWORD], ["hello"]) == [accepted, "early", "hello"]
    assert talked([HOST], [right, "hello"]) == [accepted, right, "hello"]  # as Prefect's clients do
    assert talked([HOST], [wrong, "hello"]) == [accepted, 1008]
    assert talked([HOST], ["hello"]) == [accepted, 1008]
    assert talked([HOST], ["[]", right]) == [accepted, 1008]
    assert talked([HOST], [right], ()) == [1008]
    assert talked([HOST, ("origin", "http://127.0.0.1:4200")], [right]) == [1008]
    assert talked([*known[:2], ("origin", "https://evil.example")], [right]) == [1008]
    assert talked([("host", "evil.example"), PASSWORD], [right]) == [1008]
