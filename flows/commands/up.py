"""`rlvf up`."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flows.commands.command import Command, say
from flows.commands.services_table import StackDisplay, rows_of
from infra.home import home_line, rlvf_home, rlvf_storage
from infra.hosts import LOOPBACK, free_port, is_loopback, own_addresses
from infra.interrupts import put_off
from infra.security.bundles import machine_name
from infra.security.identity import own_certificates
from infra.security.printable import printable
from infra.security.tls import refuse_open_address
from infra.services.addresses import Addresses, has_worker, is_up, read_up, the_only_up
from infra.services.ports import PORTS
from infra.services.programs import StackConfig
from infra.services.supervisor import ServiceError
from infra.storage.kinds import kind_of
from infra.storage.mark import leave_mark
from infra.storage.usable import probe_storage, storage_uri

EXAMPLES = """
rlvf up                                                everything on this machine; Ctrl-C stops it
rlvf up --detach                                       the same in the background, until rlvf down
rlvf up --host 192.168.1.5 --storage s3://bucket/rlvf  for other machines too: encrypted, with passwords
rlvf up --storage /mnt/nas/rlvf                        runs on a share that every machine mounts there
"""
DETACHED = "RLVF_UP_DETACHED"  # in the environment of the process that stays
READY_SECONDS = 300.0


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--host",
        metavar="ADDRESS",
        default=LOOPBACK,
        help="this machine's address, as others reach it (default 127.0.0.1)",
    )
    command.add_argument(
        "--storage",
        metavar="URI",
        help="where runs and models are stored: a folder, or s3://bucket/prefix (default $RLVF_STORAGE, else the home)",
    )
    command.add_argument(
        "--storage-endpoint",
        metavar="URL",
        help="endpoint of an S3 service other than Amazon's (default AWS_ENDPOINT_URL_S3)",
    )
    command.add_argument("--detach", action="store_true", help="stay in the background; return when everything answers")
    command.add_argument("--insecure", action="store_true", help="no TLS: whoever reaches the address can run any code")
    command.add_argument(
        "--with-worker",
        action=argparse.BooleanOptionalAction,
        help="let this machine work, too (default: unless an rlvf worker of this home runs)",
    )
    for name, port in PORTS.items():
        command.add_argument(
            f"--port-{name}",
            type=_port,
            metavar="PORT",
            help=f"of {name} (default: the one used last, or {port}, or another if that is taken)",
        )


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else -1
    if not 0 <= port < 2**16:
        raise argparse.ArgumentTypeError(f"{text} is no port: give 0 to 65535; 0 takes a free one")
    return port


def _run(given: argparse.Namespace) -> None:
    home = rlvf_home()
    if is_up(home):
        _say_is_up(given, home)
        return
    config = _config(given, home)
    if given.detach and DETACHED not in os.environ:
        _detach(home)
        return
    with the_only_up(home) as first:
        if not first:
            _say_is_up(given, home)
            return
        _stay(replace(config, mark=leave_mark(config.storage, f"{machine_name()} {home}")))


def _config(given: argparse.Namespace, home: Path) -> StackConfig:
    """The options, checked. Raises `ValueError` for what is not possible here."""
    host = str(given.host)
    if host in ("0.0.0.0", "::", "*", ""):
        here = ", ".join(own_addresses()) or "none"
        raise ValueError(f"--host {host!r} names no address: give the one by which others reach this machine ({here})")
    try:
        free_port(0, host)
    except OSError as error:
        here = ", ".join([LOOPBACK, *own_addresses()])
        raise ValueError(f"--host {host}: is no address of this machine; it has {here}") from error
    if given.storage_endpoint:
        os.environ["AWS_ENDPOINT_URL_S3"] = given.storage_endpoint
    storage = storage_uri(given.storage or rlvf_storage())
    probe_storage(storage)
    if not given.insecure:
        own_certificates(home, [host], say)
    refuse_open_address(host, home, given.insecure)
    if given.insecure:
        who = "every user of this machine" if is_loopback(host) else f"whoever reaches {host}"
        say(f"INSECURE: {who} can run any code as you, here and on every worker")
    endpoint = os.environ.get(kind_of(storage).endpoint)
    works = not has_worker(home) if given.with_worker is None else bool(given.with_worker)
    ports = {name: port for name in PORTS if (port := getattr(given, f"port_{name}")) is not None}
    return StackConfig(home, storage, endpoint, host, not given.insecure, ports, works)


def _stay(config: StackConfig) -> None:
    """Keep the services up until Ctrl-C, SIGTERM or the end of the terminal; then stop them."""
    with put_off():
        from flows.commands.deployments import Registration
        from infra.cluster.reach import parse_address
        from infra.services.scheduler import announce, ask
        from infra.services.stack import Stack

    registration = Registration(config.home)

    def joined(known: Addresses) -> bool:
        seen = ask(parse_address(str(known.scheduler), config.home), config.home)
        return any(worker.name.startswith(f"{machine_name()}-") for worker in seen.workers)

    display = StackDisplay(to_log=DETACHED in os.environ)
    display.say(home_line())
    try:
        with Stack(
            config,
            deploy=registration,
            announce=lambda known: announce(parse_address(str(known.scheduler), config.home), config.home, known),
            joined=joined,
            say=display.say,
        ) as stack:

            def pages() -> list[str]:
                return rows_of(stack.addresses, config.home)

            try:
                with display:
                    stack.keep_up(lambda rows, ready: display.show(rows, ready, pages))
            except KeyboardInterrupt:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)  # half-stopped helps nobody
                display.say("stopping")
            finally:
                registration.stop()
    except KeyboardInterrupt:
        pass


def _detach(home: Path) -> None:
    """Start this command again in the background; return when everything answers."""
    log = home / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        staying = subprocess.Popen(
            [sys.executable, "-P", "-c", "from flows.cli import main; main()", *sys.argv[1:]],
            env={**os.environ, DETACHED: "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    relay = _relay(log, begin)
    deadline = time.monotonic() + READY_SECONDS
    try:
        while not ((up := read_up(home)) and up.pid == staying.pid and up.ready):
            relay()
            code = staying.poll()
            if code is not None:
                relay()
                if code == 0 and (up := read_up(home)) and up.ready:  # that of another command, which was first
                    break
                sys.exit(code or 1)
            if time.monotonic() > deadline:
                raise ServiceError(f"not everything answered in {READY_SECONDS:.0f} s: see rlvf status and {log}")
            time.sleep(0.1)
    except BaseException:
        if staying.poll() is None:
            staying.terminate()
            staying.wait()
        relay()
        raise
    relay()
    print(printable("\n".join(rows_of(up.addresses, home)), lines=True))
    print("stop it with: rlvf down")


def _relay(log: Path, begin: int) -> Callable[[], None]:
    """A function that writes the new lines of the log to stderr each time it is called."""
    at = begin

    def relay() -> None:
        nonlocal at
        with log.open("rb") as file:
            file.seek(at)
            new = file.read()
            at = file.tell()
        sys.stderr.write(printable(new.decode(errors="replace"), lines=True))
        sys.stderr.flush()

    return relay


def _say_is_up(given: argparse.Namespace, home: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while (up := read_up(home)) is None or (given.detach and not up.ready):
        if not is_up(home) or time.monotonic() > deadline:
            raise ServiceError("another rlvf up of this home was just stopping, or does not come up; try again")
        time.sleep(0.1)
    print("it is up already" + ("" if up.ready else " (starting)"))
    if DETACHED not in os.environ:  # else whoever started this process prints them: links with keys are in no log
        print(printable("\n".join(rows_of(up.addresses, home)), lines=True))
    if given.storage and storage_uri(given.storage) != up.addresses.storage:
        say(f"it uses {up.addresses.storage}; rlvf down first, to use {given.storage}")
    if given.host != LOOPBACK and f"//{given.host}:" not in str(up.addresses.scheduler):
        say(f"it listens elsewhere; rlvf down first, to listen on {given.host}")


COMMAND = Command("up", "start the services: Prefect, MLflow, a Dask scheduler, workers", EXAMPLES, _options, _run)
