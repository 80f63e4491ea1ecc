"""HTTP requests to services, without a library that takes long to import."""

import ipaddress
import json
import secrets
import ssl
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from infra.home import rlvf_home
from infra.security.identity import authority
from infra.services.gate import PROOF, basic, proof, same


class StrangerError(ConnectionError):
    """Another server than the home's answers at its address."""


def answers(url: str, timeout: float = 5.0) -> bool:
    """Whether a Prefect API, or an MLflow server, answers at `url`, be it with a refusal."""
    try:
        status = status_of(f"{url.rstrip('/')}/health", timeout)
    except ConnectionError:
        return False
    return status < 300 or status in (401, 403)


def status_of(url: str, timeout: float = 5.0) -> int:
    """The HTTP status with which a server answers at `url`, an error's too. Raises ConnectionError, which says why,
    where none does."""
    try:
        with opener(url).open(url, timeout=timeout) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, ValueError, HTTPException) as error:
        raise ConnectionError(str(getattr(error, "reason", error))) from error


def proves(url: str, auth: str, timeout: float = 5.0) -> bool:
    """Whether the server at `url` knows `auth` (user:password), and so is the one meant. The password is not sent: a
    stranger's server would learn it."""
    try:
        connection = _connection(url, timeout)
        try:
            return _has_proved(connection, auth)
        finally:
            connection.close()
    except (OSError, ValueError, HTTPException):
        return False


def get_json(url: str, auth: str = "", body: Any = None, timeout: float = 5.0) -> Any:
    """The JSON of a GET at `url`, or of a POST with a `body`, with `auth` (user:password) if it is given. For a server
    of a home there is `get_json_of_ours`.

    Raises `OSError` without an answer and for an error, `ValueError` when it is not JSON.
    """
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode())
    if body is not None:
        request.add_header("Content-Type", "application/json")
    if auth:
        request.add_header("Authorization", f"Basic {basic(auth)}")
    with opener(url).open(request, timeout=timeout) as answer:
        return json.load(answer)


def get_json_of_ours(url: str, auth: str, body: Any = None, timeout: float = 5.0) -> Any:
    """As `get_json`, of a server that has to prove first that it knows `auth`, over the same connection: a stranger
    that takes its port is sent nothing. Raises `StrangerError` as well.
    """
    where = urllib.parse.urlsplit(url)
    connection = _connection(url, timeout)
    try:
        if not _has_proved(connection, auth):
            raise StrangerError(
                f"the server at {where.netloc} does not show that it is this home's: it is told nothing"
            )
        target = urllib.parse.urlunsplit(("", "", where.path or "/", where.query, ""))
        headers = {"Authorization": f"Basic {basic(auth)}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", target, content, headers)
        answer = connection.getresponse()
        if answer.status >= 300:
            raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.headers, None)
        return json.load(answer)
    except HTTPException as error:
        raise ConnectionError(f"the server at {where.netloc} broke off ({error!r})") from error
    finally:
        connection.close()


def _connection(url: str, timeout: float) -> HTTPConnection:
    """A connection without a proxy that stays closed where the server closes it: http.client would open another one."""
    where = urllib.parse.urlsplit(url)
    connection = (
        HTTPSConnection(where.hostname or "", where.port, timeout=timeout, context=_trusting())
        if where.scheme == "https"
        else HTTPConnection(where.hostname or "", where.port, timeout=timeout)
    )
    connection.connect()
    connection.auto_open = 0
    return connection


def _has_proved(connection: HTTPConnection, auth: str) -> bool:
    nonce = secrets.token_hex(16)
    connection.request("GET", f"{PROOF}?of={nonce}")
    answer = connection.getresponse()
    said = answer.read(200).decode("latin-1")
    return same(said, proof(auth, connection.port, nonce)) and not answer.read(1)


def _trusting() -> ssl.SSLContext:
    """A TLS context that trusts the cluster's own authority beside the system's."""
    trusted = ssl.create_default_context()
    if (cluster := authority(rlvf_home())) is not None:
        trusted.load_verify_locations(cluster)
    return trusted


def opener(url: str) -> urllib.request.OpenerDirector:
    """An opener that asks hosts on the internet alone by a proxy of the environment."""
    where = urllib.parse.urlsplit(url)
    try:
        near = not ipaddress.ip_address(where.hostname or "").is_global
    except ValueError:
        near = where.hostname == "localhost"
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if near else []
    if where.scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=_trusting()))
    return urllib.request.build_opener(*handlers)
