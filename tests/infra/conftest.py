"""Places to store things in: a folder, a memory store, a real S3 API, and a store with folders that is not local."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from tests.faulty_s3 import FaultyS3, faulty_s3


class Nas(LocalFileSystem):
    """Stands for stores that have folders but no rename that we use, such as sftp."""

    protocol = "nas"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("nas://"))


@pytest.fixture(scope="session")
def s3_client() -> Iterator[Any]:
    """A boto3 client of a local S3 API, which s3fs uses too as long as the session lasts."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    server = pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    import boto3

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ACCESS_KEY_ID", "tester")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tester's")
        s3fs.S3FileSystem.clear_instance_cache()
        yield boto3.client("s3")
        s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


@pytest.fixture
def s3(s3_client: Any) -> str:
    """The URI of a new bucket."""
    bucket = f"b{uuid.uuid4().hex}"
    s3_client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}"


@pytest.fixture
def faulty(s3_client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """An S3 API with faults on demand in front of the other, which s3fs uses for one test; the buckets are the same."""
    from s3fs import S3FileSystem

    with faulty_s3(s3_client.meta.endpoint_url) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.url)
        S3FileSystem.clear_instance_cache()
        yield made
        S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["file", "memory", "s3", "nas"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty place."""
    return empty_place(request, tmp_path)


def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of the kind that is the fixture's parameter."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3")) + "/deep/run"
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/run"
    if request.param == "nas":
        fsspec.register_implementation("nas", Nas, clobber=True)
        return f"nas://{tmp_path}/nas/run"
    return str(tmp_path / "deep" / "run")
