"""The one Prefect server that the processes of a home share.

It belongs to a folder, not to a process (see `infra.services.supervisor`): `<home>/prefect`, which also holds
Prefect's database, `prefect.db`.
"""

import os
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.home import private_home
from infra.hosts import LOOPBACK, bracketed, free_port, without_proxy
from infra.security.identity import authority
from infra.security.secrets import without_userinfo
from infra.services.http import answers, proves
from infra.services.kept_port import KeptPort, is_kept
from infra.services.passwords import USER, auth_of, kept_password
from infra.services.prefect_api import PrefectApi
from infra.services.served import served
from infra.services.settled import own_files
from infra.services.supervisor import Program, Service, ServiceError, boot_name
from infra.sqlite import report_corruption

PORT = 4200
SAY_SECONDS = 2.0
START_SECONDS = 300.0  # that a server of ours gets while its process lives
REMEDY = "remove it; Prefect's page forgets the runs until now, and no run is lost by that"


def is_own(home: Path, url: str) -> bool:
    """Whether the API address means a server of this home: such a server has to prove itself before it gets a password,
    because one that has died leaves its port to any program."""
    if url == service_of(home).found().url:
        return True
    if url != os.environ.get("PREFECT_API_URL"):
        return False
    # handed down by one of our own processes, or by `rlvf status --shell`
    kept = kept_password(home, "prefect")
    given = os.environ.get("PREFECT_API_AUTH_STRING")
    handed_down = os.environ.get("PREFECT_HOME") == str(service_of(home).folder)
    return handed_down or (kept is not None and given == f"{USER}:{kept}")


def prefect_api(home: Path, url: str) -> PrefectApi:
    """The API at `url`, with the home's password where it is the home's own, else with that of an environment that
    names this address."""
    if is_own(home, url):
        return PrefectApi(url, server_password(home), is_ours=True)
    return PrefectApi(url, _given_password(url))


def api_password(home: Path, url: str) -> str:
    """`user:password` for a client of the API at `url`; empty without one, and where the server at the home's own
    address does not prove to be the home's."""
    if is_own(home, url):
        return server_password(home) if is_of(home, url, 5.0) else ""
    return _given_password(url)


def _given_password(url: str) -> str:
    named = without_userinfo(os.environ.get("PREFECT_API_URL", ""))
    return os.environ.get("PREFECT_API_AUTH_STRING", "") if without_userinfo(url) == named else ""


def service_of(home: Path) -> Service:
    """The home's server as a service."""
    return Service(home / "prefect", home / "logs" / "prefect-server.log")


def is_of(home: Path, url: str, seconds: float) -> bool:
    """Whether it is the home's server that answers at `url`."""
    return proves(url, server_password(home), timeout=seconds)


