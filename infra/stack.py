"""The services of a cluster: what runs each, when it may start, how one knows that it works, and in what order it all
ends. What was there before is used and left alone."""

import json
import os
import re
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from infra import disk, services, store
from infra.addresses import Addresses, Up, write_up
from infra.cluster import scheduler_environment
from infra.passwords import password
from infra.prefect_api import POOL, PrefectApi
from infra.security import machine_name, tls_environment
from infra.services import (
    LOOPBACK,
    PrefectServer,
    ServiceError,
    answers,
    api_password,
    bracketed,
    free_port,
    is_loopback,
)
from infra.supervisor import BackOff, Program, Service

PORTS = {"prefect": services.PORT, "mlflow": 5000, "scheduler": 8786, "dashboard": 8787}  # where they are free
STOPPING = ("worker", "scheduler", "mlflow", "prefect")  # in this order: each uses those after it
TITLES = {
    "prefect": "Prefect server",
    "mlflow": "MLflow server",
    "scheduler": "Dask scheduler",
    "worker": "Prefect worker",
    "deployments": "deployments",
}
MLFLOW_USER = "rlvf"
ATTEMPTS = 3  # so often a service may die before it has ever worked
LOOK_SECONDS = 0.2
WORKER_STOP_SECONDS = 20.0
RUN_STOP_SECONDS = 10.0  # what a run gets to end when its worker has


@dataclass(frozen=True)
class StackConfig:
    """What `rlvf up` was asked for."""

    home: Path
    storage: str
    endpoint: str | None = None  # of an S3 service that is not Amazon's
    host: str = LOOPBACK
    tls: bool = False  # for Dask; the certificates are there
    ports: Mapping[str, int] = field(default_factory=dict)  # those that somebody chose, by service


@dataclass(frozen=True)
class Row:
    """A service as a person sees it."""

    name: str
    state: str
    address: str


