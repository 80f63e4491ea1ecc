"""A server that takes connections and never answers."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from botocore.exceptions import BotoCoreError

from infra.checks import machine
from infra.storage import place
from infra.storage.files import PathError, open_texts
from infra.storage.manifest import MANIFEST
from infra.storage.store import read_folder, write_folder
from infra.storage.usable import StorageError, named_storage_errors, probe_storage
from tests.faulty_s3 import FaultyS3
from tests.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address; S3 is there."""
    monkeypatch.setattr(place, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        for name, value in {"ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "eu-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield address
    s3fs.S3FileSystem.clear_instance_cache()


def test_it_is_said_in_seconds_whatever_it_is_asked_for(silent: str) -> None:
    began = time.monotonic()
    with (
        pytest.raises(StorageError, match=r"^s3://there/run: S3: .*[Tt]imeout"),
        named_storage_errors("s3://there/run"),
    ):
        pytest.fail("nobody looks there")
    with pytest.raises(StorageError, match=r"^storage s3://there/run: cannot be used: .*[Tt]imeout"):
        probe_storage("s3://there/run")
    check = machine.check_storage("s3://there")
    assert check.state == "fail"
    for pattern in ("s3://there/*.csv", f"{silent}/x.csv"):
        with pytest.raises(PathError, match=r"cannot be rea.*([Tt]ime|answer)"):
            next(open_texts(pattern))
    assert time.monotonic() - began < 60  # minutes each, before


@pytest.mark.parametrize("many", [False, True])
def test_a_store_that_begins_to_hang_is_asked_a_few_times_and_no_more(
    monkeypatch: pytest.MonkeyPatch, s3: str, faulty: FaultyS3, tmp_path: Path, many: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model").write_bytes(b"weights")
    write_folder(f"{s3}/folder", source)
    monkeypatch.setattr(place, "TRANSFER_SECONDS" if many else "ANSWER_SECONDS", 0.5)
    faulty.hang(60, "GET", "*/model" if many else "*", times=None)
    with pytest.raises((OSError, BotoCoreError)):
        read_folder(f"{s3}/folder").__enter__() if many else place.read(f"{s3}/folder/{MANIFEST}")
    until(lambda: faulty.met("hang"))
    assert len(faulty.met("hang")) <= (place.TRANSFER_ATTEMPTS if many else 2 * place.ATTEMPTS)


def test_a_cut_off_answer_and_a_busy_store_are_asked_again(s3: str, faulty: FaultyS3) -> None:
    place.write_text(f"{s3}/there", "all of it")
    faulty.truncate("GET")
    faulty.slow_down("GET")
    assert place.read_text(f"{s3}/there") == "all of it"
    assert (len(faulty.met("truncate")), len(faulty.met("slow down"))) == (1, 1)
