"""`rlvf status`."""

import argparse
import json
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flows.commands.command import Command, say
from infra.cluster.reach import FOR_OTHERS, parse_address, reach
from infra.home import rlvf_home, rlvf_storage
from infra.hosts import is_loopback
from infra.security.identity import adopt_settings, authority
from infra.security.printable import printable
from infra.services.addresses import Addresses, is_up, running
from infra.services.http import answers
from infra.services.links import page_links
from infra.services.of_home import known_addresses
from infra.services.prefect_server import api_password, is_own, prefect_api
from infra.services.scheduler import Seen, ask
from infra.services.served import mlflow_access
from infra.storage import place

EXAMPLES = """
rlvf status                                            of what rlvf up started here, or the bundle's cluster
eval "$(rlvf status --shell)"                          so that this shell's prefect and mlflow use them
rlvf status --scheduler tls://192.168.1.5:8786 --json  of another cluster, for a program
"""
SERVICES = ("prefect", "mlflow", "scheduler", "storage")
VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI", "scheduler": "RLVF_SCHEDULER"}
SECONDS = 10.0  # for each service to answer


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="ask this scheduler (default: $RLVF_SCHEDULER, that of rlvf up here, that of the installed bundle)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--shell",
        action="store_true",
        help='print what a shell needs to use the services, passwords included: eval "$(rlvf status --shell)"',
    )


def _run(given: argparse.Namespace) -> None:
    home = rlvf_home()
    scheduler = None if given.scheduler is None else str(parse_address(given.scheduler, home))
    known = known_addresses(home, scheduler, up_first=given.shell)  # a shell's own environment may be outdated
    adopt_settings(home)
    seen: Seen | None = None
    trouble = ""
    if known.scheduler is not None:
        try:
            address = parse_address(known.scheduler, home)
            reach(address, home)  # it says in one line what is wrong
            seen = ask(address, home)
        except (OSError, ValueError) as error:
            trouble = str(error)
    if seen is not None:
        own = known if given.scheduler is None else Addresses(scheduler=known.scheduler)
        known = own.or_else(seen.services)
    elsewhere = given.scheduler is not None or seen is not None
    if known.storage is None and not elsewhere:
        known = replace(known, storage=rlvf_storage())
    if known.storage_endpoint:
        os.environ.setdefault("AWS_ENDPOINT_URL_S3", known.storage_endpoint)
    if given.shell:
        _print_settings(home, known, seen is not None)
        return
    found: dict[str, Any] = _asked(
        {
            "prefect": lambda: bool(known.prefect) and answers(str(known.prefect)),
            "mlflow": lambda: bool(known.mlflow) and answers(str(known.mlflow)),
            "storage": lambda: bool(known.storage) and _is_there(str(known.storage)),
            "running": lambda: _running(home, known.prefect),
            "links": lambda: page_links(home, known),
        }
    )
    alive = {name: bool(found.get(name)) for name in SERVICES} | {"scheduler": seen is not None}
    workers = [asdict(worker) for worker in seen.workers] if seen is not None else []
    running = found.get("running") or []
    if given.json:
        addresses = {name: getattr(known, name) for name in (*SERVICES, "dashboard")}
        print(json.dumps({**addresses, "answers": alive, "workers": workers, "running": [run for run, _ in running]}))
    else:
        shown = [*lines(known, alive, workers, running, trouble), *_pages(found.get("links") or {})]
        print(printable("\n".join(shown), lines=True))


def _print_settings(home: Path, known: Addresses, has_scheduler: bool) -> None:
    """Print what a shell needs, and say what is lacking. What does not answer is left out, unless it is starting."""
    asked = _asked(
        {
            "prefect": lambda: bool(known.prefect) and answers(str(known.prefect)),
            "mlflow": lambda: bool(known.mlflow) and answers(str(known.mlflow)),
        }
    )
    asked["scheduler"] = has_scheduler
    silent = [name for name in VARIABLES if getattr(known, name) and not asked.get(name)]
    if not is_up(home):
        known = replace(known, **dict.fromkeys(silent))
    settings = shell_settings(home, known)
    if settings:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in settings.items()))
    stale = [VARIABLES[name] for name in silent if os.environ.get(VARIABLES[name])]
    if not is_up(home) and not any(getattr(known, name) for name in VARIABLES):
        say("nothing answers here, so no service is given: rlvf up starts them")
    if not is_up(home) and stale:
        say(f"what this shell has named before does not answer; to use it no more: unset {' '.join(stale)}")
    if asked.get("prefect") and is_own(home, str(known.prefect)) and "PREFECT_API_AUTH_STRING" not in settings:
        say(f"it is not this home's Prefect server that answers at {known.prefect}: no password is given")


