"""A Dask cluster of one worker in this process, which offers what a test says."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from distributed import LocalCluster


@contextmanager
def lone_worker(name: str, resources: Mapping[str, int], **options: Any) -> Iterator[str]:
    """The scheduler's address; `options` are the worker's."""
    with LocalCluster(
        n_workers=1,
        name=name,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        threads_per_worker=1,
        dashboard_address=None,
        resources=resources,
        **options,
    ) as cluster:
        yield cluster.scheduler_address
