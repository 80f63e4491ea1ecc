"""`rlvf certs`."""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from flows.commands.command import Command, say
from infra.cluster.reach import FOR_OTHERS, parse_address
from infra.cluster.settings import dask_environment
from infra.home import rlvf_home
from infra.hosts import is_loopback, own_addresses
from infra.security.bundles import check_machine_name
from infra.security.certificates import MACHINE_DAYS
from infra.security.identity import issue, make_authority
from infra.security.tls import tls_environment
from infra.services.addresses import running
from infra.services.of_home import known_addresses

EXAMPLES = """
rlvf certs jetson                                      jetson.bundle: copy it there, it is all that machine needs
rlvf certs rented --with-storage --days 7              with the storage credentials of this shell, for a week
rlvf certs nas --address 10.0.0.7 --address nas.lan    also valid for servers at these addresses
eval "$(rlvf certs --environment)"                     Dask's own commands in this shell use this machine's certificate
"""
STORAGE = (
    "RLVF_STORAGE",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
PUBLIC = STORAGE[:4]  # in every bundle; the credentials by --with-storage


def _days(text: str) -> float:
    days = float(text)
    if not 0 < days <= 36500:
        raise ValueError
    return days


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "machine", metavar="MACHINE", nargs="?", help="a short name for the other machine, such as jetson"
    )
    command.add_argument(
        "--address",
        metavar="A",
        action="append",
        default=[],
        help="an IP or host name of that machine; can be repeated",
    )
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="where that machine finds the scheduler, like tls://192.168.1.5:8786 (default: that of `rlvf status`)",
    )
    command.add_argument(
        "--days", metavar="N", type=_days, default=MACHINE_DAYS, help=f"how long the certificate lasts ({MACHINE_DAYS})"
    )
    command.add_argument(
        "--with-storage", action="store_true", help="put the AWS_ credentials of this environment into the bundle"
    )
    command.add_argument("--out", metavar="FILE", help="where to write the bundle (default: MACHINE.bundle)")
    command.add_argument(
        "--environment", action="store_true", help="print the variables that make Dask use this machine's certificate"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    home = rlvf_home()
    if given.environment:
        for name, value in (tls_environment(home) | dask_environment()).items():
            print(f"export {name}={shlex.quote(value)}")
        return
    if given.machine is None:
        raise ValueError("certs needs the name of the other machine: rlvf certs jetson")
    check_machine_name(given.machine)
    up = running(home)
    scheduler = known_addresses(home, given.scheduler).scheduler
    environment = {"RLVF_STORAGE": up.storage or "", "AWS_ENDPOINT_URL_S3": up.storage_endpoint or "", **os.environ}
    chosen = STORAGE if given.with_storage else PUBLIC
    settings = {name: environment[name] for name in chosen if environment.get(name)}
    make_authority(home, say)
    bundle = issue(home, given.machine, given.address, given.days, settings, scheduler=scheduler)
    out = Path(given.out or f"{given.machine}.bundle")
    bundle.write(out)
    secrets = "its key and storage credentials" if given.with_storage else "its key"
    print(f"{out} holds {secrets}: copy it over a safe way (scp), and remove it here", file=sys.stderr)
    if given.with_storage and "AWS_ACCESS_KEY_ID" not in settings:
        print("no AWS_ACCESS_KEY_ID in this environment: the bundle carries no credentials", file=sys.stderr)
    in_vain = bool(scheduler and not given.scheduler and is_loopback(parse_address(scheduler, home).host))
    if in_vain:
        say(
            f"{given.machine} cannot join {scheduler}, an address of the scheduler's own machine alone: {FOR_OTHERS} "
            f"(addresses here: {', '.join(own_addresses()) or 'none'}); then make the bundle again"
        )
    address = "" if scheduler else " tls://THIS-MACHINE:8786"
    following = f"rlvf worker{address} --bundle {out.name}"
    if given.json:
        print(json.dumps({"bundle": str(out), "scheduler": scheduler, "next": following}))
    elif not in_vain:
        print(f"then, on {given.machine}: {following}")


COMMAND = Command("certs", "make a bundle that lets another machine join over TLS", EXAMPLES, _options, _run)
