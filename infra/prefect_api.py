"""The few things that are asked of Prefect's API from a process that does not import prefect."""

import os
import socket
import urllib.error
from collections.abc import Collection
from typing import Any

import psutil

from infra.services import get_json

POOL = "rlvf"  # the work pool of prefect.yaml


class PrefectApi:
    """The API at `url`, asked with `auth` (user:password) if it is given. Every method raises `OSError`."""

    def __init__(self, url: str, auth: str = "") -> None:
        self._url = url
        self._auth = auth

    def has(self, path: str) -> bool:
        """Whether there is something at `path`, such as work_pools/rlvf."""
        try:
            self._ask(path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    def running(self, flow: str) -> list[str]:
        """The names of this flow's runs that are under way."""
        body = {"flows": {"name": {"any_": [flow]}}, "flow_runs": {"state": {"type": {"any_": ["RUNNING", "PAUSED"]}}}}
        return [str(run["name"]) for run in self._ask("flow_runs/filter", body)]

    def give_up_lost_runs(self) -> list[str]:
        """Mark the runs whose process on this machine is gone as crashed, and give their names.

        A worker does so for its own runs; one that was killed, with its machine or without, cannot, and they would seem
        to be running, and keep the next run waiting, for ever.
        """
        states: Collection[str] = ["RUNNING", "CANCELLING"]
        body = {"work_pools": {"name": {"any_": [POOL]}}, "flow_runs": {"state": {"type": {"any_": states}}}}
        lost = []
        for run in self._ask("flow_runs/filter", body):
            host, _, pid = str(run.get("infrastructure_pid") or "").rpartition(":")
            if host == socket.gethostname() and pid.isdigit() and not _runs_a_flow(int(pid), str(run["id"])):
                state = {"type": "CRASHED", "message": "its process is gone, with the worker that started it"}
                self._ask(f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})
                lost.append(str(run["name"]))
        return lost

    def _ask(self, path: str, body: Any = None) -> Any:
        return get_json(f"{self._url.rstrip('/')}/{path}", self._auth, body, timeout=10.0)


def _runs_a_flow(pid: int, flow_run: str) -> bool:
    """Whether that process is the run's, and not another one that got its number."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or pid == os.getpid():
            return False
        return process.environ().get("PREFECT__FLOW_RUN_ID", flow_run).replace("-", "") == flow_run.replace("-", "")
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
