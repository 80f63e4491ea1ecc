"""Whether a storage can be used: its address, and a probe of it."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from infra.errors import one_line
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.faults import explained, is_of_library
from infra.storage.kinds import kind_of

PROBE = "rlvf-probe-"  # how the name of a file begins that tries a storage


class StorageError(ValueError):
    """Nothing can be kept there; one line that says what to do."""


def storage_uri(given: str) -> str:
    """`given` as every process understands it, whatever its working directory. Raises `StorageError`."""
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


def probe_storage(uri: str, size: int = 4, *, answered: bool = False) -> tuple[float, float]:
    """Write, read back and remove a file of `size` random bytes at `uri`; (seconds to write it, seconds to read it).
    The storage is asked first, unless it has `answered` just now. Raises `StorageError`."""
    payload = secrets.token_bytes(size)
    file = place.join(uri, f"{PROBE}{secrets.token_hex(4)}")
    shown = f"storage {masked(uri)}"
    try:
        if not answered:
            place.await_answer(uri)
        began = time.perf_counter()
        place.write_bytes(file, payload)
        written = time.perf_counter()
        try:
            back = place.read(file)
            read = time.perf_counter()
        finally:
            place.remove_file(file)
    except ImportError as error:
        protocol = uri.partition("://")[0]
        remedy = kind_of(uri).install or one_line(error)
        raise StorageError(f"{shown}: {protocol}:// needs a package that is not installed here: {remedy}") from error
    except Exception as error:
        if not isinstance(error, ValueError) and not is_of_library(error):
            raise
        raise StorageError(f"{shown}: {_why(error, place.local_path(uri))}") from error
    if back != payload:
        raise StorageError(f"{shown}: gives back something else than was written there")
    return written - began, read - written


@contextmanager
def named_storage_errors(uri: str) -> Iterator[None]:
    """Turns what a storage elsewhere raises at the start of a command into `StorageError`, which names `uri`: a storage
    that cannot be used is a mistake in what was asked."""
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
