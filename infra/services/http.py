"""Asking the services that speak HTTP, without a library that takes long to import."""

import base64
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any


def answers(url: str, timeout: float = 5.0) -> bool:
    """Whether a Prefect API, or an MLflow server, answers at `url`, be it with a refusal."""
    try:
        with _opener(url).open(f"{url.rstrip('/')}/health", timeout=timeout):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
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
        request.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    with _opener(url).open(request, timeout=timeout) as answer:
        return json.load(answer)


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for machines far away."""
    try:
        near = not ipaddress.ip_address(urllib.parse.urlsplit(url).hostname or "").is_global
    except ValueError:
        near = urllib.parse.urlsplit(url).hostname == "localhost"
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if near else []))