class PrefectServer:
    """The Prefect server of `home`: started by the constructor if none lives, awaited by `wait`.

    Its password is that of $PREFECT_SERVER_API_AUTH_STRING, else the home's. With `tls` it serves https. It listens at
    `port`, or at a free one if that is taken and not `fixed`. With `kept` this process keeps its port; while another
    process does, that one starts the server. Raises `ValueError` when the environment names an API that does not
    answer, or a fixed port is taken.
    """

    def __init__(
        self,
        home: Path,
        say: Callable[[str], None],
        host: str = LOOPBACK,
        port: int | None = None,
        *,
        tls: bool = False,
        fixed: bool = False,
        kept: KeptPort | None = None,
    ) -> None:
        self.home = home
        self.url = os.environ.get("PREFECT_API_URL", "")
        self.is_ours = not self.url
        self.service = service_of(home)
        self._scheme = "https" if tls else "http"
        self._host = host
        self._port = PORT if port is None else port
        self._fixed = fixed and bool(port)
        self._kept = kept
        self._say = say
        if self.url:
            if not answers(self.url) and not self._comes_back():
                raise ValueError(
                    f"PREFECT_API_URL = {without_userinfo(self.url)!r}: no Prefect API answers there; start it, or "
                    "unset the variable to use a local server"
                )
            return
        private_home(home)
        self.service.hold()
        self._start_if_none_lives()

    def _comes_back(self) -> bool:
        """Whether the server that the environment names is the home's own and answers after all: one that has died or
        hangs is started again by the `rlvf up` that has started it."""
        if not is_own(self.home, self.url):
            return False
        self._say(f"waiting for the Prefect server at {without_userinfo(self.url)}, which is started again")
        deadline = time.monotonic() + START_SECONDS
        while (self.service.lives() or self.is_kept_elsewhere()) and time.monotonic() < deadline:
            if answers(self.url):
                return True
            time.sleep(0.2)
        return False

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client of this server, read when prefect is imported."""
        own = self.is_ours or is_own(self.home, self.url)
        where = urllib.parse.urlsplit(self.url).hostname or ""
        direct = without_proxy(where) if own else without_proxy()  # Prefect's client reads it once
        if not self.is_ours:
            return {"PREFECT_API_URL": self.url} | direct
        known = direct | {"PREFECT_API_URL": self.url, "PREFECT_API_AUTH_STRING": server_password(self.home)}
        if self.url.startswith("https://"):
            known["PREFECT_API_SSL_CERT_FILE"] = authority(self.home) or ""
        return _prefect_environment(self.service.folder) | known

    def wait(self, timeout: float = 120.0) -> str:
        """The address of the API, once it answers, in $PREFECT_API_URL too if that is set: the port may have been taken
        while the server started. One that was there and does not answer for `timeout` seconds is ended and started
        again. Raises `ServiceError` when the server ends before it answers, `DamagedDatabaseError` where its database
        is why.
        """
        with report_corruption(self.service.folder / "prefect.db", REMEDY):
            return self._wait(timeout)

    def _wait(self, timeout: float) -> str:
        began, quiet, first = time.monotonic(), True, self.service.found().pid
        while self.is_ours and not (self._find() and self.serves()):
            waited = time.monotonic() - began
            lives = self.service.lives() or self.is_kept_elsewhere()
            if not lives and waited < timeout and self.moved():
                continue
            if lives and waited > timeout and self._was_there(first):
                self._say(f"the Prefect server has not answered for {timeout:.0f} s: it is started again")
                self.service.end()
                self.revive()
                began, first = time.monotonic(), None
                continue
            log = self.service.log
            if not lives:
                lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
                ends = [f"; {log} ends with:", *lines] if lines else [f", and {log} is empty; try again"]
                raise ServiceError("the Prefect server did not start" + "\n".join(ends))
            if waited > START_SECONDS:
                raise ServiceError(
                    f"the Prefect server has not answered for {waited:.0f} s and still runs: this machine is too busy "
                    f"for it; end other work, then try again ({log})"
                )
            if quiet and waited > SAY_SECONDS:
                quiet = False
                self._say(f"waiting for the Prefect server at {self.url}")
            time.sleep(0.05)
        if self.is_ours and "PREFECT_API_URL" in os.environ:
            os.environ["PREFECT_API_URL"] = self.url
        return self.url

    def _was_there(self, pid: int | None) -> bool:
        """Whether the server is still the one of this supervisor, for this process to end: it is on this machine, was
        not started by this process, and no other process keeps its port."""
        found = self.service.found()
        own = self.service.is_child or self.is_kept_elsewhere()
        return not own and pid is not None and (found.pid, found.machine) == (pid, boot_name())

    def program(self) -> Program:
        """The program of the server at `url`."""
        folder = self.service.folder  # Prefect reads settings from the files of its working directory
        where = urllib.parse.urlsplit(self.url)
        listening = None if self._kept is None else self._kept.keep(str(where.hostname), int(where.port or 0))
        command, secret = served("prefect", self.url, self.home, server_password(self.home), listening)
        settings = {
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            # a run's log goes to `--watch`, too
            "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
            "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
            "PREFECT_SERVER_UI_API_URL": "/api",  # by whatever name the page was opened
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": self.url.removesuffix("/api"),
            "PREFECT_SERVER_API_AUTH_STRING": "",  # the gate asks for it, and knows browsers by a cookie
            "PREFECT_API_URL": "",
            "PREFECT_API_AUTH_STRING": "",
        }
        sockets = [] if listening is None else [listening]
        return Program(command, _prefect_environment(folder) | settings | secret, folder, sockets=sockets)

    def revive(self) -> None:
        """Start a dead server again at the same address, unless another process does that."""
        if not self.is_kept_elsewhere():
            self.service.start(self.program(), self.url)

    def moved(self) -> bool:
        """Start a dead server at another port, if a stranger listens at its own; whether that was so."""
        address = urllib.parse.urlsplit(self.url)
        if self._kept is not None and self._kept.is_held:
            return False
        if address.port is None or free_port(address.port, address.hostname or LOOPBACK) == address.port:
            return False
        self._start_if_none_lives()
        return True

    def serves(self) -> bool:
        """Whether the home's server answers at `url`, not a stranger at its port."""
        return is_of(self.home, self.url, 1.0)

    def is_kept_elsewhere(self) -> bool:
        """Whether another process keeps the port, and starts the server again."""
        return self._kept is None and is_kept(self.service.folder)

    def stop(self) -> bool:
        """Leave the server, which ends without another user; whether that stopped it."""
        return self.service.release()

    def _start_if_none_lives(self) -> None:
        if self.service.lives() or self.is_kept_elsewhere():
            return
        port = free_port(self._port, self._host)
        if self._fixed and port != self._port:
            raise ValueError(
                f"the Prefect server cannot listen on {self._port}, where another program does; name another port, or "
                "leave it out to take a free one"
            )
        self.url = f"{self._scheme}://{bracketed(self._host)}:{port}/api"
        if self.service.start(self.program(), self.url):
            if self._port not in (port, 0):
                self._say(f"port {self._port} is in use: the Prefect server listens on {port}")
        else:
            self.url = ""  # another process was quicker
            if self._kept is not None:
                self._kept.free()

    def _find(self) -> bool:
        """Read the server's address into `url`; whether there is one. It may be an earlier server's at first."""
        self.url = self.service.found().url or self.url
        return bool(self.url)


@contextmanager
def prefect_server(home: Path, say: Callable[[str], None]) -> Iterator[PrefectServer]:
    """The Prefect server of this process, in its environment until the end of the context: that of $PREFECT_API_URL
    (`ValueError` if it does not answer), else the living one of `home`, else a new one.

    Enter it before prefect is imported, which reads it; a new server still starts then: `wait()` before the first flow.
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


def server_password(home: Path) -> str:
    """`user:password` of the home's own server."""
    return os.environ.get("PREFECT_SERVER_API_AUTH_STRING") or auth_of(home, "prefect")


def _prefect_environment(folder: Path) -> dict[str, str]:
    return {
        "PREFECT_HOME": str(folder),
        **own_files(),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # a wrong address is an error, not a second server
        "PREFECT_CLI_PROMPT": "false",
    }
