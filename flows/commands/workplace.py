"""The workplace of a command that runs a flow in its own process."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from flows.run.display import Display
from flows.run.workplace import IMPORTS, open_workplace
from infra.cluster.cluster import check_scheduler, prepare
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.services.addresses import is_up, read_up
from infra.services.prefect_link import kept_alive
from infra.services.prefect_server import prefect_server
from infra.services.settled import read_settings_again

T = TypeVar("T")


def prepare_workplace(cluster: ClusterConfig) -> None:
    """Begin with what takes longest of `in_workplace`, while the rest of what was asked for is being checked."""
    prepare(cluster, IMPORTS)


def in_workplace(cluster: ClusterConfig, placement: PlacementConfig, work: Callable[[Display], T]) -> T:
    """Do the work with a Prefect server and a cluster around it; both start at the same time. Raises ClusterError."""
    up = read_up(rlvf_home())
    check_scheduler(cluster, up.addresses.scheduler if up is not None and is_up(rlvf_home()) else None)
    # before prefect is imported; the display shows progress, and `main` errors
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR" if os.environ.get("RLVF_TRACEBACK") else "CRITICAL")
    with ExitStack() as stack:
        display = stack.enter_context(Display())
        server = stack.enter_context(prefect_server(rlvf_home(), display.say))
        display.stage("start")

        def prefect_ready() -> None:
            known = server.url
            if server.wait() != known:  # it had to move since prefect was imported
                with put_off():
                    read_settings_again()
            stack.enter_context(kept_alive(server, display.say))

        stack.enter_context(open_workplace(cluster, placement, display, prefect_ready))
        with put_off():  # prefect was not to be imported before its environment was there
            from flows.run.page import CancelledOnPage
        try:
            return work(display)
        except CancelledOnPage as cancelled:
            raise RuntimeError(str(cancelled)) from cancelled
