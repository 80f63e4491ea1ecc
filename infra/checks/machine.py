"""Checks of a machine before it joins a cluster, and whenever a person asks: one line each, with what to do."""

import re
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from infra.cluster.placement import Offer
from infra.cluster.source import SOURCE, announced
from infra.hosts import interfaces, listening_socket
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.usable import StorageError, probe_storage

CLOCK_SECONDS = 5.0  # certificates, leases and pages assume that clocks agree so far
ROUTE_SECONDS = 2.0
MEGABYTE = 10**6
# How many leading numbers of a version must agree, 1 where nothing is said: else messages are not understood.
MUST_AGREE = {"python": 2, "dask": 2, "distributed": 2, "rlvf": 2}


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str  # one line
    remedy: str = ""  # what to do about it; with `warn` and `fail`

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.state:<4}  {self.name:<10}  {self.found}{remedy}"


def check_versions(mine: Mapping[str, str], theirs: Mapping[str, str], whose: str) -> Check:
    """Whether two machines' packages can work together. Only what both have is compared."""
    wrong: list[str] = []
    other: list[str] = []
    for name in mine:
        if name != SOURCE and name in theirs and mine[name] != theirs[name]:
            depth = MUST_AGREE.get(name, 1)
            differ = _numbers(mine[name])[:depth] != _numbers(theirs[name])[:depth]
            if differ or _plain(mine[name]) != _plain(theirs[name]):
                (wrong if differ else other).append(f"{name} {mine[name]} here, {theirs[name]} there")
    same = f"the same as {whose}"
    if wrong:
        return Check(
            "versions",
            "fail",
            f"{', '.join(wrong)} ({whose})",
            "install the same everywhere: pip install -c constraints.txt -e . on both machines",
        )
    source = announced(theirs) if "rlvf" in theirs else ""  # Dask asks the scheduler for others' packages alone
    if SOURCE in mine and source not in ("", mine[SOURCE]):
        return Check(
            "versions",
            "fail",
            f"{SOURCE} {mine[SOURCE]} here, {source} there ({whose})",
            "install the same commit on both machines, and start there again what runs",
        )
    if other:
        return Check("versions", "warn", f"{', '.join(other)} ({whose})", "this mostly works; the same is safer")
    return Check("versions", "ok", same)


def check_clock(ahead: float) -> Check:
    """`ahead`: seconds that the other machine's clock is ahead of this one's."""
    if abs(ahead) <= CLOCK_SECONDS:
        return Check("clock", "ok", f"{abs(ahead):.1f} s apart from the scheduler's")
    which = "behind" if ahead > 0 else "ahead of"
    return Check(
        "clock", "fail", f"{abs(ahead):.0f} s {which} the scheduler's", "set it, for example: timedatectl set-ntp true"
    )


def check_storage(uri: str, megabytes: float = 0.01) -> Check:
    """Whether a file of random bytes can be written, read and removed at `uri`; a large one tells how fast."""
    try:
        written, read = probe_storage(uri, max(1, int(megabytes * MEGABYTE)))
    except StorageError as error:
        remedy = (
            "`rlvf certs --with-storage` puts credentials into a bundle"
            if place.local_path(uri) is None
            else "RLVF_STORAGE names it, else RLVF_HOME"
        )
        return Check("storage", "fail", str(error).removeprefix("storage "), remedy)
    speed = ""
    if megabytes >= 1:
        up, down = megabytes / max(written, 1e-9), megabytes / max(read, 1e-9)
        speed = f", {up:.1f} MB/s written, {down:.1f} MB/s read ({megabytes:g} MB)"
    return Check("storage", "ok", f"{masked(uri)} writable and readable{speed}")


def check_route(host: str, label: str = "") -> Check:
    """Whether a connection from this machine to its own address `host` comes through.

    Workers and process groups connect to their own address. On a bonded or VPN interface that can hang for ever.
    """
    name = f"{host} ({label})" if label else host
    try:
        with (
            listening_socket(host, 0) as listener,
            socket.create_connection(listener.getsockname()[:2], ROUTE_SECONDS),
        ):
            return Check("interface", "ok", f"{name} reaches itself")
    except OSError as error:
        why = "no connection in 2 s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Check(
            "interface",
            "fail",
            f"{name} does not reach itself ({why}): what uses this address hangs",
            "use another one with --host, and GLOO_SOCKET_IFNAME=lo for process groups on this machine alone",
        )


def used_addresses(towards: str = "192.0.2.1") -> set[str]:
    """The addresses of this machine that Dask and torch choose by themselves: on the way to `towards`, and that of the
    host name. Nothing is sent."""
    found = set()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        found.add(str(probe.getsockname()[0]))
    with suppress(OSError):
        found.add(socket.gethostbyname(socket.gethostname()))
    return found


def route_checks(towards: str = "192.0.2.1") -> list[Check]:
    """`check_route` of every address of this machine; one that nothing chooses by itself is worth a warning only."""
    found = interfaces()
    used = used_addresses(towards)
    with ThreadPoolExecutor(max(1, len(found))) as threads:
        checks = list(threads.map(lambda each: check_route(*each), found))
    bad = [
        check if address in used else replace(check, state="warn")
        for check, (address, _) in zip(checks, found, strict=True)
        if check.state == "fail"
    ]
    good = [address for check, (address, _) in zip(checks, found, strict=True) if check.state == "ok"]
    return [*bad, *([Check("interface", "ok", f"{', '.join(good)} reach themselves")] if good else [])]


def placement_checks(workers: Iterable[Offer], needs: Mapping[str, tuple[str, ...]]) -> list[Check]:
    """One check for each call of a placement: whether some worker announces all of its tags, or has its name."""
    present = list(workers)
    found = []
    for call, tags in needs.items():
        fitting = sum(worker.satisfies(tags) for worker in present)
        roles = ",".join(tag.lower() for tag in tags if tag in ("GENERATOR", "TRAINER", "VERIFIER")) or "generator"
        found.append(
            Check("placement", "ok", f"{call} needs {' '.join(tags)}: {fitting} worker{'s' * (fitting != 1)}")
            if fitting
            else Check("placement", "fail", f"{call} needs {' '.join(tags)}: no worker", f"rlvf worker --roles {roles}")
        )
    return found


def _numbers(version: str) -> list[str]:
    return re.findall(r"\d+", _plain(version))


def _plain(version: str) -> str:
    """Without the build: a CUDA build of torch works with a CPU build."""
    return version.partition("+")[0]
