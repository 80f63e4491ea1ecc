"""A real S3 API that fails on demand: a reverse proxy in front of another one.

    with faulty_s3(upstream) as s3:          # clients use s3.url
        s3.slow_down("PUT", times=2)         # the next two objects that are written: 503 SlowDown, then all is well
        s3.truncate("GET", "*/model.*")      # the next matching object ends early
        s3.away(5)                           # nobody listens for five seconds

A request is matched by its method (HTTP's, or LIST for a listing) and its key without the bucket (a listing's prefix),
both patterns of fnmatch. Of several faults that match, the one that was asked for first is injected. `times` is for how
many requests, None for all.
"""

import http.client
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

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


class FaultyS3:
    """An S3 API at `url`, and the faults that it is to have. Every method may be called from any thread at any time."""

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        assert address.hostname
        assert address.port
        self.upstream = (address.hostname, address.port)
        self.requests: list[Request] = []
        self._faults: list[Fault] = []
        self._late: dict[str, list[threading.Timer]] = {}  # by path
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._ended = False
        self._port = 0
        self._server: _Server | None = None
        self._listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def slow_down(self, method: str = "*", key: str = "*", times: int | None = 1) -> None:
        """503 SlowDown."""
        self._add("slow down", method, key, times)

    def slow(self, bytes_s: float, method: str = "*", key: str = "*", times: int | None = 1) -> None:
        """Bodies are taken and sent at this rate."""
        self._add("slow", method, key, times, bytes_s)

    def truncate(self, method: str = "*", key: str = "*", times: int | None = 1, share: float = 0.5) -> None:
        """The connection is closed after this share of a body that is sent; or, of one that is taken, which is not
        stored then."""
        self._add("truncate", method, key, times, share)

    def damage(self, key: str = "*", times: int | None = 1) -> None:
        """One byte of an object that is sent is another, and nothing tells: a store without checksums."""
        self._add("damage", "GET", key, times)

    def leave_unanswered(self, method: str = "*", key: str = "*", times: int | None = 1) -> None:
        """The request is carried out, the connection closed without an answer."""
        self._add("unanswered", method, key, times)

    def late(self, seconds: float, key: str = "*", times: int | None = None) -> None:
        """An object that was put is seen by nobody, its writer included, for so long: until then there is none, or the
        one that was there before. The answer comes at once."""
        self._add("late", "P*", key, times, seconds)

    def hang(self, seconds: float, method: str = "*", key: str = "*", times: int | None = 1) -> None:
        """Nothing for so long, then the connection is closed."""
        self._add("hang", method, key, times, seconds)

    def away(self, seconds: float, how: Literal["refuse", "hang", "503"] = "refuse") -> None:
        """From now on for so long connections are refused, and the open ones closed; or no request is answered; or each
        is answered by 503 SlowDown."""
        if how == "refuse":
            self._close()
            self._timer = threading.Timer(seconds, self._listen)
            self._timer.start()
            return
        fault = Fault("hang" if how == "hang" else "slow down", "*", "*", None, seconds)
        with self._lock:
            self._faults.insert(0, fault)
        self._timer = threading.Timer(seconds, self._take_back, [fault])
        self._timer.start()

    def clear(self) -> None:
        """No more faults are injected, and whoever was away is back; what is on its way stays so."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._faults.clear()
        self._listen()

    def met(self, kind: Kind) -> list[Request]:
        """The requests that met such a fault."""
        with self._lock:
            return [request for request in self.requests if request.fault == kind]

    def end(self) -> None:
        self._ended = True
        timers = [timer for each in self._late.values() for timer in each]
        for timer in [*timers, *([self._timer] if self._timer else [])]:
            timer.cancel()
        self._close()

    # -- for the requests

    def meet(self, method: str, key: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                matches = fnmatchcase(method, fault.method) and fnmatchcase(key, fault.key)
                if matches and (fault.kind != "late" or method in ("PUT", "POST")):
                    if fault.times is not None:
                        fault.times -= 1
                        if fault.times == 0:
                            self._faults.remove(fault)
                    self.requests.append(Request(method, key, fault.kind))
                    return fault
            self.requests.append(Request(method, key, None))
        return None

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> "Answer":
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        try:
            connection.request(method, path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
            length = answer.getheader("Content-Length") if method == "HEAD" else str(len(content))
            return Answer(answer.status, kept, content, length)
        finally:
            connection.close()

    def forward_late(self, seconds: float, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        timer = threading.Timer(seconds, self.forward, [method, path, headers, body])
        timer.daemon = True
        with self._lock:
            self._late.setdefault(path.partition("?")[0], []).append(timer)
            timer.start()

    def forget_late(self, path: str) -> None:
        """What is deleted does not come back."""
        with self._lock:
            for timer in self._late.pop(path.partition("?")[0], []):
                timer.cancel()

    def _add(self, kind: Kind, method: str, key: str, times: int | None, value: float = 0.0) -> None:
        with self._lock:
            self._faults.append(Fault(kind, method, key, times, value))

    def _take_back(self, fault: Fault) -> None:
        with self._lock, suppress(ValueError):
            self._faults.remove(fault)

    def _listen(self) -> None:
        with self._lock:
            if self._ended or self._server is not None:
                return
            self._server = _Server(self._port, self)
            self._port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _close(self) -> None:
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.hang_up()


@contextmanager
def faulty_s3(upstream: str) -> Iterator[FaultyS3]:
    """In front of the S3 API at the URL `upstream`."""
    made = FaultyS3(upstream)
    try:
        yield made
    finally:
        made.end()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: str | None  # as promised


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, owner: FaultyS3) -> None:
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
    server: _Server

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
