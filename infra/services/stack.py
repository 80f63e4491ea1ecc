"""The services of `rlvf up`: where each listens, what it needs, its health check, and the order in which they stop.
A service that was there before is used and left alone."""

import os
import shlex
import time
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import suppress

from infra.hosts import LOOPBACK, bracketed
from infra.security.bundles import machine_name
from infra.services import programs
from infra.services.addresses import Addresses, Up, write_up
from infra.services.http import proves
from infra.services.kept_port import KeptPort
from infra.services.of_home import STOPPING, held, take_down_leftovers
from infra.services.part import DEPLOYMENTS, TITLES, Part, Row
from infra.services.passwords import auth_of
from infra.services.ports import Ports
from infra.services.prefect_api import POOL, PrefectApi
from infra.services.prefect_server import PrefectServer, prefect_api, server_password
from infra.services.programs import StackConfig
from infra.services.served import given_mlflow
from infra.services.supervisor import Program, ServiceError

POLL_SECONDS = 0.2
RUN_STOP_SECONDS = 10.0  # for a run to end after its worker


class Stack:
    """All services, for as long as the context lasts."""

    def __init__(
        self,
        config: StackConfig,
        deploy: Callable[[Mapping[str, str], str], bool],
        announce: Callable[[Addresses], None],
        joined: Callable[[Addresses], bool],
        say: Callable[[str], None],
    ) -> None:
        """`deploy` registers the deployments and is called until it returns True, `announce` sends the addresses to the
        scheduler, `joined` returns whether this machine is one of its workers; each is called again after an `OSError`.
        """
        self.config = config
        self._deploy, self._announce, self._joined, self._say = deploy, announce, joined, say
        self._parts: list[Part] = []
        self._foreign: list[Row] = []
        self._prefect: PrefectServer | None = None
        self._deployed = False
        self._ports = Ports(config.home, config.host, config.ports, say)
        self._there: dict[str, str] = {}  # the addresses of the services that were there before
        self._kept = {"prefect": KeptPort(config.home / "prefect"), "mlflow": KeptPort(config.home / "services/mlflow")}

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
                elif name == "prefect" and part.lives:
                    self._say("the Prefect server stays: a run of this home uses it")
                self._parts.remove(part)
        if self._prefect is not None:
            self._prefect.stop()
        for kept in self._kept.values():
            kept.free()

    @property
    def addresses(self) -> Addresses:
        """Where every service is, or will be: one that has never worked moves if its port is taken."""
        known = {part.name: part.address for part in self._parts if part.name in ("prefect", "mlflow", "scheduler")}
        page = self._ports.chosen.get("dashboard")
        dashboard = f"http://{LOOPBACK}:{page}/status" if page and "scheduler" in known else None
        config = self.config
        storage = {"storage": config.storage, "storage_endpoint": config.endpoint, "storage_mark": config.mark}
        return Addresses(dashboard=dashboard, **{**self._there, **known, **storage})

    @property
    def ready(self) -> bool:
        """Whether every service works and the deployments are registered."""
        return self._deployed and all(part.works for part in self._parts)

    def poll(self) -> None:
        """Poll every part; register the deployments. Raises `ServiceError` for a needed part that never comes up."""
        for part in list(self._parts):
            try:
                part.poll()
            except ServiceError as error:
                if part.is_needed:
                    raise
                self._say(f"{error}; the others go on")
                part.stop()
                self._parts.remove(part)
        prefect = [part for part in self._parts if part.name in ("prefect", "worker")]
        if not self._deployed and all(part.works for part in prefect):
            url, server = self.addresses.prefect, self._prefect
            assert url is not None
            assert server is not None
            if not server.is_ours or server.serves():  # Prefect's command sends its password to any server
                with suppress(OSError):
                    self._deployed = self._deploy(server.environment, url)

    def rows(self) -> list[Row]:
        """The services as a table."""
        state = "registered" if self._deployed else "waiting"
        own = [Row(TITLES[part.name], part.state, part.address.removesuffix("/api")) for part in self._parts]
        extra = [Row(TITLES["deployments"], state, DEPLOYMENTS)]
        return [*self._foreign, *own, *extra, Row("storage", "used", self.config.storage)]

    def keep_up(self, show: Callable[[list[Row], bool], None]) -> None:
        """Poll until a signal raises; `show` gets the rows, and whether everything has worked once."""
        ready, written = False, None
        while True:
            self.poll()
            ready = ready or self.ready
            if written != (ready, self.addresses):
                written = (ready, self.addresses)
                write_up(self.config.home, Up(os.getpid(), *written))
            show(self.rows(), ready)
            time.sleep(POLL_SECONDS)

    # -- what there is

    def _plan(self) -> None:
        home = self.config.home
        take_down_leftovers(home, self._say)  # of an `up` that was killed
        prefect = self._plan_prefect()
        self._plan_mlflow()
        self._plan_scheduler()
        write_up(home, Up(os.getpid(), False, self.addresses))
        if self.config.works:
            self._plan_machine()
        self._parts.append(
            Part(
                "worker",
                f"work pool {POOL}",
                held(home, "worker"),
                lambda: programs.worker(self.config, self.addresses, prefect.environment),
                lambda: self._api(str(self.addresses.prefect)).has_worker(programs.prefect_worker_name()),
                needs=[part for part in self._parts if part.name != "machine"],  # its environment names them
                on_start=self._end_runs,
            )
        )

    def _plan_prefect(self) -> PrefectServer:
        port = None if os.environ.get("PREFECT_API_URL") else self._ports.wanted("prefect")
        self._prefect = server = PrefectServer(
            self.config.home,
            self._say,
            self.config.host,
            port,
            tls=self.config.https,
            fixed=self._ports.is_given("prefect"),
            kept=self._kept["prefect"],
        )
        if not server.is_ours:
            self._was_there("prefect", server.url)
            return server
        deadline = time.monotonic() + 10
        while not server.url:  # a run of this home has started it
            server.url = server.service.found().url or ""
            if time.monotonic() > deadline:
                raise ServiceError("the Prefect server of this home does not say where it listens; try again")
            time.sleep(0.05)
        found = urllib.parse.urlsplit(server.url)
        if found.hostname != self.config.host.strip("[]") or (found.scheme == "https") != self.config.https:
            raise ValueError(
                f"host {self.config.host}: the Prefect server of this home serves a run at {server.url}; wait until "
                "that run has ended"
            )
        if self._ports.is_given("prefect") and found.port != self._ports.wanted("prefect"):
            raise ValueError(
                f"--port-prefect {self._ports.wanted('prefect')}: the Prefect server of this home serves a run at "
                f"{found.port}; wait until that run has ended, or leave the option out"
            )

        def move() -> str | None:
            if not server.moved():
                return None
            self._keep_port_of(server.url)
            return server.url

        self._keep_port_of(server.url)
        part = Part("prefect", server.url, server.service, server.program, server.serves, stop=server.stop, move=move)
        self._parts.append(part)
        return server

    def _keep_port_of(self, url: str) -> None:
        self._ports.chosen["prefect"] = int(urllib.parse.urlsplit(url).port or 0)
        self._ports.keep()

    def _plan_mlflow(self) -> None:
        if given := given_mlflow():
            self._was_there("mlflow", given)
            return
        home, kept = self.config.home, self._kept["mlflow"]
        service = held(home, "mlflow")

        def address() -> str:
            scheme = "https" if self.config.https else "http"
            return f"{scheme}://{bracketed(self.config.host)}:{self._ports.chosen['mlflow']}"

        def program() -> Program:
            listening = kept.keep(self.config.host.strip("[]"), self._ports.chosen["mlflow"])
            return programs.mlflow(self.config, service.folder, address(), listening)

        self._ports.choose("mlflow")
        self._parts.append(
            Part(
                "mlflow",
                address(),
                service,
                program,
                lambda: proves(address(), auth_of(home, "mlflow"), timeout=1.0),
                move=lambda: address() if not kept.is_held and self._ports.moved("mlflow") else None,
            )
        )

    def _plan_scheduler(self) -> None:
        given = os.environ.get("RLVF_SCHEDULER")
        if given:
            try:
                self._announce(Addresses(scheduler=given))
            except OSError as error:
                raise ValueError(
                    f"RLVF_SCHEDULER = {given}: {error}; start it, or unset the variable to use a local one"
                ) from error
            self._was_there("scheduler", given)
            return
        ports = self._ports
        service = held(self.config.home, "scheduler")

        def address() -> str:
            return f"{'tls' if self.config.tls else 'tcp'}://{bracketed(self.config.host)}:{ports.chosen['scheduler']}"

        def works() -> bool:
            self._announce(self.addresses)
            return True

        def move() -> str | None:
            return address() if any([ports.moved("scheduler"), ports.moved("dashboard")]) else None

        ports.choose("scheduler")
        ports.choose("dashboard")
        self._parts.append(
            Part(
                "scheduler",
                address(),
                service,
                lambda: programs.scheduler(
                    self.config, service.folder, ports.chosen["scheduler"], ports.chosen["dashboard"]
                ),
                works,
                move=move,
            )
        )

    def _plan_machine(self) -> None:
        def program() -> Program:
            return programs.machine(self.config, str(self.addresses.scheduler))

        self._parts.append(
            Part(
                "machine",
                machine_name(),
                held(self.config.home, "machine"),
                program,
                lambda: self._joined(self.addresses),
                needs=[part for part in self._parts if part.name == "scheduler"],
                is_needed=False,
            )
        )

    def _was_there(self, name: str, url: str) -> None:
        self._there[name] = url
        self._foreign.append(Row(TITLES[name], "was there", url))

    def _api(self, url: str) -> PrefectApi:
        if self._prefect is not None and self._prefect.is_ours:  # also while it is dead
            return PrefectApi(url, server_password(self.config.home), is_ours=True)
        return prefect_api(self.config.home, url)

    def _end_runs(self, seconds: float = 0.0) -> None:
        """Mark the runs whose process is gone, on a server of this home: another may have runs of other machines."""
        url = self.addresses.prefect
        if url is None or self._prefect is None or not self._prefect.is_ours:
            return
        with suppress(OSError, ValueError):  # it is away itself; the next start does this again
            for name, run in self._api(url).end_runs(seconds):
                self._say(f"the process of run {name} is gone: rlvf train --resume {shlex.quote(run)} goes on with it")
