"""A small random file by which a machine sees that a storage is the one of another, and not a folder of that name."""

import hashlib
import secrets

from infra.storage import place


def leave_mark(uri: str, writer: str) -> str:
    """Leave a new mark in the storage at `uri`, in the place of the last one of this `writer`; returns it."""
    mark = f"{hashlib.sha256(writer.encode()).hexdigest()[:16]}-{secrets.token_hex(16)}"
    place.write_text(_file(uri, mark), mark)
    return mark


def has_mark(uri: str, mark: str) -> bool:
    """Whether that mark lies in what `uri` names here: one read. Raises whatever the store raises."""
    return place.read(_file(uri, mark)) == mark.encode()


def _file(uri: str, mark: str) -> str:
    return place.join(uri, "clusters", mark.partition("-")[0])
