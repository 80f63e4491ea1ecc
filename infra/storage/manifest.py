"""The manifest of a stored folder: each file's size and sha256, the writer's `meta`, and a digest over both.

StoreError ─ NotThere   there is no manifest
           └ Torn       there is one, and a file is missing or is not what the manifest says
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import JsonValue, TypeAdapter, ValidationError

from infra.errors import first_fault

MANIFEST = "manifest.json"


class StoreError(Exception):
    """What is stored cannot be used; the message is one line that names the URI and why."""

    damaged: tuple[str, ...] = ()  # URIs of the folders that were read and cannot be used
    remedy = "a run goes on from its newest intact checkpoint by `rlvf train --resume RUN`"


class NotThere(StoreError):  # noqa: N818
    """Nothing whole is stored at the URI."""


class Torn(StoreError):  # noqa: N818
    """What is stored at the URI is not what its manifest says."""


@dataclass(frozen=True)
class Entry:
    """A file of a stored folder."""

    sha256: str  # 64 hexadecimal digits
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The contents of a stored folder."""

    files: Mapping[str, Entry]  # by path inside the folder, with "/"
    meta: Mapping[str, JsonValue]  # for the writer's use
    digest: str  # sha256 over files and meta: two folders are the same if theirs is
    at: str = ""  # in a store elsewhere: the folder beside the manifest in which the files lie, one for each writer
    format: Literal[1] = 1

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.files.values())


_MANIFEST_TYPE = TypeAdapter(Manifest)


def describe(source: Path, meta: Mapping[str, JsonValue]) -> Manifest:
    """The manifest of every file in the local folder `source`, except a manifest at its top.

    Raises ValueError if there is no file, if one has a name that cannot be stored, or if `meta` is not JSON.
    """
    files = sorted(path for path in source.rglob("*") if path.is_file() and path != source / MANIFEST)
    if not files:
        raise ValueError(f"{source} has no file to store")
    entries = {path.relative_to(source).as_posix(): _measure(path) for path in files}
    try:
        # what cannot be read back is never written
        return parse(render(Manifest(entries, meta, _digest(entries, meta))))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} cannot be stored: its manifest {error}") from None


def render(manifest: Manifest) -> bytes:
    """The manifest as a file."""
    return json.dumps(asdict(manifest), indent=1, allow_nan=False).encode()


def parse(data: bytes) -> Manifest:
    """The manifest that `render` wrote.

    Raises ValueError, whose message is the end of a sentence that begins with the manifest's name, for anything else, a
    file name that leads out of the folder included.
    """
    try:
        manifest = _MANIFEST_TYPE.validate_json(data, strict=True)
    except ValidationError as error:
        field, what = first_fault(error)
        raise ValueError(f"cannot be read: {field!r}: {what}" if field else f"cannot be read: {what}") from None
    for name in manifest.files:
        path = PurePosixPath(name)
        inside = path.parts and path.as_posix() == name and not path.is_absolute() and ".." not in path.parts
        if not inside or name == MANIFEST or re.search(r"[\\\x00]", name):
            raise ValueError(f"names {name!r}, which is no file inside the folder")
    if not re.fullmatch(r"(e\d+)?", manifest.at):
        raise ValueError(f"says that its files are at {manifest.at!r}, which is no folder of ours")
    if _digest(manifest.files, manifest.meta) != manifest.digest:
        raise ValueError("does not match its own digest")
    return manifest


def verify(folder: Path, manifest: Manifest, uri: str) -> None:
    """Raise Torn, naming `uri` and the file, unless every file of `folder` is what its manifest says."""
    try:
        for name, entry in manifest.files.items():  # sizes first: they are free, and most damage shows there
            if (size := (folder / name).stat().st_size) != entry.bytes:
                raise Torn(f"{uri} is torn: {name!r} has {size} bytes, its manifest says {entry.bytes}")
        for name, entry in manifest.files.items():
            if _measure(folder / name) != entry:
                raise Torn(f"{uri} is torn: {name!r} does not match the digest in its manifest")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise Torn(f"{uri} is torn: {name!r} is missing") from None


def _measure(path: Path) -> Entry:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Entry(sha256, file.tell())


def _digest(files: Mapping[str, Entry], meta: Mapping[str, JsonValue]) -> str:
    said = {"files": {name: asdict(entry) for name, entry in files.items()}, "meta": meta}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