def shell_settings(home: Path, known: Addresses) -> dict[str, str]:
    """The environment by which the commands of rlvf, Prefect and MLflow use these services."""
    settings = {
        "PREFECT_API_URL": known.prefect,
        "PREFECT_API_AUTH_STRING": known.prefect and api_password(home, known.prefect),
        "MLFLOW_TRACKING_URI": known.mlflow,
        "RLVF_SCHEDULER": known.scheduler,
        "RLVF_STORAGE": known.storage,
        "AWS_ENDPOINT_URL_S3": known.storage_endpoint,
    }
    if known.prefect and known.prefect.startswith("https://"):
        settings["PREFECT_API_SSL_CERT_FILE"] = authority(home)
    if known.mlflow and known.mlflow == running(home).mlflow:
        settings |= mlflow_access(home, known.mlflow)
    return {name: value for name, value in settings.items() if value}


def lines(
    known: Addresses,
    alive: Mapping[str, bool],
    workers: list[dict[str, Any]],
    running: list[tuple[str, str]],
    trouble: str,
) -> list[str]:
    """The status as lines for people."""
    shown = {name: getattr(known, name) for name in SERVICES}
    idle = not any(shown[name] for name in ("prefect", "mlflow", "scheduler"))
    silent = "none yet" if idle and _is_to_be_made(known.storage) else "no answer"
    none = "not started" if idle else "unknown"
    rows = [
        f"{name:<12}{'answers' if alive[name] else silent if address else none:<12}{address or ''}".rstrip()
        for name, address in shown.items()
    ]
    if trouble:
        rows.append(trouble)
    if idle:
        rows.append(
            "nothing runs here now, and nothing has to: rlvf train starts what it needs; rlvf up is for several "
            "machines; rlvf status --scheduler tls://host:8786 asks another one"
        )
    if alive["scheduler"]:
        rows += ["", f"{'worker':<20}{'device':<28}{'roles':<30}{'tokens/s':>10}{'seen':>10}"]
        for each in workers:
            pace = "-" if each["tokens_per_second"] is None else f"{each['tokens_per_second']:,.0f}"
            roles = ",".join(each["roles"])
            rows.append(f"{each['name']:<20}{each['device']:<28}{roles:<30}{pace:>10}{each['last_seen']:>8.0f} s")
        rows += [f"{each['name']} gets no more leases {each['excluded']}" for each in workers if each["excluded"]]
        if not workers:
            rows.append(f"none yet; {_how_to_join(str(known.scheduler))}")
    if running:
        runs = [f"{run}, {step}" if step else run for run, step in running]
        rows += ["", f"training: {'; '.join(runs)}"]
    return rows


def _how_to_join(scheduler: str) -> str:
    if is_loopback(parse_address(scheduler, rlvf_home()).host):
        return f"on the scheduler's own machine: rlvf worker {scheduler}; for others: {FOR_OTHERS}"
    return f"on any machine: rlvf worker {scheduler}"


def _pages(links: Mapping[str, str]) -> list[str]:
    return ["", *(f"{name:<12}{url}" for name, url in links.items()), "these links open for 12 hours"] if links else []


def _asked(questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The answers that came within `SECONDS`, asked in parallel."""
    found: dict[str, Any] = {}

    def put(name: str, question: Callable[[], Any]) -> None:
        with suppress(OSError, ValueError):
            found[name] = question()

    threads = [threading.Thread(target=put, args=each, daemon=True) for each in questions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return dict(found)


def _is_there(storage: str) -> bool:
    """Whether the storage can be listed."""
    path = place.local_path(storage)
    if path is not None:
        return path.is_dir()
    try:
        return place.reaches(storage)
    except Exception as error:  # noqa: BLE001  each kind of storage has faults of its own
        return not error


def _is_to_be_made(storage: str | None) -> bool:
    """Whether the storage is a folder that is not there yet; the first run makes it."""
    path = None if storage is None else place.local_path(storage)
    try:
        return path is not None and not path.exists()
    except OSError:  # it cannot be examined
        return False


def _running(home: Path, prefect: str | None) -> list[tuple[str, str]]:
    return prefect_api(home, prefect).running("rlvf") if prefect else []


COMMAND = Command("status", "show the services, the workers and the run in progress", EXAMPLES, _options, _run)
