"""Where rlvf keeps its things, and the one Prefect server that its processes share.

The server belongs to a folder, not to a process. Every process that uses it holds a shared lock on `users.lock`; a
small supervisor, this file run as a script, holds `server.lock` and stops the server when `users.lock` is free. The
kernel frees the locks of a process however it ends, so the server outlives its last user by about a second and no user
loses it because the one that started it is done.

    <home>/prefect/server.lock   held while a server lives
    <home>/prefect/users.lock    shared by its users; exclusive while it is being stopped
    <home>/prefect/server.json   the address of the API, the process id of the supervisor
    <home>/prefect/prefect.db    Prefect's database
"""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PORT = 4200
LOOK_SECONDS = 0.5  # how often the supervisor looks whether anyone is left
STOP_SECONDS = 5.0  # what the server gets to stop by itself


class ServiceError(RuntimeError):
    """A service did not start, or stopped while it was needed."""


def rlvf_home() -> Path:
    """The folder of all state: `$RLVF_HOME`, or `.rlvf` in the working directory."""
    return Path(os.environ.get("RLVF_HOME") or ".rlvf").expanduser().absolute()


def free_port(preferred: int, host: str = "127.0.0.1") -> int:
    """`preferred` if nobody listens there, else a free port."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection may still linger there
            with suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise ServiceError(f"no free port on {host}")


def answers(url: str, timeout: float = 5.0) -> bool:
    """Whether a Prefect API answers at `url`, be it with a refusal."""
    try:
        with _opener(url).open(f"{url.rstrip('/')}/health", timeout=timeout):
            return True
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except (OSError, ValueError):
        return False


class PrefectServer:
    """The Prefect server of `home`: started by the constructor if none lives, awaited by `wait`.

    Raises `ValueError` when the environment names an API that does not answer.
    """

    def __init__(self, home: Path, say: Callable[[str], None]) -> None:
        self.home = home
        self.url = os.environ.get("PREFECT_API_URL", "")
        self.log = home / "logs" / "prefect-server.log"
        self._folder = home / "prefect"
        self._say = say
        self._users: IO[str] | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        if self.url:
            if not answers(self.url):
                raise ValueError(
                    f"PREFECT_API_URL = {self.url!r}: no Prefect API answers there; start it, or unset the variable to "
                    "use a local server"
                )
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # From here on a living server stays; one that is just being stopped is waited for.
        self._users = (self._folder / "users.lock").open("a")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._start_if_none_lives()

    @property
    def environment(self) -> dict[str, str]:
        """What a process that is to use this server needs in its environment before it imports prefect."""
        if self._users is None:
            return {"PREFECT_API_URL": self.url}
        return _prefect_environment(self._folder) | {"PREFECT_API_URL": self.url}

    def wait(self, timeout: float = 120.0) -> str:
        """The address of the API, once it answers. Raises `ServiceError` when the server ends before that."""
        deadline = time.monotonic() + timeout
        while self._users is not None and not (self._find() and self._serves()):
            lives = self._lives()
            if not lives and self._port_is_taken() and time.monotonic() < deadline:
                self._start_if_none_lives()
            elif not lives or time.monotonic() > deadline:
                lines = self.log.read_text(errors="replace").splitlines()[-15:] if self.log.exists() else []
                raise ServiceError("\n".join([f"the Prefect server did not start; {self.log} ends with:", *lines]))
            time.sleep(0.05)
        return self.url

    def stop(self) -> None:
        """Leave the server, and stop it if nobody else uses it."""
        if self._users is None:
            return
        users, self._users = self._users, None
        with users:
            if _locked(users):  # nobody else: whoever comes now waits until the old server is gone
                self._end()
        if self._supervisor is not None:
            self._supervisor.poll()

    def _start_if_none_lives(self) -> None:
        with (self._folder / "server.lock").open("a") as lock:
            if _locked(lock):
                if self._supervisor is not None:
                    self._supervisor.wait()  # its lock is free: it is gone
                self._start(lock)

    def _start(self, lock: IO[str]) -> None:
        port = free_port(PORT)
        if port != PORT:
            self._say(f"port {PORT} is in use: the Prefect server listens on {port}")
        self.url = f"http://127.0.0.1:{port}/api"
        (self._folder / "server.json").unlink(missing_ok=True)  # of a server that was killed
        command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                # Isolated, without site: it needs the standard library only and is there in some 20 ms.
                [sys.executable, "-I", "-S", __file__, str(lock.fileno()), self.url, *command],
                cwd=self._folder,  # Prefect reads settings from the files of its working directory
                env=os.environ
                | _prefect_environment(self._folder)
                | {"PREFECT_SERVER_LOGGING_LEVEL": "WARNING", "PREFECT_SERVER_UI_API_URL": self.url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,  # the Ctrl-C of the terminal is for the flow, which still needs its server
            )

    def _find(self) -> bool:
        """Read the address of the server; of an earlier one, until the supervisor of this one has written its own."""
        with suppress(OSError, ValueError):
            self.url = str(json.loads((self._folder / "server.json").read_text())["url"])
        return bool(self.url)

    def _serves(self) -> bool:
        """Whether the server of this folder answers: its port may have gone to another one while it started."""
        if not answers(self.url, timeout=1.0):
            return False
        try:
            with _opener(self.url).open(f"{self.url}/admin/settings", timeout=5.0) as settings:
                return Path(json.load(settings)["home"]) == self._folder
        except urllib.error.HTTPError:  # it wants a password, and does not say whose it is
            return True
        except (OSError, ValueError, KeyError):
            return False

    def _port_is_taken(self) -> bool:
        """Whether somebody listens where the server was to listen; asked when it is known to be dead."""
        port = urllib.parse.urlsplit(self.url).port
        return port is not None and free_port(port) != port

    def _lives(self) -> bool:
        with (self._folder / "server.lock").open("a") as lock:
            return not _locked(lock)

    def _end(self) -> None:
        """Have the supervisor end the server, and wait for it; nobody uses the server now."""
        found = self._folder / "server.json"
        asked = False
        deadline = time.monotonic() + 2 * STOP_SECONDS
        while self._lives():
            supervisor = 0
            with suppress(OSError, ValueError):  # not written yet
                supervisor = int(json.loads(found.read_text())["pid"])
            # It leads the group of the server, and the lock says that one of the group is alive: the number is theirs.
            if supervisor and time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(supervisor, signal.SIGKILL)
            elif supervisor and not asked:
                asked = True
                if self._supervisor is not None:
                    self._supervisor.poll()  # a dead child of ours would seem to take the signal
                try:
                    os.kill(supervisor, signal.SIGTERM)
                except ProcessLookupError:  # it was killed and its server lives on
                    deadline = time.monotonic()
            time.sleep(0.02)
        found.unlink(missing_ok=True)


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
        if server._users is not None and not server.url:
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


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for other machines."""
    local = "//127.0.0.1:" in url or "//localhost:" in url
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))


def _prefect_environment(folder: Path) -> dict[str, str]:
    return {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # a wrong address is an error, not a second server
        "PREFECT_CLI_PROMPT": "false",
    }


def _locked(file: IO[str]) -> bool:
    """Try to lock `file` for us alone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _supervise(lock: int, url: str, command: Sequence[str]) -> None:
    """Run the server in the working directory until it ends, SIGTERM comes, or nobody holds `users.lock`."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    # Either signal ends the sleep below, through a byte in this pipe.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    found = Path("server.json.new")
    found.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    found.replace("server.json")
    # The server holds the lock too: if only the supervisor is killed, nobody starts a second server on the database.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[lock])
    with Path("users.lock").open("a") as users:
        while server.poll() is None and not asked and not _locked(users):
            if select.select([woken], [], [], LOOK_SECONDS)[0]:
                os.read(woken, 512)
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
