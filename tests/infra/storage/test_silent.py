"""A server that takes connections and never answers."""

import socket
import time
from collections.abc import Iterator

import pytest
import s3fs

from infra.checks import machine
from infra.storage import place
from infra.storage.files import PathError, open_texts
from infra.storage.usable import StorageError, check_storage, looked_at


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address; S3 is there."""
    monkeypatch.setattr(place, "ANSWER_SECONDS", 1.0)
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
    with pytest.raises(StorageError, match=r"^s3://there/run: S3: .*[Tt]imeout"), looked_at("s3://there/run"):
        pytest.fail("nobody looks there")
    with pytest.raises(StorageError, match=r"^storage s3://there/run: cannot be used: .*[Tt]imeout"):
        check_storage("s3://there/run")
    check = machine.check_storage("s3://there")
    assert check.state == "fail"
    for pattern in ("s3://there/*.csv", f"{silent}/x.csv"):
        with pytest.raises(PathError, match=r"cannot be rea.*([Tt]ime|answer)"):
            next(open_texts(pattern))
    assert time.monotonic() - began < 60  # minutes each, before
