"""The one Prefect server that the processes of a home share.

It belongs to a folder, not to a process (see `infra.services.supervisor`): `<home>/prefect`, which also holds
Prefect's database, `prefect.db`.
"""

import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.hosts import LOOPBACK, bracketed, free_port, is_loopback
from infra.security.secrets import without_userinfo
from infra.services.http import answers, get_json
from infra.services.passwords import kept_password
from infra.services.supervisor import Program, Service, ServiceError

PREFECT_USER = "rlvf"
PORT = 4200


def api_password(home: Path, url: str) -> str:
    """`user:password` for the Prefect API at `url`: of the environment, or the one kept in the home; empty if none."""
    given = os.environ.get("PREFECT_API_AUTH_STRING") or os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    if given:
        return given
    kept = kept_password(home, "prefect")
    return f"{PREFECT_USER}:{kept}" if kept and not is_loopback(urllib.parse.urlsplit(url).hostname or "") else ""


def service_of(home: Path) -> Service:
    """The home's server as a service."""
    return Service(home / "prefect", home / "logs" / "prefect-server.log")


def is_of(home: Path, url: str, seconds: float) -> bool:
    """Whether it is the home's server that answers at `url`."""
    if not answers(url, timeout=seconds):
        return False
    try:
        settings = get_json(f"{url}/admin/settings", api_password(home, url), timeout=seconds)
        return Path(settings["home"]) == home / "prefect"
    except urllib.error.HTTPError:  # it wants a password, and does not say whose it is
        return True
    except (OSError, ValueError, KeyError):
        return False


class PrefectServer:
    """The Prefect server of `home`: started by the constructor if none lives, awaited by `wait`.

    A server on another address than loopback asks for a password, which is kept in the home. Raises `ValueError` when
    the environment names an API that does not answer.
    """

    def __init__(self, home: Path, say: Callable[[str], None], host: str = LOOPBACK, port: int | None = None) -> None:
        self.home = home
        self.url = os.environ.get("PREFECT_API_URL", "")
        self.is_ours = not self.url
        self.service = service_of(home)
        self._host = host
        self._port = PORT if port is None else port
        self._say = say
        if self.url:
            if not answers(self.url):
                raise ValueError(
                    f"PREFECT_API_URL = {without_userinfo(self.url)!r}: no Prefect API answers there; start it, or "
                    "unset the variable to use a local server"
                )
            return
        self.service.hold()
        self._start_if_none_lives()

    @property
    def environment(self) -> dict[str, str]:
        """What a process that is to use this server needs in its environment before it imports prefect."""
        if not self.is_ours:
            return {"PREFECT_API_URL": self.url}
        known = _prefect_environment(self.service.folder) | {"PREFECT_API_URL": self.url}
        auth = api_password(self.home, self.url)
        return known | ({"PREFECT_API_AUTH_STRING": auth} if auth else {})

    def wait(self, timeout: float = 120.0) -> str:
        """The address of the API, once it answers. Raises `ServiceError` when the server ends before that.

        A server that found its port taken while it started listens elsewhere: the environment that `prefect_server` has
        set follows.
        """
        deadline = time.monotonic() + timeout
        while self.is_ours and not (self._find() and self.serves()):
            lives = self.service.lives()
            if not lives and self._port_is_taken() and time.monotonic() < deadline:
                self._start_if_none_lives()
            elif not lives or time.monotonic() > deadline:
                log = self.service.log
                lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
                raise ServiceError("\n".join([f"the Prefect server did not start; {log} ends with:", *lines]))
            time.sleep(0.05)
        if self.is_ours and "PREFECT_API_URL" in os.environ:
            os.environ["PREFECT_API_URL"] = self.url
        return self.url

    def program(self) -> Program:
        """What serves at `url`."""
        address = urllib.parse.urlsplit(self.url)
        host, port = str(address.hostname), str(address.port)
        folder = self.service.folder  # Prefect reads settings from the files of its working directory
        auth = "" if is_loopback(host) else api_password(self.home, self.url)
        return Program(
            [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", host, "--port", port],
            _prefect_environment(folder)
            | {"PREFECT_SERVER_LOGGING_LEVEL": "WARNING", "PREFECT_SERVER_UI_API_URL": self.url}
            | ({"PREFECT_SERVER_API_AUTH_STRING": auth} if auth else {}),
            folder,
        )

    def revive(self) -> None:
        """Start the server again, at the same address, if it has died."""
        self.service.start(self.program(), {"url": self.url})

    def serves(self) -> bool:
        """Whether the server of this folder answers: its port may have gone to another one while it started."""
        return is_of(self.home, self.url, 1.0)

    def stop(self) -> bool:
        """Leave the server, and stop it if nobody else uses it; says whether that stopped it."""
        return self.service.release()

    def _start_if_none_lives(self) -> None:
        if self.service.lives():
            return
        port = free_port(self._port, self._host)
        self.url = f"http://{bracketed(self._host)}:{port}/api"
        if self.service.start(self.program(), {"url": self.url}):
            if self._port not in (port, 0):
                self._say(f"port {self._port} is in use: the Prefect server listens on {port}")
        else:
            self.url = ""  # another process was quicker

    def _find(self) -> bool:
        """Read the address of the server; of an earlier one, until the supervisor of this one has written its own."""
        self.url = str(self.service.found().get("url", self.url))
        return bool(self.url)

    def _port_is_taken(self) -> bool:
        """Whether somebody listens where the server was to listen; asked when it is known to be dead."""
        address = urllib.parse.urlsplit(self.url)
        return address.port is not None and free_port(address.port, address.hostname or LOOPBACK) != address.port


@contextmanager
def prefect_server(home: Path, say: Callable[[str], None]) -> Iterator[PrefectServer]:
    """The Prefect server that this process is to use, in its environment from now until the end of the context.

    Returns while the server is still starting: `wait()` on what it yields before the first flow. Enter it before
    prefect is imported, which reads its settings from the environment at that moment. Uses, in this order: the API that
    PREFECT_API_URL names (`ValueError` if it does not answer); the server of `home` that another process started; one
    of its own, on port 4200 or another, which it `say`s.
    """
    server = PrefectServer(home, say)
    try:
        if server.is_ours and not server.url:
            server.wait()  # another process has started it
        before = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            yield server
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
    finally:
        server.stop()


def _prefect_environment(folder: Path) -> dict[str, str]:
    return {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # a wrong address is an error, not a second server
        "PREFECT_CLI_PROMPT": "false",
    }
