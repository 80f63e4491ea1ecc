"""The gate in front of an ASGI application."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from infra.services.gate import Gate, Headers

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]

HEADERS = [(b"x-frame-options", b"SAMEORIGIN"), (b"x-content-type-options", b"nosniff")]
POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1


class GatedApplication:
    """An ASGI application behind a gate."""

    def __init__(self, application: Application, gate: Gate) -> None:
        self._application = application
        self._gate = gate

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:  # the application's own start and end
            await self._application(scope, receive, send)

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode("latin-1")
        answer = self._gate.answer(scope["method"], scope["path"], query, _headers(scope))
        if answer is None:

            async def framed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", []), *HEADERS]
                await send(message)

            await self._application(scope, receive, framed)
            return
        body = answer.body.encode()
        named = [("content-type", "text/html; charset=utf-8"), ("cache-control", "no-store"), *answer.headers]
        headers = [(name.encode(), value.encode()) for name, value in dict(named).items()]
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": answer.status, "headers": [*headers, length, *HEADERS]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        """A page has the cookie, a program the password, in a header or, as Prefect's have, in the first message."""
        headers = _headers(scope)
        if self._gate.strange("GET", headers) is None:
            if self._gate.is_known(headers):
                await self._application(scope, receive, send)
                return
            if "prefect" in scope.get("subprotocols", ()) and not any(name == "origin" for name, _ in headers):
                await self._application(scope, *self._after_password(receive, send))
                return
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # before it is accepted: status 403

    def _after_password(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """The application receives and sends nothing before a message with the password has come."""
        known = refused = False

        async def checked() -> Message:
            nonlocal known, refused
            if refused:
                return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
            message = await receive()
            if message["type"] == "websocket.receive" and not known:
                known = self._gate.is_token(_token(message))
                if not known:
                    refused = True
                    await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "wrong password"})
                    return await checked()
            return message

        async def heard(message: Message) -> None:
            if not refused and (known or message["type"] != "websocket.send"):
                await send(message)

        return checked, heard


def _headers(scope: Any) -> Headers:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]


def _token(message: Message) -> str:
    """The token of a Prefect client's first message, {"type": "auth", "token": user:password}; empty in others."""
    try:
        said = json.loads(message.get("text") or message.get("bytes") or "null")
    except ValueError:
        return ""
    token = said.get("token") if isinstance(said, dict) and said.get("type") == "auth" else None
    return token if isinstance(token, str) else ""
