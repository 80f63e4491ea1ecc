"""A small random file that shows whether two machines mean the same storage, and not two folders of one name."""

import hashlib
import secrets

from infra.storage import place


def leave_mark(uri: str, writer: str) -> str:
    """Leave a new mark in the storage at `uri`, replacing this `writer`'s last one; returns it."""
    mark = f"{hashlib.sha256(writer.encode()).hexdigest()[:16]}-{secrets.token_hex(16)}"
    place.write_text(_file(uri, mark), mark)
    return mark


def has_mark(uri: str, mark: str) -> bool:
    """Whether the mark lies in the storage that `uri` names here. Raises whatever the store raises."""
    return place.read(_file(uri, mark)) == mark.encode()


def _file(uri: str, mark: str) -> str:
    return place.join(uri, "clusters", mark.partition("-")[0])
