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
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit

from tests.faulty_s3_server import HOP, Answer, Fault, Kind, Request, Server


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
        self._server: Server | None = None
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

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
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
            self._server = Server(self._port, self)
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
