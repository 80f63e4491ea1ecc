"""Whether this machine fits into a cluster: what both `rlvf worker` and `rlvf doctor` look at."""

from pathlib import Path

from infra.checks.machine import Check, check_clock, check_route, check_storage, check_versions
from infra.cluster.machine import versions
from infra.cluster.reach import SchedulerAddress
from infra.services.scheduler import Seen, answers_back


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
    """This machine beside everyone: a line for each that differs, or one line when nobody does."""
    peers = {"the scheduler": seen.versions, **{worker.name: worker.versions for worker in seen.workers}}
    compared = [check_versions(versions(), theirs, whose) for whose, theirs in peers.items() if theirs]
    differ = [check for check in compared if check.state != "ok"]
    if differ:
        return differ
    return [Check("versions", "ok", f"the same as the scheduler and {len(compared) - 1} workers")] if compared else []


def check_storage_of_cluster(uri: str | None, megabytes: float) -> Check:
    """As `check_storage`; a folder of another machine is no storage here."""
    if uri is None:
        return Check("storage", "ok", "each run says where it lies")
    if "://" not in uri and not Path(uri).is_dir():
        remedy = "mount it here at the same path, or run `rlvf up --storage s3://…` there"
        return Check("storage", "fail", f"{uri} is a folder that is not here", remedy)
    return check_storage(uri, megabytes)