class Part:
    """A service that is kept alive: started when what it `needs` works, and again, later each time, when it dies."""

    def __init__(
        self,
        name: str,
        address: str,
        service: Service,
        program: Callable[[], Program],
        works: Callable[[], bool],
        *,
        needs: Sequence["Part"] = (),
        on_start: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.state = "waiting"
        self._service = service
        self._program = program
        self._works = works
        self._needs = needs
        self._on_start = on_start
        self._stop = stop or service.release
        self._back_off = BackOff()
        self._began = self._due = 0.0
        self._deaths = 0
        self._ever_worked = False

    @property
    def works(self) -> bool:
        return self.state == "up"

    def look(self) -> None:
        """See how it is, and do what is to be done. Raises `ServiceError` for one that never comes up."""
        now = time.monotonic()
        if self.state in ("waiting", "died"):
            if now >= self._due and all(part.works for part in self._needs):
                self._start()
        elif self._service.is_orphan():
            self._service.end()
            self._died(now)
        elif not self._service.lives():
            self._died(now)
        elif self.state == "starting" and self._answers():
            self.state, self._ever_worked = "up", True

    def stop(self) -> bool:
        """Stop it; says whether it was running, for nobody else's use."""
        lived = self._service.lives()
        return self._stop() and lived

    def _start(self) -> None:
        self._on_start()
        self._service.start(self._program(), {"url": self.address})
        self.state, self._began = "starting", time.monotonic()

    def _answers(self) -> bool:
        try:
            return self._works()
        except (OSError, ValueError, HTTPException):
            return False  # not yet, or not any more

    def _died(self, now: float) -> None:
        self._deaths += 1
        if not self._ever_worked and self._deaths >= ATTEMPTS:
            raise ServiceError(
                f"the {TITLES[self.name]} does not start; {self._service.log} ends with: {_last(self._service.log)}"
            )
        self.state, self._due = "died", now + self._back_off.pause(now - self._began)


class Stack:
    """All of them, for as long as the context lasts."""

    def __init__(
        self,
        config: StackConfig,
        deploy: Callable[[Mapping[str, str], str], bool],
        announce: Callable[[Addresses], None],
        say: Callable[[str], None],
    ) -> None:
        """`deploy` registers the deployments and is called until it says that it is done, `announce` tells the
        scheduler where the others are; either raises `OSError` to be called again."""
        self.config = config
        self._deploy, self._announce, self._say = deploy, announce, say
        self._parts: list[Part] = []
        self._foreign: list[Row] = []
        self._prefect: PrefectServer | None = None
        self._deployed = False
        self.addresses = Addresses(storage=config.storage, storage_endpoint=config.endpoint)

    def __enter__(self) -> "Stack":
        try:
            self._plan()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in STOPPING:
            for part in [part for part in self._parts if part.name == name]:
                if part.stop():
                    self._say(f"stopped the {TITLES[name]}")
                    if name == "worker":
                        self._end_runs(RUN_STOP_SECONDS)
                elif name == "prefect":
                    self._say("the Prefect server stays: a run of this home uses it")
                self._parts.remove(part)
        if self._prefect is not None:
            self._prefect.stop()

    @property
    def ready(self) -> bool:
        """Whether everything works."""
        return self._deployed and all(part.works for part in self._parts)

    def look(self) -> None:
        """See how each is and do what is to be done. Raises `ServiceError` for one that never comes up."""
        for part in self._parts:
            part.look()
        prefect = [part for part in self._parts if part.name in ("prefect", "worker")]
        if not self._deployed and all(part.works for part in prefect):
            assert self.addresses.prefect is not None
            with suppress(OSError):
                self._deployed = self._deploy(self._prefect_environment(), self.addresses.prefect)

    def rows(self) -> list[Row]:
        """What a person sees."""
        state = "registered" if self._deployed else "waiting"
        own = [Row(TITLES[part.name], part.state, part.address) for part in self._parts]
        extra = [Row(TITLES["deployments"], state, "rlvf/train  rlvf-sft/warm-up  rlvf-eval/scheduled")]
        return [*self._foreign, *own, *extra, Row("storage", "used", self.config.storage)]

    def keep_up(self, show: Callable[[list[Row], bool], None]) -> None:
        """Keep everything alive until a signal ends it; `show` gets the rows and whether everything has worked once."""
        ready = False
        while True:
            self.look()
            if self.ready and not ready:
                ready = True
                write_up(self.config.home, Up(os.getpid(), True, self.addresses))
            show(self.rows(), ready)
            time.sleep(LOOK_SECONDS)

    # -- what there is

    def _plan(self) -> None:
        home, host = self.config.home, self.config.host
        for name in STOPPING:  # of an `up` that was killed
            _service(home, name).stop_unused()
        ports = _Ports(home, host, self.config.ports, self._say)
        prefect = self._plan_prefect(ports)
        mlflow = self._plan_mlflow(ports)
        scheduler, dashboard = self._plan_scheduler(ports)
        self.addresses = Addresses(prefect, mlflow, scheduler, dashboard, self.config.storage, self.config.endpoint)
        ports.keep()
        write_up(home, Up(os.getpid(), False, self.addresses))
        service = _held(home, "worker")
        self._parts.append(
            Part(
                "worker",
                f"work pool {POOL}",
                service,
                self._worker,
                lambda: self._api(prefect).has(f"work_pools/{POOL}"),
                needs=[part for part in self._parts if part.name == "prefect"],
                on_start=self._end_runs,
            )
        )

    def _plan_prefect(self, ports: "_Ports") -> str:
        if not is_loopback(self.config.host):
            password(self.config.home, "prefect")
        port = None if os.environ.get("PREFECT_API_URL") else ports.choose("prefect", probe=False)
        self._prefect = server = PrefectServer(self.config.home, self._say, self.config.host, port)
        if not server.is_ours:
            self._foreign.append(Row(TITLES["prefect"], "was there", server.url))
            return server.url
        deadline = time.monotonic() + 10
        while not server.url:  # a run of this home has started it
            server.url = str(server.service.found().get("url", ""))
            if time.monotonic() > deadline:
                raise ServiceError("the Prefect server of this home does not say where it listens; try again")
            time.sleep(0.05)
        found = urllib.parse.urlsplit(server.url)
        if found.hostname != self.config.host.strip("[]"):
            raise ValueError(
                f"host {self.config.host}: the Prefect server of this home serves a run at {found.hostname}; wait "
                "until that run has ended"
            )
        ports.chosen["prefect"] = int(found.port or 0)
        part = Part("prefect", server.url, server.service, server.program, server.serves, stop=server.stop)
        self._parts.append(part)
        return server.url

    def _plan_mlflow(self, ports: "_Ports") -> str:
        given = os.environ.get("MLFLOW_TRACKING_URI")
        if given:
            if not given.startswith(("http://", "https://")):
                raise ValueError(
                    f"MLFLOW_TRACKING_URI = {_masked(given)}: names no server; for a database, set "
                    "MLFLOW_BACKEND_STORE_URI instead and unset it"
                )
            if not answers(given):
                raise ValueError(
                    f"MLFLOW_TRACKING_URI = {_masked(given)}: no MLflow server answers there; start it, or unset the "
                    "variable to use a local one"
                )
            self._foreign.append(Row(TITLES["mlflow"], "was there", _masked(given)))
            return _masked(given)
        port = ports.choose("mlflow")
        url = f"http://{bracketed(self.config.host)}:{port}"
        service = _held(self.config.home, "mlflow")
        self._parts.append(
            Part("mlflow", url, service, lambda: self._mlflow(service, port), lambda: answers(url, timeout=1.0))
        )
        return url

    def _plan_scheduler(self, ports: "_Ports") -> tuple[str, str | None]:
        given = os.environ.get("RLVF_SCHEDULER")
        if given:
            try:
                self._announce(Addresses(scheduler=given))
            except OSError as error:
                raise ValueError(
                    f"RLVF_SCHEDULER = {given}: {error}; start it, or unset the variable to use a local one"
                ) from error
            self._foreign.append(Row(TITLES["scheduler"], "was there", given))
            return given, None
        port, page = ports.choose("scheduler"), ports.choose("dashboard")
        address = f"{'tls' if self.config.tls else 'tcp'}://{bracketed(self.config.host)}:{port}"
        service = _held(self.config.home, "scheduler")

        def works() -> bool:
            with suppress(OSError):
                self._announce(self.addresses)
                return True
            return False

        self._parts.append(Part("scheduler", address, service, lambda: self._scheduler(service, port, page), works))
        return address, f"http://{LOOPBACK}:{page}/status"

    # -- what runs it

    def _mlflow(self, service: Service, port: int) -> Program:
        home, host = self.config.home, self.config.host
        command = [sys.executable, "-P", "-m", "mlflow", "server", "--host", host, "--port", str(port)]
        command += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
        environment = {
            "MLFLOW_BACKEND_STORE_URI": os.environ.get("MLFLOW_BACKEND_STORE_URI") or f"sqlite:///{home}/mlflow.db",
            "MLFLOW_ARTIFACTS_DESTINATION": store.join(self.config.storage, "mlartifacts"),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
        }
        if not is_loopback(host):
            # its password is not in the file: the environment of a process is its owner's alone
            settings = service.folder / "auth.ini"
            lines = ["[mlflow]", "default_permission = READ", f"database_uri = sqlite:///{home}/mlflow-auth.db"]
            disk.write_file(settings, "\n".join([*lines, f"admin_username = {MLFLOW_USER}", ""]).encode(), 0o600)
            at = f"{bracketed(host)}:{port}"
            command += ["--app-name", "basic-auth", "--allowed-hosts", f"{at},{bracketed(host)}"]
            command += ["--cors-allowed-origins", f"http://{at}"]
            environment |= {
                "MLFLOW_AUTH_CONFIG_PATH": str(settings),
                "MLFLOW_AUTH_ADMIN_USERNAME": MLFLOW_USER,
                "MLFLOW_AUTH_ADMIN_PASSWORD": password(home, "mlflow"),
                "MLFLOW_FLASK_SERVER_SECRET_KEY": password(home, "mlflow-sessions"),
            }
        return Program(command, self._common() | environment, service.folder)

    def _scheduler(self, service: Service, port: int, page: int) -> Program:
        # Dask's page asks for no password: it stays on this machine
        command = [sys.executable, "-P", "-m", "distributed.cli.dask_scheduler", "--host", self.config.host]
        command += ["--port", str(port), "--dashboard-address", f"{LOOPBACK}:{page}"]
        environment = scheduler_environment()
        if self.config.tls:
            command += ["--protocol", "tls"]
            environment |= tls_environment(self.config.home)
        return Program(command, self._common() | environment, service.folder)

    def _worker(self) -> Program:
        home, known = self.config.home, self.addresses
        environment = {
            **self._prefect_environment(),
            "RLVF_HOME": str(home),
            "RLVF_STORAGE": self.config.storage,
            "RLVF_SCHEDULER": known.scheduler or "",
            "MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI") or known.mlflow or "",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PYTHONSAFEPATH": "1",  # a folder named flows where someone stands is not ours
        }
        if not os.environ.get("MLFLOW_TRACKING_URI") and not is_loopback(self.config.host):
            environment |= {
                "MLFLOW_TRACKING_USERNAME": MLFLOW_USER,
                "MLFLOW_TRACKING_PASSWORD": password(home, "mlflow"),
            }
        name = f"rlvf-{machine_name()}"
        command = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        # where `rlvf up` was given, so that a run finds the files that it names as they are seen from there
        return Program([*command, "--name", name], self._common() | environment, Path.cwd(), WORKER_STOP_SECONDS)

    def _common(self) -> dict[str, str]:
        near = [os.environ.get("NO_PROXY", ""), "localhost", LOOPBACK, self.config.host]
        without_proxy = ",".join(dict.fromkeys(filter(None, near)))
        endpoint = {"AWS_ENDPOINT_URL_S3": self.config.endpoint} if self.config.endpoint else {}
        return {"NO_PROXY": without_proxy, "no_proxy": without_proxy, **endpoint}

    def _prefect_environment(self) -> dict[str, str]:
        assert self._prefect is not None
        return self._prefect.environment

    def _api(self, url: str) -> PrefectApi:
        return PrefectApi(url, api_password(self.config.home, url))

    def _end_runs(self, seconds: float = 0.0) -> None:
        """No run seems to be running that is not; another machine's runs may be on a server that was there before."""
        url = self.addresses.prefect
        if url is None or self._prefect is None or not self._prefect.is_ours:
            return
        with suppress(OSError, ValueError):  # it is away itself; the next start sees to it
            for name in self._api(url).end_runs(seconds):
                self._say(f"run {name} was stopped with its worker: rlvf train --resume {name} goes on with it")


