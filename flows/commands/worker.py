"""`rlvf worker`."""

import argparse
import os
import signal
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from flows.commands.command import Command
from flows.run.workplace import IMPORTS
from infra.checks.cluster import cluster_checks, storage_checks
from infra.checks.machine import Check
from infra.cluster.machine import cores, detect_device, this_machine
from infra.cluster.membership import Membership
from infra.cluster.placement import ROLES
from infra.cluster.reach import parse_address, reach
from infra.cluster.role import Role
from infra.home import home_line, rlvf_home
from infra.hosts import is_loopback
from infra.interrupts import answered_by
from infra.security.bundles import check_machine_name, machine_name
from infra.security.certificates import SecurityError
from infra.security.identity import adopt_settings, install_bundle
from infra.security.printable import printable
from infra.services.addresses import a_worker, adopt_endpoint
from infra.services.of_home import known_addresses
from infra.services.scheduler import Seen, ask

EXAMPLES = """
rlvf worker --bundle jetson.bundle                     the first time: installs the bundle, then joins
rlvf worker                                            later: the scheduler that `rlvf status` names
rlvf worker tls://192.168.1.5:8786 --roles generator   sample completions only
rlvf worker tcp://10.0.0.5:8786 --insecure             without TLS, in a network where you trust everyone
"""
NAMESAKE_SECONDS = 10.0  # for a worker of the same name to give a sign of life: heartbeats come every few seconds


def _roles(text: str) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(word.strip().upper() for word in text.split(",") if word.strip()))
    unknown = [word.lower() for word in named if word not in ROLES]
    if unknown or not named:
        known = ", ".join(role.lower() for role in ROLES)
        raise argparse.ArgumentTypeError(f"{unknown[0] if unknown else text!r} is no role; the roles are {known}")
    return named


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help="of the scheduler (default: that of --bundle, or of `rlvf status`)",
    )
    command.add_argument("--scheduler", metavar="ADDRESS", help="the same, as other commands take it")
    command.add_argument("--bundle", metavar="FILE", help="made by `rlvf certs` on the scheduler's machine; kept")
    command.add_argument(
        "--roles",
        metavar="A,B",
        type=_roles,
        help="generator, verifier, trainer, reference, critic (default: generator,verifier, and trainer where the "
        "cluster has none yet)",
    )
    command.add_argument("--name", metavar="NAME", help="of this machine (default: of the bundle, or the host name)")
    command.add_argument("--device", choices=("auto", "cuda", "mps", "cpu"), default="auto", help="device (auto)")
    command.add_argument("--threads", metavar="N", type=int, help="of each generator and trainer (divides the cores)")
    command.add_argument(
        "--memory",
        metavar="GB",
        type=float,
        help="of models that each of them keeps on the device at a time (80%% of it, divided among them)",
    )
    command.add_argument("--host", metavar="A", help="address of this machine, as the others reach it")
    command.add_argument("--insecure", action="store_true", help="join without TLS over a network")
    command.add_argument(
        "--once", action="store_true", help="end when the scheduler goes away, instead of waiting for it"
    )


