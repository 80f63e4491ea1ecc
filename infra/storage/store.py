"""Whole folders at a URI: payload first, manifest last, digests checked by every reader.

A stored folder is its files and a `manifest.json` that describes them. A folder without one is not there, so no
reader takes a half-written folder for a whole one. On the local file system a folder appears by one rename; elsewhere
the manifest is the last file put.

A URI is a path or whatever fsspec understands: `memory://…`, `s3://…`. One process at a time writes a given folder; any
number read it.
"""

import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from infra import disk
from infra.storage import place
from infra.storage.fence import Fence
from infra.storage.manifest import MANIFEST, Manifest, NotThere, StoreError, Torn, describe, parse, render, verify
from infra.storage.retry_policy import RetryPolicy


@dataclass(frozen=True)
class Folder:
    """A verified folder on this machine's file system. As a context manager it removes a `temporary` one at the end;
    without `with` that goes when the process ends."""

    path: Path
    manifest: Manifest
    temporary: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True)
class Version:
    """A numbered folder, whole or not."""

    number: int
    uri: str
    whole: bool  # it has a manifest; its files are not read


def write_folder(
    uri: str,
    source: Path,
    *,
    meta: Mapping[str, JsonValue] | None = None,
    move: bool = False,
    fence: Fence | None = None,
    flat: bool = False,
) -> Manifest:
    """Store every file of the local folder `source` at `uri`; whatever else was there is replaced.

    A no-op if the very same files and `meta` are stored there whole. A `manifest.json` at the top of `source` is left
    out. With `move` `source` is gone afterwards. With a `fence` nothing is replaced once another process has its run:
    in a store elsewhere the files lie in a folder of their epoch, so that not even a late request overwrites another's;
    `flat` keeps them beside the manifest.

    Raises ValueError if `source` holds no file or one whose name cannot be stored, or if `meta` is not JSON;
    LockLostError.
    """
    manifest = describe(source, meta or {})
    path = place.local_path(uri)
    if path is None:
        _upload(uri, source, replace(manifest, at="" if flat or fence is None else f"e{fence.epoch}"), check_of(fence))
    elif not _holds(uri, manifest):
        with disk.temporary_beside(path) as made:
            for name in manifest.files:
                disk.take(source / name, made / name, move)
            (made / MANIFEST).write_bytes(render(manifest))
            disk.put_in_place(made, path, check_of(fence))
    if move and path != source.absolute():
        shutil.rmtree(source, ignore_errors=True)
    return manifest


def write_patiently(
    uri: str,
    source: Path,
    meta: Mapping[str, JsonValue],
    patience: float,
    fence: Fence | None,
    *,
    flat: bool = False,
) -> Manifest:
    """As `write_folder`, retried for `patience` seconds in a store elsewhere; `source` is gone afterwards."""
    if place.local_path(uri) is not None:
        return write_folder(uri, source, meta=meta, move=True, fence=fence, flat=flat)
    manifest = RetryPolicy(patience)(lambda: write_folder(uri, source, meta=meta, fence=fence, flat=flat))
    shutil.rmtree(source, ignore_errors=True)
    return manifest


def read_folder(uri: str, into: Path | None = None) -> Folder:
    """The folder stored at `uri`, on this machine and verified.

    Without `into` a local folder is used where it lies and any other is downloaded to a temporary one. `into` becomes
    a copy, with its manifest: nothing is fetched if it is one already, and it is never seen half-filled. Files that the
    manifest does not name are left out. A reader that a pruning overtakes gets NotThere.

    Raises NotThere, Torn (which names the file) where it was read twice so, and ValueError if `into` is a folder of
    something else.
    """
    torn = ""
    while True:
        manifest = read_manifest(uri)
        try:
            return _fetch(uri, manifest, into)
        except Torn:
            if manifest.digest == torn:  # else it may have been replaced meanwhile, or its way here cut off
                raise
            torn = manifest.digest


def copy_folder(folder: Folder, target: Path, uri: str) -> None:
    """Copy the files that the manifest of a folder names, and no others, into `target`: content alone, verified once
    more, as others may write where the folder lies. Raises Torn, naming `uri`."""
    try:
        disk.copy_files(folder.path, target, folder.manifest.files)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise Torn(f"{uri} is torn: {error.filename!r} is missing") from None
    verify(target, folder.manifest, uri)


def read_manifest(uri: str) -> Manifest:
    """The manifest stored at `uri`; the files that it names are not read.

    Raises NotThere, and Torn if it cannot be read or names a file outside the folder.
    """
    data = place.read(place.join(uri, MANIFEST))
    if data is None:
        raise NotThere(f"there is nothing whole at {uri}: it has no {MANIFEST}")
    try:
        return parse(data)
    except ValueError as error:
        raise Torn(f"{uri} is torn: {MANIFEST} {error}") from None


