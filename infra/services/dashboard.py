"""Dask's preload for a scheduler with our settings: a gate before its page."""

import os
from http import HTTPStatus
from typing import Any

from distributed import Scheduler
from tornado import httputil

from infra.cluster.settings import DASHBOARD_PORT
from infra.home import rlvf_home
from infra.security.identity import certificate_names
from infra.services.gate import Answer, Gate
from infra.services.passwords import auth_of

HEALTH = "/health"  # says "ok" and nothing else, to whatever looks after processes, such as Kubernetes


def dask_setup(scheduler: Scheduler) -> None:
    """Called by Dask once the page listens. Raises `OSError` where it listens elsewhere because its port was taken."""
    server: Any = scheduler.http_server
    wanted = os.environ.get(DASHBOARD_PORT)
    if wanted and int(wanted) != server.port:
        raise OSError(f"cannot listen at port {wanted}: another program does")
    home = rlvf_home()
    gate = Gate(auth_of(home, "dashboard"), server.port, certificate_names(home))
    server.request_callback = GatedPage(server.request_callback, gate)


class GatedPage(httputil.HTTPServerConnectionDelegate):
    """A tornado application behind a gate."""

    def __init__(self, application: httputil.HTTPServerConnectionDelegate, gate: Gate) -> None:
        self._application = application
        self._gate = gate

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        return _Request(self._application.start_request(server_conn, request_conn), request_conn, self._gate)

    def on_close(self, server_conn: object) -> None:
        self._application.on_close(server_conn)


class _Request(httputil.HTTPMessageDelegate):
    """A request that the application gets if it passes the gate."""

    def __init__(self, inner: httputil.HTTPMessageDelegate, connection: httputil.HTTPConnection, gate: Gate) -> None:
        self._inner, self._connection, self._gate = inner, connection, gate
        self._answer: Answer | None = None

    def headers_received(self, start_line: Any, headers: httputil.HTTPHeaders) -> Any:
        assert isinstance(start_line, httputil.RequestStartLine)
        path, _, query = start_line.path.partition("?")
        given = [(name.lower(), value) for name, value in headers.get_all()]
        if (start_line.method, path) != ("GET", HEALTH):
            self._answer = self._gate.answer(start_line.method, path, query, given)
        return None if self._answer is not None else self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Any:
        return None if self._answer is not None else self._inner.data_received(chunk)

    def finish(self) -> None:
        if self._answer is None:
            self._inner.finish()
            return
        status, body = self._answer.status, self._answer.body.encode()
        headers = httputil.HTTPHeaders({"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))})
        for name, value in self._answer.headers:
            headers[name] = value
        line = httputil.ResponseStartLine("HTTP/1.1", status, HTTPStatus(status).phrase)
        self._connection.write_headers(line, headers, body)
        self._connection.finish()

    def on_connection_close(self) -> None:
        if self._answer is None:
            self._inner.on_connection_close()
