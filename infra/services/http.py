"""Asking the services that speak HTTP, without a library that takes long to import."""

import ipaddress
import json
import secrets
import ssl
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

from infra.home import rlvf_home
from infra.security.identity import authority
from infra.services.gate import PROOF, basic, proof, same


def answers(url: str, timeout: float = 5.0) -> bool:
    """Whether a Prefect API, or an MLflow server, answers at `url`, be it with a refusal."""
    try:
        with opener(url).open(f"{url.rstrip('/')}/health", timeout=timeout):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except (OSError, ValueError, HTTPException):
        return False


def proves(url: str, auth: str, timeout: float = 5.0) -> bool:
    """Whether the server at `url` knows `auth` (user:password): it is the one meant, and not another on its port.

    The password is not sent: a stranger's server would learn it.
    """
    where = urllib.parse.urlsplit(url)
    nonce = secrets.token_hex(16)
    asked = urllib.parse.urlunsplit((where.scheme, where.netloc, PROOF, f"of={nonce}", ""))
    try:
        with opener(url).open(asked, timeout=timeout) as answer:
            return same(answer.read(200).decode("latin-1"), proof(auth, where.port or 0, nonce))
    except (OSError, ValueError, HTTPException):
        return False


def get_json(url: str, auth: str = "", body: Any = None, timeout: float = 5.0) -> Any:
    """What is at `url`, asked with `auth` (user:password) if it is given; with a `body`, what the answer to it is.

    Raises `OSError` when nobody answers or the answer is an error, `ValueError` when it is not JSON.
    """
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode())
    if body is not None:
        request.add_header("Content-Type", "application/json")
    if auth:
        request.add_header("Authorization", f"Basic {basic(auth)}")
    with opener(url).open(request, timeout=timeout) as answer:
        return json.load(answer)


def opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for machines far away; the cluster's own authority is trusted like the others."""
    where = urllib.parse.urlsplit(url)
    try:
        near = not ipaddress.ip_address(where.hostname or "").is_global
    except ValueError:
        near = where.hostname == "localhost"
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})] if near else []
    if where.scheme == "https":
        trusted = ssl.create_default_context()
        if (cluster := authority(rlvf_home())) is not None:
            trusted.load_verify_locations(cluster)
        handlers.append(urllib.request.HTTPSHandler(context=trusted))
    return urllib.request.build_opener(*handlers)