def check_whole(uri: str) -> None:
    """Raise NotThere or Torn unless the folder at `uri` is whole: on this machine by its files' digests, elsewhere by
    their sizes."""
    path, manifest = place.local_path(uri), read_manifest(uri)
    if path is not None:
        verify(path, manifest, uri)
        return
    fs, root = place.remote(uri)
    for name, entry in manifest.files.items():
        try:
            size = fs.info(_payload(root, manifest, name))["size"]
        except FileNotFoundError:
            raise Torn(f"{uri} is torn: {name!r} is missing") from None
        if size != entry.bytes:
            raise Torn(f"{uri} is torn: {name!r} has {size} bytes, its manifest says {entry.bytes}")


def list_versions(uri: str, prefix: str = "") -> list[Version]:
    """The folders `<prefix><number>` under `uri`, by rising number, those without a manifest included."""
    pattern = re.compile(re.escape(prefix) + "([0-9]+)")
    found = [(match, whole) for name, whole in place.subfolders(uri).items() if (match := pattern.fullmatch(name))]
    listed = [Version(int(match[1]), place.join(uri, match[0]), whole) for match, whole in found]
    return sorted(listed, key=lambda version: (version.number, version.uri))


def versions(uri: str, prefix: str = "") -> list[int]:
    """The numbers of the folders `<prefix><number>` under `uri` that have a manifest, rising."""
    return sorted({version.number for version in list_versions(uri, prefix) if version.whole})


def prune(uri: str, keep: Collection[int], prefix: str = "", fence: Fence | None = None) -> None:
    """Remove the versions under `uri` whose number is not in `keep`, and what dead writers left.

    A version loses its manifest before its files. A folder without a manifest stays if its number is above all of
    `keep`: somebody may be writing it.
    """
    newest = max(keep, default=-1)
    for version in list_versions(uri, prefix):
        if version.number not in keep and (version.whole or version.number <= newest):
            check_of(fence)()
            place.remove(version.uri)
    if (path := place.local_path(uri)) is not None:
        disk.sweep(path)


@contextmanager
def scratch(uri: str) -> Iterator[Path]:
    """A new local folder for files that go to `uri`: below it where that is local, so that they can be renamed to it.
    What killed writers left there is removed. Raises StoreError where the folder is gone when one is made."""
    local = place.local_path(uri)
    if local is None:
        with tempfile.TemporaryDirectory(dir=disk.own_folder(), ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    disk.sweep(local)
    with disk.temporary_beside(local / "scratch") as folder:
        try:
            yield folder
        except Exception as error:
            # safetensors has one exception for a folder that is gone and for a damaged file
            missing = isinstance(error, FileNotFoundError) or type(error).__name__ == "SafetensorError"
            if folder.exists() or not missing:
                raise
            raise StoreError(f"{uri} was removed while it was written, or its disk is no longer there") from error


def check_of(fence: Fence | None) -> Callable[[], None]:
    """The check to call before something of a run is replaced or removed."""
    return (lambda: None) if fence is None else fence.check


def _holds(uri: str, manifest: Manifest) -> bool:
    try:
        if read_manifest(uri).digest != manifest.digest:
            return False
        with read_folder(uri):
            return True
    except StoreError:
        return False


def _fetch(uri: str, manifest: Manifest, into: Path | None) -> Folder:
    path = place.local_path(uri)
    if path is not None and into is None:
        verify(path, manifest, uri)
        return Folder(path, manifest)
    target = into or disk.own_folder() / secrets.token_hex(8)
    if target.exists():
        if _holds(str(target.absolute()), manifest):
            return Folder(target, manifest)
        if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).is_file()):
            raise ValueError(f"{target} is no copy of a stored folder and not empty: name another place, or empty it")
    with disk.temporary_beside(target) as made:
        for name in manifest.files:
            try:
                if path is not None:
                    disk.take(path / name, made / name, move=False)
                else:
                    fs, root = place.transfer(uri)
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    fs.get_file(_payload(root, manifest, name), str(made / name))
            except FileNotFoundError:
                raise Torn(f"{uri} is torn: {name!r} is missing") from None
        verify(made, manifest, uri)
        (made / MANIFEST).write_bytes(render(replace(manifest, at="")))
        disk.put_in_place(made, target)
    return Folder(target, manifest, temporary=into is None)


def _upload(uri: str, source: Path, manifest: Manifest, check: Callable[[], None]) -> None:
    fs, root = place.transfer(uri)
    if place.files(fs, root):
        if _holds(uri, manifest):
            return
        check()
        place.remove(uri)
    for name in manifest.files:
        at = _payload(root, manifest, name)
        place.make_parent(fs, at)
        fs.put_file(str(source / name), at)
    check()
    fs.pipe_file(place.join(root, MANIFEST), render(manifest))


def _payload(root: str, manifest: Manifest, name: str) -> str:
    """The path of a folder's file in a store elsewhere."""
    return place.join(root, manifest.at, name) if manifest.at else place.join(root, name)