def _run(given: argparse.Namespace) -> None:
    home = rlvf_home()
    if given.threads is not None and given.threads < 1:
        raise ValueError(f"--threads {given.threads}: give at least 1")
    if given.memory is not None and not given.memory > 0:
        raise ValueError(f"--memory {given.memory:g}: give a number of GB above 0")
    if given.address and given.scheduler:
        raise ValueError(f"--scheduler {given.scheduler}: {given.address} is given too; name the scheduler once")
    if given.bundle is not None:
        install_bundle(Path(given.bundle), home)
    chosen = os.environ.get("RLVF_STORAGE")  # before that of the bundle, which may be outdated
    settings = adopt_settings(home)
    machine = given.name or (settings.machine if settings is not None else machine_name())
    check_machine_name(machine)
    brought = settings.scheduler if given.bundle is not None and settings is not None else None
    written = known_addresses(home, given.address or given.scheduler or brought).scheduler
    if written is None:
        raise ValueError(
            "no scheduler to join: give its address, like tls://192.168.1.5:8786, or a bundle made with `rlvf certs`"
        )
    address = parse_address(written, home)
    device = detect_device() if given.device == "auto" else given.device.upper()
    here = this_machine(device)
    _say(home_line())
    _say(f"{machine}: {here.device} ({here.name}), {here.memory_gb:g} GB, {here.cores} cores")

    host = given.host or reach(address, home)
    if address.scheme == "tcp" and not is_loopback(host):
        if not given.insecure:
            raise SecurityError(
                f"{address} is not encrypted and whoever reaches {host} can run any code here: use tls:// with a "
                "bundle of `rlvf certs`, or give --insecure in a network where you trust everyone"
            )
        _say(f"INSECURE: everyone who reaches {host} can run any code on this machine, as you")
    _say(str(Check("scheduler", "ok", str(address))))
    seen = ask(address, home)
    adopt_endpoint(seen.services, settings.environment if settings is not None else {})
    storage = storage_checks(chosen, seen.services, os.environ.get("RLVF_STORAGE"), address.host, 0.01)
    _report([*cluster_checks(seen, address, home, host), *storage])
    named = given.roles or default_roles(seen)
    processes = roles(machine, device, named, given.threads, given.memory)
    _refuse_namesakes(seen, [role.name for role in processes], machine, host, lambda: ask(address, home))
    membership = Membership(
        address,
        home,
        machine,
        processes,
        _say,
        host=given.host,
        once=given.once,
    )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the second one: `timeout` and job systems send it twice
    try:
        with a_worker(home), answered_by(membership.stop):
            membership.start()
            membership.wait()
    except KeyboardInterrupt:
        if not membership.ended:
            raise  # a second Ctrl-C
    if given.once:
        raise SystemExit(0 if membership.joined else 1)


def _refuse_namesakes(seen: Seen, names: Sequence[str], machine: str, host: str, again: Callable[[], Seen]) -> None:
    """Raise `ValueError` where a living worker has one of the names; the scheduler forgets a dead one in time."""
    began = time.monotonic()
    before = {worker.name: worker.last_seen for worker in seen.workers if worker.name in names}
    while before and (waited := time.monotonic() - began) < NAMESAKE_SECONDS:
        time.sleep(0.5)
        there = [worker for worker in again().workers if worker.name in before]
        for worker in there:
            if worker.last_seen < before[worker.name] + waited / 2:  # the scheduler has heard from it since
                at = urllib.parse.urlsplit(worker.address).hostname
                whose = "this machine works for it already" if at == host else f"a machine at {at} has that name"
                raise ValueError(f"--name {machine}: {worker.name} is there, {whose}; to join too, choose another name")
        before = {worker.name: before[worker.name] for worker in there}


def default_roles(seen: Seen) -> tuple[str, ...]:
    """Generator and verifier; also the trainer where the cluster has none, so that one machine alone can train."""
    has_trainer = any(worker.resources.get("TRAINER", 0) >= 1 for worker in seen.workers)
    return ("GENERATOR", "VERIFIER") if has_trainer else ("GENERATOR", "VERIFIER", "TRAINER")


def roles(
    machine: str, device: str, named: Sequence[str], threads: int | None, memory: float | None = None
) -> list[Role]:
    """One process per role: a generator and a trainer in one would hold two models and alternate. They divide the
    cores and the device's memory; a verifier needs one core."""
    computing = sum(role != "VERIFIER" for role in named)
    share = threads or max(1, cores() // max(1, computing))
    return [
        Role(
            f"{machine}-{role.lower()}",
            ("CPU" if role == "VERIFIER" else device, role),
            1 if role == "VERIFIER" else share,
            IMPORTS[role],
            1 if role == "VERIFIER" else computing,
            None if role == "VERIFIER" else memory,
        )
        for role in ROLES
        if role in named
    ]


def _report(found: Sequence[Check]) -> None:
    for check in found:
        _say(str(check))
    failed = [check for check in found if check.state == "fail"]
    if failed:
        raise ValueError(f"this machine cannot join: {failed[0].name}: {failed[0].found}; {failed[0].remedy}")


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


COMMAND = Command("worker", "join this machine to a cluster", EXAMPLES, _options, _run)
