"""`rlvf doctor`."""

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from flows.commands.command import Command
from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.preflight import check_model, check_shape
from infra.checks.cluster import cluster_checks, storage_checks
from infra.checks.installed import check_constraints, check_requirements
from infra.checks.machine import Check, placement_checks, route_checks
from infra.cluster.machine import detect_device, this_machine
from infra.cluster.placement import ALWAYS, Offer, PlacementConfig
from infra.cluster.reach import UnreachableError, parse_address, reach
from infra.home import rlvf_home, runs_uri
from infra.interrupts import put_off
from infra.security.certificates import SecurityError
from infra.security.identity import RENEW_DAYS, adopt_settings, days_of_certificate, has_certificates
from infra.security.printable import printable
from infra.services.addresses import adopt_endpoint, running
from infra.services.http import status_of
from infra.services.of_home import known_addresses
from infra.services.scheduler import ask
from rl.compiler import NoCompilerError, c_compiler
from rl.config import TINY

EXAMPLES = """
rlvf doctor                                            this machine, and the cluster that it belongs to
rlvf doctor --scheduler tls://192.168.1.5:8786         another cluster
rlvf doctor --config my.yaml                           would the placement in this file be satisfied, its model fit?
rlvf doctor --policy Qwen/Qwen3-0.6B                   would this model fit here?
"""
STORAGE_MB = 4.0
ANSWER_SECONDS = 5.0
NOWHERE = "192.0.2.1"  # reserved (RFC 5737): the route to it is the default one
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--scheduler", metavar="ADDRESS", help="of the cluster (default: that of `rlvf status`)")
    command.add_argument(
        "--storage",
        metavar="URI",
        help="where runs are stored (default: $RLVF_STORAGE, else what the cluster says now, else the bundle)",
    )
    command.add_argument("--config", metavar="FILE.yaml", help="of `rlvf train`: its placement and model are checked")
    command.add_argument("--policy", metavar="MODEL", help="whether it could be trained on this machine")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    named = {} if given.policy is None else {"policy": given.policy}
    config = read_config(TrainConfig, file=given.config, overrides=named)
    home = rlvf_home()
    written = given.scheduler or config.cluster.scheduler
    found = []
    checks = examine(home, written, given.storage, config.placement)
    for check in checks if config.policy.model == TINY else chain(checks, check_policy(config.policy.model)):
        found.append(check)
        if not given.json:
            print(printable(str(check)), flush=True)
    well = all(check.state != "fail" for check in found)
    if given.json:
        print(json.dumps({"ok": well, "checks": [asdict(check) for check in found]}))
    if not well:
        raise SystemExit(1)


def examine(home: Path, scheduler: str | None, storage: str | None, placement: PlacementConfig) -> Iterator[Check]:
    """Every check, as soon as it has a result."""
    yield check_requirements()
    if CONSTRAINTS.is_file():
        yield check_constraints(CONSTRAINTS)
    here = this_machine(detect_device())
    yield Check("machine", "ok", f"{here.device} ({here.name}), {here.memory_gb:g} GB, {here.cores} cores")
    yield check_compiler()
    if has_certificates(home):
        yield check_certificate(home)
    chosen = storage or os.environ.get("RLVF_STORAGE")  # the bundle, too, sets that
    settings = adopt_settings(home)
    services = announced = running(home)
    named = known_addresses(home, scheduler).scheduler
    towards = NOWHERE
    if named is None:
        yield Check("scheduler", "ok", "none: `rlvf train` starts what it needs, `rlvf up` is for several machines")
    else:
        address = parse_address(named, home)
        towards = address.host
        try:
            began = time.perf_counter()
            host = reach(address, home)
            took = time.perf_counter() - began
            seen = ask(address, home)
        except (UnreachableError, SecurityError) as error:
            yield Check("scheduler", "fail", str(error))
        except (OSError, TimeoutError) as error:
            yield Check("scheduler", "fail", f"{address} takes connections and no questions ({error})", "restart it")
        else:
            names = ", ".join(worker.name for worker in seen.workers) or "no workers yet"
            yield Check("scheduler", "ok", f"{address} in {1000 * took:.0f} ms; {names}")
            yield from cluster_checks(seen, address, home, host)
            needs = {call: placement.tags(call) for call in ALWAYS}
            yield from placement_checks([Offer(at.address, at.name, at.resources) for at in seen.workers], needs)
            services = services.or_else(seen.services)
            announced = seen.services if seen.services.storage else announced
    for name in ("prefect", "mlflow", "dashboard"):
        if url := getattr(services, name):
            yield check_service(name, url)
    adopt_endpoint(announced, settings.environment if settings is not None else {})
    otherwise = os.environ.get("RLVF_STORAGE") or own_folder(home)
    yield from storage_checks(chosen, announced, otherwise, "this machine" if named is None else towards, STORAGE_MB)
    yield from route_checks(towards)


