"""The links that are printed: for the pages of this home's servers, and for no others."""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from infra.services.addresses import Addresses
from infra.services.asgi import GatedApplication
from infra.services.gate import Gate
from infra.services.links import keyed, page_links
from infra.services.passwords import auth_of


async def page(scope: Any, _receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the page"})


@contextmanager
def serving(auth: str) -> Iterator[str]:
    """The address of a page behind a gate."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config = uvicorn.Config(GatedApplication(page, Gate(auth, port, [])), log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


def test_a_page_of_this_home_gets_a_key_and_no_other_does(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    with serving(auth_of(home, "mlflow")) as url, serving("rlvf:unknown") as strangers:
        links = page_links(home, Addresses(mlflow=url, prefect=f"{strangers}/api"))
        assert list(links) == ["mlflow"]
        assert links["mlflow"].startswith(f"{url}/?key=")
        assert links["mlflow"].endswith("#/experiments?workflowType=machine_learning")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(links["mlflow"]) as first, browser.open(f"{url}/deeper") as second:
            assert b"location.replace" in first.read()
            assert second.read() == b"the page"
        assert keyed(home, "mlflow", strangers) == strangers
        assert keyed(home, "mlflow", "http://127.0.0.1:1") == "http://127.0.0.1:1"
        assert keyed(other, "mlflow", url) == url
    assert not other.exists()  # looking makes no password
