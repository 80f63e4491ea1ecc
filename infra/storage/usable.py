"""Whether runs can be kept where someone wants them."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from infra.errors import one_line
from infra.storage import place
from infra.storage.faults import explained, is_of_library
from infra.storage.manifest import StoreError


class StorageError(ValueError):
    """Nothing can be kept there; one line that says what to do."""


def storage_uri(given: str) -> str:
    """`given` as every process understands it, wherever that stands. Raises `StorageError`."""
    if not given.strip():
        raise StorageError("storage: is empty; give a folder, or a URI such as s3://bucket/rlvf")
    if (path := place.local_path(given)) is not None:
        return str(path)
    if urlsplit(given).password is not None:
        raise StorageError(
            "storage: holds a password, which every machine would see; leave it out and set it where it belongs, for "
            "S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return given.rstrip("/")


def check_storage(uri: str, *, answered: bool = False) -> None:
    """Raise `StorageError` unless a file can be written at `uri`, read back and removed. It is asked first, unless it
    has `answered` just now."""
    probe = place.join(uri, f"rlvf-probe-{secrets.token_hex(4)}")
    path = place.local_path(uri)
    try:
        if not answered:
            place.await_answer(uri)
        place.write_text(probe, "rlvf")
        if place.read_text(probe) != "rlvf":
            raise StorageError(f"storage {uri}: gives back something else than was written there")
        place.remove_file(probe)
    except ImportError as error:
        protocol = uri.partition("://")[0]
        remedy = "pip install 'rlvf[s3]'" if protocol in ("s3", "s3a") else one_line(error)
        raise StorageError(
            f"storage {uri}: {protocol}:// needs a package that is not installed here: {remedy}"
        ) from error
    except StorageError:
        raise
    except _faults() as error:
        raise StorageError(f"storage {uri}: {_why(error, path)}") from error


@contextmanager
def looked_at(uri: str) -> Iterator[None]:
    """The first look at a storage elsewhere, before anything is written: what it cannot do is a mistake in what was
    asked. Raises `StorageError`, which names `uri`."""
    try:
        place.await_answer(uri)
        yield
    except ValueError:
        raise
    except Exception as error:
        if place.local_path(uri) is not None or (not (known := explained(error)) and not is_of_library(error)):
            raise
        raise StorageError(f"{uri}: {known or f'cannot be used: {one_line(error)}'}") from error


def _why(error: Exception, path: Path | None) -> str:
    """Why nothing can be kept there, and what to do about it; `path` if it is a folder of this machine."""
    if path is None and isinstance(error, PermissionError):
        return f"access denied ({one_line(error)}); check the credentials"
    if path is None:
        remedy = "make the bucket, check its name, AWS_ENDPOINT_URL_S3 and the credentials"
        return f"cannot be used: {one_line(error)}; {remedy}"
    if isinstance(error, OSError) and (known := explained(error)):  # it is the home, or the disk is full
        return known
    if isinstance(error, PermissionError):
        return f"you may not write to {_nearest(path)}; mount it with write access, or name another"
    return f"cannot be used: {one_line(error)}; mount it, or name another folder"


def _nearest(path: Path) -> Path:
    return next((each for each in (path, *path.parents) if each.exists()), path)


def _faults() -> tuple[type[Exception], ...]:
    # s3fs lets botocore's own through (no credentials, no connection), and has loaded it by the time one is raised
    botocore = sys.modules.get("botocore.exceptions")
    return (OSError, ValueError, StoreError, *((botocore.BotoCoreError,) if botocore else ()))