def check_policy(model: str) -> Iterator[Check]:
    """Whether a model fits here, for which its configuration is enough, and whether it has the files to be trained."""
    fit = check_fit(model)
    yield fit
    if fit.state != "fail":
        try:
            check_model(model, runs_uri())
        except ValueError as error:
            yield Check("policy", "warn", f"cannot be trained as it is: {error}")


def check_fit(model: str) -> Check:
    """Whether this machine alone has room to train a model and to generate from it, whole or by LoRA."""
    with put_off():
        from rl.loading.capacity import fits  # with torch
        from rl.model.policy import UnknownModelError

    try:
        check_shape(model, runs_uri())
        found = fits(model)
    except (ValueError, UnknownModelError) as error:
        return Check("fit", "fail", str(error), "see docs/models.md")
    fitting = [fit for fit in found.methods if fit.longest and fit.at_once]
    needs = ", ".join(f"{fit.trainer_gb + fit.generator_gb:.1f} GB {fit.method}" for fit in found.methods)
    said = f"{model} trained and sampled from on {found.device}: {needs}; {found.free_gb:.1f} GB are free"
    if not fitting:
        return Check("fit", "warn", said, "take a smaller model, or let other machines train or generate")
    if fitting[0].method != "full":
        return Check("fit", "warn", said, f"give --{fitting[0].method.replace(', ', ' --')}")
    return Check("fit", "ok", said)


def check_compiler() -> Check:
    """Whether kernels can be compiled here."""
    try:
        return Check("compiler", "ok", " ".join(c_compiler()))
    except NoCompilerError as error:
        return Check("compiler", "warn", f"{error}: generation takes longer", "install gcc or clang")


def check_certificate(home: Path) -> Check:
    """Whether and for how long this machine's certificate is valid."""
    try:
        days = days_of_certificate(home)
    except SecurityError as error:
        return Check("certs", "fail", str(error))
    if days < RENEW_DAYS:
        return Check("certs", "warn", f"expires in {days:.0f} days", "make a new bundle with `rlvf certs`")
    return Check("certs", "ok", f"valid for {days:.0f} days")


def check_service(name: str, url: str) -> Check:
    """Whether a web server answers at `url`, also with a refusal."""
    shown = re.sub(r"://[^/@]*@", "://***@", url)
    page = f"{url.rstrip('/')}/health" if name == "prefect" else re.sub(r"://[^/@]*@", "://", url)
    began = time.perf_counter()
    try:
        status_of(page, ANSWER_SECONDS)
    except ConnectionError as error:
        return Check(name, "fail", f"no answer at {shown} ({error})", "is `rlvf up` running there, and the port open?")
    return Check(name, "ok", f"{shown} in {1000 * (time.perf_counter() - began):.0f} ms")


def own_folder(home: Path) -> str:
    """The home, or the nearest folder above it that is there."""
    return str(next(folder for folder in (home, *home.parents) if folder.is_dir()))


COMMAND = Command("doctor", "check the health of this machine and its cluster", EXAMPLES, _options, _run)