class _Ports:
    """Which port each service gets: the one chosen, that of the last time, the usual one; another where it is taken."""

    def __init__(self, home: Path, host: str, given: Mapping[str, int], say: Callable[[str], None]) -> None:
        self.chosen: dict[str, int] = {}
        self._file = home / "services" / "ports.json"
        self._host, self._given, self._say = host, given, say
        self._last: dict[str, int] = {}
        with suppress(OSError, ValueError):
            self._last = {str(name): int(port) for name, port in json.loads(self._file.read_text()).items()}

    def choose(self, name: str, probe: bool = True) -> int:
        wanted = self._given.get(name, self._last.get(name, PORTS[name]))
        if not probe:
            return wanted
        port = free_port(wanted, LOOPBACK if name == "dashboard" else self._host)
        if wanted not in (port, 0):
            self._say(f"port {wanted} is in use: the {TITLES.get(name, 'Dask page')} listens on {port}")
        self.chosen[name] = port
        return port

    def keep(self) -> None:
        disk.write_file(self._file, json.dumps({**self._last, **self.chosen}).encode())


def take_down_leftovers(home: Path, say: Callable[[str], None]) -> int:
    """Stop what an `up` that was killed has left, and say what; gives how many that were."""
    stopped = [name for name in STOPPING if _service(home, name).stop_unused()]
    for name in stopped:
        say(f"stopped the {TITLES[name]}")
    return len(stopped)


def living(home: Path) -> list[str]:
    """The services of this home that run."""
    return [name for name in STOPPING if _service(home, name).lives()]


def _service(home: Path, name: str) -> Service:
    if name == "prefect":
        return Service(home / "prefect", home / "logs" / "prefect-server.log")
    return Service(home / "services" / name, home / "logs" / f"{name}.log")


def _held(home: Path, name: str) -> Service:
    service = _service(home, name)
    service.hold()
    return service


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((_masked(line.strip())[:300] for line in reversed(lines) if line.strip(" │╯╰─╭╮")), "nothing")


def _masked(text: str) -> str:
    """Hides user:password@ in addresses."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def own_addresses() -> list[str]:
    """The IPv4 addresses by which other machines may reach this one."""
    import psutil

    found = [each.address for of in psutil.net_if_addrs().values() for each in of if each.family == socket.AF_INET]
    return [address for address in found if not is_loopback(address)]
