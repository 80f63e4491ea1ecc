"""Prefect's API, for processes that do not import prefect."""

import socket
import time
import urllib.error
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

from infra.process_identity import read_identity
from infra.services.http import get_json, get_json_of_ours

POOL = "rlvf"  # the work pool of prefect.yaml
UNFINISHED = ("RUNNING", "CANCELLING", "PAUSED")
GONE = "its process is gone"
BUSY_SECONDS = 20.0  # that a server may say that its database is busy


class PrefectApi:
    """The API at `url`, asked with `auth` (user:password) if it is given. Every method raises `OSError`."""

    def __init__(self, url: str, auth: str = "", *, is_ours: bool = False) -> None:
        """`is_ours`: it is to be a home's server, which has to prove that before each request."""
        self._url = url
        self._auth = auth
        self._get = get_json_of_ours if is_ours else get_json

    def ask(self, path: str, body: Any = None, *, seconds: float = 10.0) -> Any:
        """The JSON of a GET at `path`, or of a POST with a `body`; an answer may take so many seconds. With status 503
        Prefect says that its database was busy and that nothing was done: it is asked again, as by Prefect's client."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return self._get(f"{self._url.rstrip('/')}/{path}", self._auth, body, timeout=seconds)
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def has(self, path: str) -> bool:
        """Whether there is something at `path`, such as work_pools/rlvf."""
        try:
            self.ask(path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    def has_worker(self, name: str) -> bool:
        """Whether a worker of that name serves the work pool: its last heartbeat is at most 90 s old."""
        if not self.has(f"work_pools/{POOL}"):
            return False
        workers = self.ask(f"work_pools/{POOL}/workers/filter", {})
        return any(each["name"] == name and each["status"] == "ONLINE" for each in workers)

    def running(self, flow: str) -> list[tuple[str, str]]:
        """This flow's unfinished runs, but for those whose process on this machine is gone: the name of each, and its
        progress, such as `step 3 of 20`; empty before the first step."""
        body = {"flows": {"name": {"any_": [flow]}}, "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PAUSED"]}}}}
        found = self.ask("flow_runs/filter", body)
        names = {str(run["id"]): str(run["name"]) for run in found if not _is_gone(run)}
        shown = {"flow_run_id": {"any_": list(names)}, "type": {"any_": ["progress"]}}
        progress = self.ask("artifacts/filter", {"artifacts": shown}) if names else []
        steps = {str(each["flow_run_id"]): str(each["description"]) for each in progress}
        return [(name, steps.get(run, "")) for run, name in names.items()]

    def end_runs(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """Mark the runs whose process on this machine is gone as crashed, and return the name of each of flow `rlvf`,
        and by what it is resumed.
        A process of the work pool that lives gets `seconds` to end before it is killed; 0 leaves it alone.

        Only for a server that no other machine's worker uses. A worker marks its own runs, but one that was killed or
        stopped cannot, and they would be `Running` for ever; so would be those of a command that was killed.
        """
        unfinished = {"flow_runs": {"state": {"type": {"any_": UNFINISHED}}}}
        flows = {str(flow["id"]): flow["name"] for flow in self.ask("flows/filter", {})}
        ended = []
        for run in self.ask("flow_runs/filter", unfinished):
            if not _is_gone(run) and not _of_pool_ended(run, seconds):
                continue
            self._crash(str(run["id"]), GONE)
            if flows.get(str(run["flow_id"])) == "rlvf":
                ended.append((str(run["name"]), resumed_by(run)))
        return ended

    def crashed(self, flow_run: str, cause: str) -> None:
        """Mark the run as crashed, with the cause in its state's name, unless it has ended or is being cancelled."""
        if self._state(flow_run)["type"] not in ("COMPLETED", "FAILED", "CANCELLED", "CRASHED", "CANCELLING"):
            self._crash(flow_run, cause, f"Crashed: {cause}")

    def says_a_cause(self, flow_run: str) -> bool:
        """Whether the run has failed or crashed, with a cause in its state's name."""
        state = self._state(flow_run)
        return state["type"] in ("FAILED", "CRASHED") and ": " in state["name"]

    def name_plainly(self, flow_run: str) -> None:
        """Take the cause out of the state's name, by which Prefect's page filters; the state's message has it."""
        if self.says_a_cause(flow_run):
            known = self._state(flow_run)
            state = {"type": known["type"], "name": known["name"].partition(": ")[0], "message": known["message"]}
            self.ask(f"flow_runs/{flow_run}/set_state", {"state": state, "force": True})

    def _crash(self, flow_run: str, cause: str, name: str = "Crashed") -> None:
        state = {"type": "CRASHED", "name": name, "message": cause}
        self.ask(f"flow_runs/{flow_run}/set_state", {"state": state, "force": True})

    def _state(self, flow_run: str) -> dict[str, str]:
        state: dict[str, str] = self.ask(f"flow_runs/{flow_run}")["state"]
        return state


def resumed_by(run: Mapping[str, Any]) -> str:
    """The URI with which the run was asked for, if that was one; else its name, which is in the home."""
    asked = run.get("parameters") or {}
    found = str(asked.get("resume") or (asked.get("config") or {}).get("run") or "")
    return found if "://" in found or found.startswith("/") else str(run["name"])


def _is_gone(run: Mapping[str, Any]) -> bool:
    """Whether the process of a run that a command began was of this machine, and has ended."""
    identity = read_identity(str(run.get("infrastructure_pid") or ""))
    return identity is not None and identity.is_gone


def _of_pool_ended(run: Mapping[str, Any], seconds: float) -> bool:
    """Whether a run of the work pool has lost its process on this machine, be it that it is killed after `seconds`."""
    host, _, pid = str(run.get("infrastructure_pid") or "").rpartition(":")
    if run.get("work_pool_name") != POOL or run["state"]["type"] == "PAUSED":
        return False
    return pid.isdigit() and host in ("", socket.gethostname()) and _ended(int(pid), str(run["id"]), seconds)


def _ended(pid: int, flow_run: str, seconds: float) -> bool:
    """Whether the run's process is gone; `pid` may be another process's."""
    try:
        process = psutil.Process(pid)
        if process.environ().get("PREFECT__FLOW_RUN_ID", "").replace("-", "") != flow_run.replace("-", ""):
            return True
        if not seconds:
            return process.status() == psutil.STATUS_ZOMBIE
        with suppress(psutil.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait(seconds)
    except psutil.NoSuchProcess:
        return True
    except (psutil.AccessDenied, psutil.TimeoutExpired):
        return False
    return True
