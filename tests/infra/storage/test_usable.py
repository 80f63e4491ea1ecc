"""Where runs may lie: local folders and a real S3 API, and what is said when they cannot."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.storage.usable import StorageError, probe_storage, storage_uri


def test_a_folder_is_absolute_whatever_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage_uri("store/") == str(tmp_path / "store")
    assert storage_uri("file:///store") == "/store"
    assert storage_uri("s3://bucket/rlvf/") == "s3://bucket/rlvf"


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    probe_storage(str(tmp_path / "store"))
    assert list((tmp_path / "store").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        probe_storage(str(tmp_path / "file" / "store"))
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="you may not write to"):
        probe_storage(str(tmp_path / "closed" / "store"))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folder, whoever makes one, on Linux alone")
def test_a_home_that_cannot_be_written_is_told_from_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVF_HOME")
    monkeypatch.chdir("/proc")
    with pytest.raises(
        StorageError, match=r"/proc/\.rlvf cannot be written \(.+\); set RLVF_HOME to a folder that can"
    ):
        probe_storage("/proc/.rlvf")
    monkeypatch.setenv("RLVF_HOME", "/elsewhere")
    with pytest.raises(StorageError, match=r"/proc/\.rlvf: cannot be used: .+; mount it, or name another folder"):
        probe_storage("/proc/.rlvf")


@pytest.mark.parametrize("given", ["", " ", "sftp://me:secret@host/store"])
def test_what_is_no_storage_is_refused_without_repeating_its_password(given: str) -> None:
    with pytest.raises(StorageError) as refused:
        storage_uri(given)
    assert "secret" not in str(refused.value).replace("AWS_SECRET_ACCESS_KEY", "")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A local S3 API with the bucket `there`."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    server = pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    import boto3

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    url = "http://{}:{}".format(*running.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL_S3": url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "planted",
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        boto3.client("s3").create_bucket(Bucket="checked")
        yield url
        s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


@pytest.mark.slow
def test_a_bucket_is_checked_through_its_endpoint(endpoint: str) -> None:
    probe_storage("s3://checked/rlvf")
    import boto3

    assert "Contents" not in boto3.client("s3", endpoint_url=endpoint).list_objects_v2(Bucket="checked")


@pytest.mark.usefixtures("endpoint")
def test_a_bucket_that_is_not_there_is_refused_in_one_line() -> None:
    with pytest.raises(StorageError, match=r"storage s3://nowhere/rlvf: cannot be used: .*make the bucket") as refused:
        probe_storage("s3://nowhere/rlvf")
    assert "\n" not in str(refused.value)
    assert "planted" not in str(refused.value)
