"""The faults that tests of storage inject are met by the clients that rlvf uses, as the real ones would be."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faulty_s3 import FaultyS3

boto3 = pytest.importorskip("boto3", reason="needs boto3: install the extra 's3'")
s3fs = pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
errors = pytest.importorskip("botocore.exceptions")
ONE = {"total_max_attempts": 1}  # boto shows what it meets instead of trying again


@pytest.fixture
def once(faulty: FaultyS3) -> Any:
    """A client that makes every request once."""
    config = boto3.session.Config(retries=ONE, read_timeout=2, connect_timeout=2)
    return boto3.client("s3", endpoint_url=faulty.url, config=config)


@pytest.fixture
def fs(faulty: FaultyS3) -> Any:
    return s3fs.S3FileSystem(endpoint_url=faulty.url, skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture
def bucket(s3: str) -> str:
    return s3.removeprefix("s3://")


def seconds(action: Callable[[], Any]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


@pytest.mark.slow
def test_without_faults_it_is_an_s3_api(faulty: FaultyS3, fs: Any, bucket: str) -> None:
    big = bytes(range(256)) * 45_000  # 11.5 MB
    fs.pipe_file(f"{bucket}/a b/ü", b"small")
    fs.pipe_file(f"{bucket}/big", big, chunksize=5 << 20)  # in parts
    assert fs.cat_file(f"{bucket}/a b/ü") == b"small"
    assert fs.cat_file(f"{bucket}/big", start=256, end=512) == bytes(range(256))
    assert fs.cat_file(f"{bucket}/big") == big
    assert sorted(fs.find(bucket)) == [f"{bucket}/a b/ü", f"{bucket}/big"]
    assert fs.info(f"{bucket}/big")["size"] == len(big)
    fs.rm_file(f"{bucket}/big")
    assert not fs.exists(f"{bucket}/big")
    assert {request.method for request in faulty.requests} >= {"GET", "HEAD", "LIST", "PUT", "POST", "DELETE"}
    assert all(request.fault is None for request in faulty.requests)


def test_slow_down_is_said_as_often_as_asked(faulty: FaultyS3, once: Any, bucket: str) -> None:
    faulty.slow_down("PUT", "new/*", times=2)
    once.put_object(Bucket=bucket, Key="old/one", Body=b"1")
    for _ in range(2):
        with pytest.raises(errors.ClientError, match="SlowDown"):
            once.put_object(Bucket=bucket, Key="new/one", Body=b"1")
    once.put_object(Bucket=bucket, Key="new/one", Body=b"1")
    assert [(request.method, request.key) for request in faulty.met("slow down")] == [("PUT", "new/one")] * 2


@pytest.mark.slow
def test_s3fs_tries_again_after_slow_down(faulty: FaultyS3, fs: Any, bucket: str) -> None:
    faulty.slow_down(times=2)
    fs.pipe_file(f"{bucket}/one", b"1")
    assert fs.cat_file(f"{bucket}/one") == b"1"
    assert len(faulty.met("slow down")) == 2


def test_a_listing_is_matched_by_its_prefix(faulty: FaultyS3, once: Any, bucket: str) -> None:
    faulty.slow_down("LIST", "here/*")
    once.list_objects_v2(Bucket=bucket, Prefix="there/")
    with pytest.raises(errors.ClientError, match="SlowDown"):
        once.list_objects_v2(Bucket=bucket, Prefix="here/")


@pytest.mark.slow
def test_bodies_are_slow_both_ways(faulty: FaultyS3, fs: Any, bucket: str) -> None:
    faulty.slow(100_000, times=None)
    assert seconds(lambda: fs.pipe_file(f"{bucket}/one", bytes(100_000))) > 0.9
    slow = seconds(lambda: fs.cat_file(f"{bucket}/one"))
    assert slow > 0.9
    faulty.clear()
    assert seconds(lambda: fs.cat_file(f"{bucket}/one")) < slow


@pytest.mark.slow
def test_a_body_that_ends_early_is_noticed(faulty: FaultyS3, once: Any, fs: Any, bucket: str) -> None:
    once.put_object(Bucket=bucket, Key="one", Body=bytes(100_000))
    faulty.truncate("GET", share=0.3)
    answer = once.get_object(Bucket=bucket, Key="one")
    assert answer["ContentLength"] == 100_000
    with pytest.raises(errors.ResponseStreamingError, match="30000 bytes read"):
        answer["Body"].read()
    faulty.truncate("GET")
    assert fs.cat_file(f"{bucket}/one") == bytes(100_000)  # tried again
    assert len(faulty.met("truncate")) == 2


def test_a_damaged_body_comes_without_a_word(faulty: FaultyS3, fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/one", bytes(9))
    faulty.damage()
    assert fs.cat_file(f"{bucket}/one") == bytes(4) + b"\1" + bytes(4)
    assert fs.cat_file(f"{bucket}/one") == bytes(9)


def test_an_object_whose_body_did_not_arrive_is_not_stored(faulty: FaultyS3, once: Any, bucket: str) -> None:
    faulty.truncate("PUT")
    with pytest.raises(errors.HTTPClientError):
        once.put_object(Bucket=bucket, Key="one", Body=bytes(1_000_000))
    assert "Contents" not in once.list_objects_v2(Bucket=bucket)


def test_what_is_carried_out_may_be_left_unanswered(faulty: FaultyS3, once: Any, bucket: str) -> None:
    faulty.leave_unanswered("PUT")
    with pytest.raises(errors.HTTPClientError):
        once.put_object(Bucket=bucket, Key="one", Body=b"1")
    assert once.get_object(Bucket=bucket, Key="one")["Body"].read() == b"1"


@pytest.mark.slow
def test_an_object_becomes_visible_late(faulty: FaultyS3, fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/old", b"before")
    faulty.late(5.0)  # the next lines take a second, or three where others compute
    fs.pipe_file(f"{bucket}/old", b"after")
    fs.pipe_file(f"{bucket}/new", b"new")
    fs.pipe_file(f"{bucket}/gone", b"gone")
    fs.pipe_file(f"{bucket}/big", bytes(11 << 20), chunksize=5 << 20)  # in parts
    fs.rm_file(f"{bucket}/gone")
    assert fs.cat_file(f"{bucket}/old") == b"before"
    assert fs.find(bucket) == [f"{bucket}/old"]
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{bucket}/new")
    deadline = time.monotonic() + 20
    while len(fs.find(bucket)) < 3 or fs.cat_file(f"{bucket}/old") == b"before":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert fs.cat_file(f"{bucket}/old") == b"after"
    assert fs.cat_file(f"{bucket}/new") == b"new"
    assert fs.find(bucket) == [f"{bucket}/{name}" for name in ("big", "new", "old")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("refuse", errors.EndpointConnectionError),
        ("hang", errors.HTTPClientError),
        ("503", errors.ClientError),
    ],
)
def test_it_is_away_and_comes_back(faulty: FaultyS3, once: Any, bucket: str, how: Any, error: type[Exception]) -> None:
    once.put_object(Bucket=bucket, Key="one", Body=b"1")
    faulty.away(1.0, how)
    with pytest.raises(error):
        once.get_object(Bucket=bucket, Key="one")
    time.sleep(1.3)
    assert once.get_object(Bucket=bucket, Key="one")["Body"].read() == b"1"


@pytest.mark.slow
def test_s3fs_lives_through_a_moment_away(faulty: FaultyS3, fs: Any, bucket: str) -> None:
    """A fifth of a second: botocore's four waits, each random() * 2**i seconds, add to less than that once in a million
    tries, but once in 1,536 to less than a second."""
    fs.pipe_file(f"{bucket}/one", b"1")
    faulty.away(0.2)
    assert fs.cat_file(f"{bucket}/one") == b"1"


def test_a_connection_in_use_is_closed_when_it_goes_away(faulty: FaultyS3, once: Any, bucket: str) -> None:
    once.put_object(Bucket=bucket, Key="one", Body=bytes(100_000))
    faulty.slow(50_000, "GET")
    threading.Timer(0.5, faulty.away, [0.5]).start()
    with pytest.raises(errors.ResponseStreamingError):
        once.get_object(Bucket=bucket, Key="one")["Body"].read()
