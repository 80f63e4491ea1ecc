"""Whether this machine fits into a cluster: what both `rlvf worker` and `rlvf doctor` look at."""

from pathlib import Path

from infra.checks.machine import Check, check_clock, check_route, check_storage, check_versions
from infra.cluster.machine import versions
from infra.cluster.reach import SchedulerAddress
from infra.errors import one_line
from infra.security.secrets import masked
from infra.services.addresses import Addresses
from infra.services.scheduler import Seen, answers_back
from infra.storage import place
from infra.storage.mark import has_mark


def cluster_checks(seen: Seen, address: SchedulerAddress, home: Path, host: str) -> list[Check]:
    """This machine, reached at `host`, beside the scheduler and the workers that were seen."""
    found = [check_route(host)]
    if found[0].state == "ok":
        trouble = answers_back(address, home, host)
        remedy = "open this machine's firewall for it, or give an address that it reaches with --host"
        found.append(
            Check("way back", "ok", f"the scheduler connects to {host}")
            if trouble is None
            else Check("way back", "fail", f"the scheduler cannot connect to {host}: {trouble}", remedy)
        )
    found += compared_versions(seen)
    found.append(check_clock(seen.clock))
    return found


def compared_versions(seen: Seen) -> list[Check]:
    """The versions here beside the scheduler's and each worker's: a check for each that differs, else one."""
    peers = {"the scheduler": seen.versions, **{worker.name: worker.versions for worker in seen.workers}}
    compared = [check_versions(versions(), theirs, whose) for whose, theirs in peers.items() if theirs]
    differ = [check for check in compared if check.state != "ok"]
    if differ:
        return differ
    return [Check("versions", "ok", f"the same as the scheduler and {len(compared) - 1} workers")] if compared else []


def storage_checks(
    chosen: str | None, announced: Addresses, otherwise: str | None, whose: str, megabytes: float
) -> list[Check]:
    """Checks of the storage `chosen` here, else of the one `announced` by the cluster whose scheduler is on the machine
    `whose`, else of the one known before (`otherwise`)."""
    theirs = announced.storage
    if chosen and theirs and _normal(chosen) != _normal(theirs):
        differ = f"{masked(chosen)} was chosen here, and the cluster on {whose} uses {theirs}"
        remedy = "leave out --storage and RLVF_STORAGE here to use that"
        return [Check("storage", "warn", differ, remedy), check_storage_of_cluster(chosen, megabytes)]
    found = check_storage_of_cluster(chosen or theirs or otherwise, megabytes)
    if found.state != "ok" or not theirs or not announced.storage_mark:
        return [found]
    return [found, check_shared(theirs, announced.storage_mark, whose)]


def check_shared(uri: str, mark: str, whose: str) -> Check:
    """Whether `uri` names the same storage here as on the machine `whose`, which has left this mark in it."""
    try:
        shared = has_mark(uri, mark)
    except Exception as error:  # noqa: BLE001  every store has exceptions of its own
        unread = f"{uri}: what {whose} left there cannot be read: {one_line(error)[:200]}"
        return Check("shared", "fail", unread, "check rights")
    if shared:
        return Check("shared", "ok", f"{uri} is the one of {whose}")
    remedy = (
        "check AWS_ENDPOINT_URL_S3 here and there"
        if place.local_path(uri) is None
        else "mount that folder here at the same path, or run `rlvf up --storage s3://…` there"
    )
    return Check("shared", "fail", f"{uri} here is not the {uri} of {whose}: it is not shared with it", remedy)


def check_storage_of_cluster(uri: str | None, megabytes: float) -> Check:
    """As `check_storage`; a folder of another machine is no storage here."""
    if uri is None:
        return Check("storage", "ok", "each run says where it lies")
    if "://" not in uri and not Path(uri).is_dir():
        remedy = "mount it here at the same path, or run `rlvf up --storage s3://…` there"
        return Check("storage", "fail", f"{uri} is a folder that is not here", remedy)
    return check_storage(uri, megabytes)


def _normal(uri: str) -> str:
    return str(place.local_path(uri) or uri.rstrip("/"))
