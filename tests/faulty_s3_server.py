"""The server of faulty_s3.py: a request gets the fault that its owner has for it."""

import itertools
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from tests.faulty_s3 import FaultyS3

Kind = Literal["slow down", "slow", "truncate", "damage", "unanswered", "late", "hang"]
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server", "expect"}  # not passed on
SLICE = 0.05  # seconds between the pieces of a slow body


@dataclass
class Fault:
    """What happens to the next requests that match."""

    kind: Kind
    method: str
    key: str
    times: int | None  # requests left
    value: float = 0.0  # bytes/s, the share of the body that is sent, or seconds


@dataclass(frozen=True)
class Request:
    """One request as it was met."""

    method: str
    key: str
    fault: Kind | None
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: str | None  # as promised


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, owner: "FaultyS3") -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up, and connections that are taken from their threads, are what is meant to happen."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body is sent after its headers, and would wait 40 ms for their acknowledgement
    server: Server

    def do(self) -> None:
        owner = self.server.owner
        path, _, query = self.path.partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        asked = parse_qs(query, keep_blank_values=True)
        listing = self.command == "GET" and bucket and not key
        fault = owner.meet("LIST" if listing else self.command, asked.get("prefix", [""])[0] if listing else key)
        kind, value = (fault.kind, fault.value) if fault else (None, 0.0)
        if kind == "hang":
            time.sleep(value)
            return self._hang_up()
        body = self._body(value if kind == "slow" else None, value if kind == "truncate" else 1.0)
        if body is None:
            return self._hang_up()
        if kind == "slow down":
            return self._answer(_error(503, "SlowDown", "Please reduce your request rate."))
        headers = {name: text for name, text in self.headers.items() if name.lower() not in HOP}
        if kind == "late" and (written := self._written(body, asked, bucket, key)):
            owner.forward_late(value, self.command, self.path, headers, body)
            return self._answer(written)
        if self.command == "DELETE":
            owner.forget_late(self.path)
        answer = owner.forward(self.command, self.path, headers, body)
        if kind == "unanswered":
            return self._hang_up()
        if kind == "damage":
            answer = _damaged(answer)
        return self._answer(answer, value if kind == "slow" else None, value if kind == "truncate" else 1.0)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815

    def _body(self, bytes_s: float | None, share: float) -> bytes | None:
        """The request's body, None if it is not to be taken to its end."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            taken = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                taken += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return taken if share == 1.0 else None
        length = int(self.headers.get("Content-Length", 0))
        if length and share < 1.0:
            self.rfile.read(int(length * share))
            return None
        if bytes_s is None:
            return self.rfile.read(length)
        taken = b""
        while len(taken) < length:
            time.sleep(SLICE)
            taken += self.rfile.read(min(max(1, int(bytes_s * SLICE)), length - len(taken)))
        return taken

    def _written(self, body: bytes, asked: dict[str, list[str]], bucket: str, key: str) -> Answer | None:
        """The answer to a request that makes an object visible, None if this is none."""
        tag = f'"{md5(body).hexdigest()}"'
        if self.command == "PUT" and not asked.keys() & {"partNumber"} and "x-amz-copy-source" not in self.headers:
            return Answer(200, [("ETag", tag)], b"", "0") if key else None
        if self.command == "POST" and "uploadId" in asked:
            fields = f"<Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>{tag}</ETag>"
            return _xml(200, f"<CompleteMultipartUploadResult>{fields}</CompleteMultipartUploadResult>")
        return None

    def _answer(self, answer: Answer, bytes_s: float | None = None, share: float = 1.0) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.length is not None:
            self.send_header("Content-Length", answer.length)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = answer.body if share == 1.0 else answer.body[: int(len(answer.body) * share)]
        step = len(body) if bytes_s is None else max(1, int(bytes_s * SLICE))
        for start in range(0, len(body), step or 1):
            if bytes_s is not None:
                time.sleep(SLICE)
            self.wfile.write(body[start : start + step])
        if share < 1.0:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Tests look at `FaultyS3.requests`."""


def _damaged(answer: Answer) -> Answer:
    headers = [(name, value) for name, value in answer.headers if not name.lower().startswith("x-amz-checksum")]
    body = bytearray(answer.body)
    if body:
        body[len(body) // 2] ^= 1
    return replace(answer, headers=headers, body=bytes(body))


_ids = itertools.count(1)


def _xml(status: int, content: str) -> Answer:
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n' + content.encode()
    return Answer(status, [("Content-Type", "application/xml")], body, str(len(body)))


def _error(status: int, code: str, message: str) -> Answer:
    identity = f"<RequestId>{next(_ids)}</RequestId>"
    return _xml(status, f"<Error><Code>{code}</Code><Message>{message}</Message>{identity}</Error>")
