"""The Dask cluster: the one of the user, or one local process per role for the length of a run."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import dask.config
from distributed import Client, Scheduler, Security, SpecCluster
from pydantic import BaseModel, ConfigDict, Field, field_validator

from infra.cluster.machine import cores, detect_device
from infra.cluster.reach import UnreachableError, parse_address, reach
from infra.cluster.role import RoleNanny, logs_to, role_options, start_resource_tracker
from infra.cluster.settings import DASK_SETTINGS, NANNY_SETTINGS
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.security.certificates import SecurityError
from infra.security.tls import dask_security, temporary_security

LOCALHOST = "127.0.0.1"
ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")
CONNECT_SECONDS = 10.0


class ClusterConfig(BaseModel):
    """Where the work runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheduler: str | None = Field(
        None,
        description="address of a Dask scheduler to join (tls://host:8786); none takes $RLVF_SCHEDULER, or starts a "
        "local one",
    )
    generators: int = Field(1, description="local processes that sample completions", ge=0)
    verifiers: int = Field(1, description="local processes that judge completions", ge=0)
    threads: int | None = Field(
        None, description="threads of the trainer and of each generator; none divides the cores among them", ge=1
    )
    device: Literal["auto", "cuda", "mps", "cpu"] = Field(
        "auto", description="the device tag of the local trainer and generators"
    )

    @field_validator("scheduler")
    @classmethod
    def _has_a_port(cls, address: str | None) -> str | None:
        if address is not None and not ADDRESS.fullmatch(address):
            raise ValueError("is no address of a scheduler; write it like tls://192.168.1.5:8786")
        return address


class ClusterError(ValueError):
    """The cluster that was asked for cannot be reached."""


def _worker(name: str, tags: tuple[str, ...], threads: int, log_dir: Path | None, warm: str | None) -> dict[str, Any]:
    return {
        "cls": RoleNanny,
        "options": role_options(name, tags, threads, host=LOCALHOST, log_dir=log_dir, warm=warm),
    }


def workers(
    config: ClusterConfig, *, log_dir: Path | None = None, preload: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """The local workers as `SpecCluster` wants them, by name. `preload` maps a role tag to a module."""
    warm = preload or {}
    device = detect_device() if config.device == "auto" else config.device.upper()
    threads = config.threads or max(1, cores() // (1 + config.generators))
    spec = {"trainer": _worker("trainer", (device, "TRAINER"), threads, log_dir, warm.get("TRAINER"))}
    for index in range(config.generators):
        name = f"generator-{index}"
        spec[name] = _worker(name, (device, "GENERATOR"), threads, log_dir, warm.get("GENERATOR"))
    for index in range(config.verifiers):
        name = f"verifier-{index}"
        spec[name] = _worker(name, ("CPU", "VERIFIER"), 1, log_dir, warm.get("VERIFIER"))
    return spec


def joined_scheduler(config: ClusterConfig) -> str | None:
    """The address of the scheduler that is joined; None where the cluster is started here, its scheduler in this very
    process."""
    return config.scheduler or os.environ.get("RLVF_SCHEDULER") or None


@contextmanager
def cluster(
    config: ClusterConfig,
    *,
    log_dir: Path | None = None,
    preload: Mapping[str, str] | None = None,
    patience: float = CONNECT_SECONDS,
) -> Iterator[Client]:
    """A client of `config.scheduler`, or of a cluster that lives as long as the context.

    A local worker that dies is restarted under its name and with its tags; a call that it ran fails at once with
    `KilledWorker`. `preload` names the module that the workers of a role tag import before their first call. What the
    processes have to say goes to files in `log_dir`, or to the terminal if there is none.
    Raises `ClusterError` when `config.scheduler` has not answered in `patience` seconds.
    """
    if (address := joined_scheduler(config)) is not None:
        named = "RLVF_SCHEDULER" if config.scheduler is None else "cluster.scheduler"
        with _joined(address, f"{named} = {address!r}", patience) as client:
            yield client
        return
    with local_cluster(config, temporary_security(), log_dir=log_dir, preload=preload) as client:
        yield client


@contextmanager
def local_cluster(
    config: ClusterConfig,
    security: Security,
    *,
    log_dir: Path | None = None,
    preload: Mapping[str, str] | None = None,
) -> Iterator[Client]:
    """A client of a cluster of this machine's that lives as long as the context.

    Loopback is open to every user of the machine, and whoever reaches a port of Dask's runs code as the one who started
    it: with `security` that requires encryption only who has its keys does, on every port of the scheduler, the workers
    and their nannies.
    """
    encrypted = bool(security.require_encryption)
    with ExitStack() as stack:
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(logs_to(log_dir / "dask.log"))
        stack.enter_context(_environment_kept())
        stack.enter_context(
            dask.config.set(
                {
                    **DASK_SETTINGS,
                    "distributed.scheduler.worker-ttl": None,  # one machine: all sleep and wake together
                    # So long after a death the cluster looks whether the worker is there and closes its nanny if not:
                    # one that is away again, because it died a second time, would never come back.
                    "distributed.deploy.lost-worker-timeout": "1000 days",
                    **NANNY_SETTINGS,
                }
            )
        )
        # Started here because its first start unblocks SIGINT in the thread that caused it: RoleNanny's, otherwise.
        start_resource_tracker()
        specified = workers(config, log_dir=log_dir, preload=preload)
        for worker in specified.values():
            worker["options"]["security"] = security
        scheduler = {
            "cls": Scheduler,
            "options": {
                "host": LOCALHOST,
                "port": 0,
                "protocol": "tls" if encrypted else "tcp",
                "security": security,
                "dashboard": True,
                "dashboard_address": f"{LOCALHOST}:0",
            },
        }
        with put_off():  # half a cluster closes nothing of itself
            local = SpecCluster(scheduler=scheduler, workers=specified, security=security, name="rlvf")  # type: ignore[no-untyped-call]
            stack.callback(local.close)
        client = Client(local, set_as_default=False)  # type: ignore[no-untyped-call]
        yield stack.enter_context(client)


@contextmanager
def _joined(address: str, named: str, patience: float) -> Iterator[Client]:
    """A client of a scheduler that is there already; `named` is how the user wrote its address."""
    home = rlvf_home()
    instead = "start one with `rlvf up` or `dask scheduler`, or leave it out to use this machine"
    try:
        where = parse_address(address, home)
        deadline = time.monotonic() + patience
        while True:
            try:
                reach(where, home)
                break
            except UnreachableError as error:
                if not error.may_come_back or time.monotonic() > deadline:
                    raise
            time.sleep(0.25)
        security = dask_security(home) if where.scheme == "tls" else None
        client = Client(  # type: ignore[no-untyped-call]
            str(where), timeout=CONNECT_SECONDS, set_as_default=False, security=security
        )
    except SecurityError as error:
        raise ClusterError(f"{named}: {error}") from error
    except UnreachableError as error:
        raise ClusterError(f"{named} does not answer ({error.why})") from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"{named} does not answer ({error}); {instead}") from error
    with client:
        yield client


@contextmanager
def _environment_kept() -> Iterator[None]:
    """A nanny sets PYTHONHASHSEED in its own process, here the flow's, for its workers to inherit: take it back."""
    before = os.environ.get("PYTHONHASHSEED")
    try:
        yield
    finally:
        os.environ.pop("PYTHONHASHSEED", None)
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before
