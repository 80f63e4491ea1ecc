"""The Dask cluster: the user's own, or one local process per role for the length of a run."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask.config
from distributed import Client, Scheduler, Security, SpecCluster

from infra.cluster.cluster_config import ClusterConfig, joined_scheduler
from infra.cluster.fork_server import START_METHOD, start_method
from infra.cluster.machine import cores, detect_device
from infra.cluster.reach import UnreachableError, connect, parse_address, reach
from infra.cluster.role import Role, RoleNanny, logs_to, role_options, start_resource_tracker
from infra.cluster.settings import DASK_SETTINGS, NANNY_SETTINGS
from infra.cluster.steady import count_by_steady_clock
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.security.certificates import SecurityError
from infra.security.tls import dask_security, temporary_security

LOCALHOST = "127.0.0.1"
CONNECT_SECONDS = 10.0
PORT_SECONDS, PACKET_SECONDS = 2.0, 3.0  # before anything starts: for a port to be open, a machine to be there


class ClusterError(ValueError):
    """The cluster that was asked for cannot be reached."""


def workers(
    config: ClusterConfig, *, log_dir: Path | None = None, preload: Mapping[str, Sequence[str]] | None = None
) -> dict[str, dict[str, Any]]:
    """The local workers as `SpecCluster` wants them, by name. `preload` maps a role tag to modules."""
    warm = preload or {}
    device = _device(config)
    models = [("GENERATOR", config.generators), ("REFERENCE", config.references), ("CRITIC", config.critics)]
    computing = 1 + sum(count for _, count in models)
    threads = config.threads or max(1, cores() // computing)
    roles = [Role("trainer", (device, "TRAINER"), threads, warm.get("TRAINER", ()), computing, config.memory)]
    for tag, count in models:
        for index in range(count):
            name = f"{tag.lower()}-{index}"
            roles.append(Role(name, (device, tag), threads, warm.get(tag, ()), computing, config.memory))
    for index in range(config.verifiers):
        roles.append(Role(f"verifier-{index}", ("CPU", "VERIFIER"), 1, warm.get("VERIFIER", ())))
    return {role.name: {"cls": RoleNanny, "options": role_options(role, LOCALHOST, log_dir)} for role in roles}


def _device(config: ClusterConfig) -> str:
    return detect_device() if config.device == "auto" else config.device.upper()


def _modules(preload: Mapping[str, Sequence[str]] | None) -> list[str]:
    return [module for modules in (preload or {}).values() for module in modules]


def prepare(config: ClusterConfig, preload: Mapping[str, Sequence[str]]) -> None:
    """Begin, in a process beside this one, with the imports of the local workers that `cluster` will start."""
    if joined_scheduler(config) is None:
        start_resource_tracker()  # its first start unblocks SIGINT, which the workers would inherit otherwise
        start_method(_device(config), _modules(preload))


def check_scheduler(config: ClusterConfig, kept: str | None = None) -> None:
    """Refuse a scheduler that is to be joined, before anything starts, where nothing takes a connection at its address.
    Whether it is one, and one that is busy, is left to `cluster`, and so is the one `kept` by an `rlvf up` of this
    home, which starts it again. Raises `ClusterError`."""
    if (address := joined_scheduler(config)) is not None and address != kept:
        with _named(config, address):
            where = parse_address(address, rlvf_home())
            _again(lambda: connect(where, PACKET_SECONDS).close(), PORT_SECONDS)


def begins(config: ClusterConfig) -> str:
    """What `cluster` takes its time for, for people."""
    if (address := joined_scheduler(config)) is not None:
        return f"joining the cluster of {address}"
    return f"starting the workers {', '.join(workers(config))}"


@contextmanager
def cluster(
    config: ClusterConfig,
    *,
    log_dir: Path | None = None,
    preload: Mapping[str, Sequence[str]] | None = None,
    patience: float = CONNECT_SECONDS,
) -> Iterator[Client]:
    """A client of `config.scheduler`, or of a cluster that lives as long as the context.

    A local worker that dies is restarted under its name and with its tags; a call that it ran fails at once with
    `KilledWorker`. `preload` names the modules that the workers of a role tag import before their first call. Those
    processes, and Dask in this one, log to files in `log_dir`, or to the terminal if there is none.
    Raises `ClusterError` when `config.scheduler` has not answered in `patience` seconds.
    """
    if (address := joined_scheduler(config)) is not None:
        with _logs(log_dir), _joined(config, address, patience) as client:
            yield client
        return
    with local_cluster(config, temporary_security(), log_dir=log_dir, preload=preload) as client:
        yield client


@contextmanager
def local_cluster(
    config: ClusterConfig,
    security: Security,
    *,
    log_dir: Path | None,
    preload: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Client]:
    """A client of a cluster on this machine that lives as long as the context.

    Loopback is open to every user of the machine, and whoever reaches a port of Dask runs code as the user who started
    it: `security` that requires encryption closes every port of the scheduler, the workers and their nannies to those
    without its keys.
    """
    encrypted = bool(security.require_encryption)
    with ExitStack() as stack:
        stack.enter_context(_logs(log_dir))
        stack.enter_context(_environment_kept())
        stack.enter_context(
            dask.config.set(
                {
                    **DASK_SETTINGS,
                    "distributed.scheduler.worker-ttl": None,  # one machine: all sleep and wake together
                    # After this time the cluster closes the nanny of a worker that has died and is not back: one that
                    # died a second time meanwhile would never come back.
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
        stack.enter_context(dask.config.set({START_METHOD: start_method(_device(config), _modules(preload))}))
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
        with put_off():  # half a cluster closes nothing of itself, and half a client waits a minute for itself
            local = SpecCluster(scheduler=scheduler, workers=specified, security=security, name="rlvf")  # type: ignore[no-untyped-call]
            stack.callback(_close, local)
            client = Client(local, set_as_default=False)  # type: ignore[no-untyped-call]
            stack.callback(_close, client)
        yield client


@contextmanager
def _logs(log_dir: Path | None) -> Iterator[None]:
    """What Dask logs in this process goes to a file, if there is a folder for it."""
    if log_dir is None:
        yield
        return
    log_dir.mkdir(parents=True, exist_ok=True)
    with logs_to(log_dir / "dask.log"):
        yield


def _close(one: SpecCluster | Client) -> None:
    """Close it. Workers that are too slow for that end with this process: what was done here stays done."""
    try:
        one.close()
    except TimeoutError:
        # into Dask's file; a logger that was there when a library configured logging may have been switched off
        logging.getLogger("distributed.rlvf").warning("%r could not be closed in time", one)


@contextmanager
def _joined(config: ClusterConfig, address: str, patience: float) -> Iterator[Client]:
    """A client of a running scheduler."""
    home = rlvf_home()
    count_by_steady_clock()
    with _named(config, address):
        where = parse_address(address, home)
        _again(lambda: reach(where, home), patience)
        security = dask_security(home) if where.scheme == "tls" else None
        client = Client(  # type: ignore[no-untyped-call]
            str(where), timeout=CONNECT_SECONDS, set_as_default=False, security=security
        )
    with client:
        yield client


def _again(attempt: Callable[[], object], patience: float) -> None:
    """Attempt it until it works, or `patience` is over."""
    deadline = time.monotonic() + patience
    while True:
        try:
            attempt()
            return
        except UnreachableError as error:
            if not error.may_come_back or time.monotonic() > deadline:
                raise
        time.sleep(0.25)


@contextmanager
def _named(config: ClusterConfig, address: str) -> Iterator[None]:
    """Turns what is wrong with a scheduler into `ClusterError`: how its address was given, and how to do without."""
    named, leave = ("cluster.scheduler", "leave it out") if config.scheduler else ("RLVF_SCHEDULER", "unset it")
    named, instead = f"{named} = {address!r}", f"or {leave} to use this machine alone"
    try:
        yield
    except SecurityError as error:
        raise ClusterError(f"{named}: {error}") from error
    except UnreachableError as error:
        raise ClusterError(f"{named} does not answer ({error.why}); {instead}") from error
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{named} does not answer ({error}); start one with `rlvf up` or `dask scheduler`, {instead}"
        ) from error


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore PYTHONHASHSEED, which a nanny sets in its own process, here the flow's, for its workers to inherit."""
    before = os.environ.get("PYTHONHASHSEED")
    try:
        yield
    finally:
        os.environ.pop("PYTHONHASHSEED", None)
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before
