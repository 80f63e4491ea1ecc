"""The links that open the pages of a home's services without a password."""

import os
import time
import urllib.parse
from pathlib import Path

from infra.services.addresses import Addresses
from infra.services.gate import KEY, LINK_SECONDS, signed
from infra.services.http import proves
from infra.services.passwords import USER, kept_password

MLFLOW_PAGE = "#/experiments?workflowType=machine_learning"  # without it MLflow 3.17 opens on traces of applications


def page_links(home: Path, known: Addresses) -> dict[str, str]:
    """By service, a link for each page that a server of this home serves; a stranger's page gets no key."""
    pages = {
        "prefect": (known.prefect or "").removesuffix("/api"),
        "mlflow": f"{known.mlflow}/{MLFLOW_PAGE}" if known.mlflow else "",
        "dashboard": known.dashboard or "",
    }
    links = {name: keyed(home, name, url) for name, url in pages.items() if url}
    return {name: found for name, found in links.items() if found != pages[name]}


def keyed(home: Path, name: str, url: str) -> str:
    """A link to the page, if the service of that name at `url` is this home's; else `url`."""
    auth = _auth(home, name)
    return link(url, auth) if auth and proves(url, auth) else url


def link(url: str, auth: str) -> str:
    """The address of a page with a key in it; it opens for `LINK_SECONDS`."""
    where = urllib.parse.urlsplit(url)
    key = f"{KEY}={signed(auth, 'link', time.time() + LINK_SECONDS)}"
    query = f"{where.query}&{key}" if where.query else key
    return urllib.parse.urlunsplit(where._replace(path=where.path or "/", query=query))


def _auth(home: Path, name: str) -> str:
    """user:password of the home's server of that name, empty where none was made yet."""
    given = os.environ.get("PREFECT_SERVER_API_AUTH_STRING") if name == "prefect" else None
    kept = kept_password(home, name)
    return given or (f"{USER}:{kept}" if kept else "")
