"""The services of a cluster: where each listens, when it may start, how one knows that it works, and in what order it
all ends. What was there before is used and left alone."""

import os
import time
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from infra.hosts import LOOPBACK, bracketed, is_loopback
from infra.security.secrets import without_userinfo
from infra.services import programs
from infra.services.addresses import Addresses, Up, write_up
from infra.services.http import answers
from infra.services.part import TITLES, Part, Row, end_stragglers
from infra.services.passwords import password
from infra.services.ports import Ports
from infra.services.prefect_api import POOL, PrefectApi
from infra.services.prefect_server import PrefectServer, api_password
from infra.services.programs import StackConfig
from infra.services.supervisor import Service, ServiceError

STOPPING = ("worker", "scheduler", "mlflow", "prefect")  # in this order: each uses those after it
LOOK_SECONDS = 0.2
RUN_STOP_SECONDS = 10.0  # what a run gets to end when its worker has


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
        own = [Row(TITLES[part.name], part.state, part.address.removesuffix("/api")) for part in self._parts]
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
        take_down_leftovers(home, self._say)  # of an `up` that was killed
        ports = Ports(home, host, self.config.ports, self._say)
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
                lambda: programs.worker(self.config, self.addresses, self._prefect_environment()),
                lambda: self._api(prefect).has(f"work_pools/{POOL}"),
                needs=[part for part in self._parts if part.name == "prefect"],
                on_start=self._end_runs,
            )
        )

    def _plan_prefect(self, ports: "Ports") -> str:
        if not is_loopback(self.config.host):
            password(self.config.home, "prefect")
        port = None if os.environ.get("PREFECT_API_URL") else ports.wanted("prefect")
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

    def _plan_mlflow(self, ports: "Ports") -> str:
        given = os.environ.get("MLFLOW_TRACKING_URI")
        if given:
            if not given.startswith(("http://", "https://")):
                raise ValueError(
                    f"MLFLOW_TRACKING_URI = {without_userinfo(given)}: names no server; for a database, set "
                    "MLFLOW_BACKEND_STORE_URI instead and unset it"
                )
            if not answers(given):
                raise ValueError(
                    f"MLFLOW_TRACKING_URI = {without_userinfo(given)}: no MLflow server answers there; start it, or "
                    "unset the variable to use a local one"
                )
            self._foreign.append(Row(TITLES["mlflow"], "was there", without_userinfo(given)))
            return without_userinfo(given)
        port = ports.choose("mlflow")
        url = f"http://{bracketed(self.config.host)}:{port}"
        service = _held(self.config.home, "mlflow")
        self._parts.append(
            Part(
                "mlflow",
                url,
                service,
                lambda: programs.mlflow(self.config, service.folder, port),
                lambda: answers(url, timeout=1.0),
            )
        )
        return url

    def _plan_scheduler(self, ports: "Ports") -> tuple[str, str | None]:
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

        self._parts.append(
            Part(
                "scheduler",
                address,
                service,
                lambda: programs.scheduler(self.config, service.folder, port, page),
                works,
            )
        )
        return address, f"http://{LOOPBACK}:{page}/status"

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


def take_down_leftovers(home: Path, say: Callable[[str], None]) -> int:
    """Stop what an `up` that was killed has left, and say what; gives how many that were."""
    stopped = [name for name in STOPPING if _service(home, name).stop_unused()]
    for service in (_service(home, name) for name in STOPPING):
        if not service.lives():
            end_stragglers(service)
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
