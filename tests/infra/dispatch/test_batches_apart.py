"""Batches of one queue whose callers know nothing of each other.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.dispatch.dispatch import Dispatch


def test_what_a_batch_makes_of_its_results_ends_no_other(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(name: str) -> str:
        while name == "other" and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return name

    def check(_: int, result: object) -> str:
        raise ValueError(f"no check can read {result}")

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: list(dispatch.lease("generate", call, [("other",)], order=(2,))))
        with pytest.raises(ValueError, match="no check can read this"):
            list(dispatch.lease("generate", call, [("this",)], order=(1,), check=check))
        (tmp_path / "go").touch()
        assert other.result(60) == [(0, "other")]
