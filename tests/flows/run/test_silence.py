"""The storage goes away in mid-run: that is said, by its name, again and again until it is back."""

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flows.run.display import Display
from infra.dispatch import watch
from tests.faulty_s3 import FaultyS3, faulty_s3
from tests.processes import until

SHORT, LONG = 1.0, 2.0  # seconds, for `FIRST_SECONDS` and `LONGEST_SECONDS`


def ask(lab: Any, url: str) -> None:
    """This process and the shared cluster use the S3 API at `url` from now on."""
    from s3fs import S3FileSystem

    os.environ["AWS_ENDPOINT_URL_S3"] = url
    S3FileSystem.clear_instance_cache()
    lab.client.run(lambda: __import__("os").environ.update(AWS_ENDPOINT_URL_S3=url))
    lab.client.run(S3FileSystem.clear_instance_cache)


@pytest.fixture
def faulty(lab: Any, s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:  # noqa: ARG001 - its bucket
    upstream = os.environ["AWS_ENDPOINT_URL_S3"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", upstream)  # taken back at the end
    with faulty_s3(upstream) as made:
        ask(lab, made.url)
        yield made
    ask(lab, upstream)


@pytest.mark.slow
def test_a_storage_that_goes_away_is_named_until_it_is_back(
    lab: Any, s3: str, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_SECONDS", SHORT)
    monkeypatch.setattr(watch, "LONGEST_SECONDS", LONG)
    uri = f"{s3}/away"
    named: list[float] = []
    say = Display.say

    def heard(self: Display, line: str) -> None:
        if f"waiting for the storage of {uri}" in line:
            named.append(time.monotonic())
        say(self, line)

    monkeypatch.setattr(Display, "say", heard)

    def accident() -> None:
        until(lambda: 1 in lab.metrics(lab.record_folder(uri), "reward/mean"))
        faulty.away(1000)
        try:
            until(lambda: len(named) >= 3)  # a worker may wait for it, this process, or its bookkeeping
        finally:
            faulty.clear()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(accident)
        result = lab.train(run=uri, steps="3", staleness="0")
        done.result()
    gaps = [later - earlier for earlier, later in itertools.pairwise(named)]
    assert max(gaps[:2]) < 10 * (LONG + 2 * watch.ANSWER_SECONDS)  # whatever else the machine does
    assert result.steps == 3
    assert list(lab.metrics(lab.record_folder(uri), "reward/mean")) == [1, 2, 3]
