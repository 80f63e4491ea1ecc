"""What lies at a URI, on this machine's file system or anywhere that fsspec knows: small files, listings, removal."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from infra import disk
from infra.storage.faults import may_pass
from infra.storage.kinds import kind_by, kind_of
from infra.storage.manifest import MANIFEST, NotThere

ANSWER_SECONDS = 15.0  # in which a store must answer a small request
ATTEMPTS = 2  # at a small request
MOST_BYTES = 2**30  # of a file that is read whole: the metrics of 300,000 steps
# For large files, as a slow uplink takes time: botocore's 60 s, and s3fs asks once for what is missing of a part. To
# wait longer is the caller's `infra.storage.retry_policy`.
TRANSFER_SECONDS, TRANSFER_ATTEMPTS = 60.0, 2


def join(uri: str, *names: str) -> str:
    """The URI of something under `uri`."""
    return "/".join([uri.rstrip("/"), *names])


def local_path(uri: str) -> Path | None:
    """The absolute path that `uri` names on this machine's file system; None if it names something elsewhere."""
    protocol, separator, rest = uri.rpartition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return Path(rest).expanduser().absolute()


def write_text(uri: str, text: str) -> None:
    """Store one small UTF-8 file; a reader sees the old one or the new one."""
    write_bytes(uri, text.encode())


def write_bytes(uri: str, data: bytes) -> None:
    """Store one small file; a reader sees the old one or the new one."""
    if (path := local_path(uri)) is not None:
        disk.write_file(path, data)
        return
    fs, root = remote(uri)
    make_parent(fs, root)
    fs.pipe_file(root, data)


def read_text(uri: str, most: int = MOST_BYTES) -> str:
    """The file that `write_text` stored; raises NotThere, and otherwise as `read`."""
    data = read(uri, most)
    if data is None:
        raise NotThere(f"there is no {uri}")
    return data.decode()


def exists(uri: str) -> bool:
    """Whether a file, or a folder with anything in it, is at `uri`."""
    if (path := local_path(uri)) is not None:
        return path.exists()
    fs, root = remote(uri)
    return bool(fs.exists(root))


def remove(uri: str) -> None:
    """Remove a folder, its manifest first."""
    if (path := local_path(uri)) is not None:
        disk.remove(path)
        return
    fs, root = remote(uri)
    manifest = join(root, MANIFEST)
    # One by one: not every store that speaks S3 has multi-delete
    for file in sorted(files(fs, root), key=lambda file: file != manifest):
        with suppress(FileNotFoundError):
            fs.rm_file(file)
    if has_folders(fs):
        with suppress(FileNotFoundError):
            fs.rm(root, recursive=True)


def remove_file(uri: str) -> None:
    """Remove a file, if it is there."""
    if (path := local_path(uri)) is not None:
        path.unlink(missing_ok=True)
        return
    fs, root = remote(uri)
    with suppress(FileNotFoundError):
        fs.rm_file(root)


def reaches(uri: str) -> bool:
    """True where the store at `uri` can be listed; raises whatever the store raises where it cannot."""
    fs, root = remote(uri)
    fs.ls(root) if has_folders(fs) else fs.exists(root.partition("/")[0] or root)
    return True


def read(uri: str, most: int = MOST_BYTES) -> bytes | None:
    """A file's content, None if there is none. Raises `disk.NotAFileError` for what is no file on this machine, or has
    more than ``most`` bytes there."""
    try:
        if (path := local_path(uri)) is not None:
            return disk.read_file(path, most)
        fs, root = remote(uri)
        try:
            return bytes(fs.cat_file(root))
        except Exception as error:
            if not may_pass(error):
                raise
        return bytes(fs.cat_file(root))  # its body was cut off, which the client does not ask for again
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def subfolders(uri: str) -> dict[str, bool]:
    """The folders under `uri`, each with whether it has a manifest."""
    if (path := local_path(uri)) is not None:
        children = path.iterdir() if path.is_dir() else ()
        return {child.name: (child / MANIFEST).is_file() for child in children if child.is_dir()}
    fs, root = remote(uri)
    found: dict[str, bool] = {}
    for file in files(fs, root):  # one listing, not a round trip for each folder
        name, inside, rest = file.removeprefix(root).lstrip("/").partition("/")
        if inside:
            found[name] = found.get(name, False) or rest == MANIFEST
    return found


def children(uri: str) -> set[str]:
    """The names of what lies directly in the folder `uri`."""
    if (path := local_path(uri)) is not None:
        return {child.name for child in path.iterdir()} if path.is_dir() else set()
    fs, root = remote(uri)
    try:
        return {path.removeprefix(root).strip("/") for path in fs.ls(root, detail=False)} - {""}
    except FileNotFoundError:
        return set()


def folders(uri: str) -> list[str]:
    """The URIs of the folders that lie directly in the folder `uri`."""
    if (path := local_path(uri)) is not None:
        return sorted(join(uri, child.name) for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    fs, root = remote(uri)
    try:
        inside = fs.ls(root, detail=True)
    except FileNotFoundError:
        return []
    return sorted(
        join(uri, entry["name"].rstrip("/").rpartition("/")[2]) for entry in inside if entry["type"] == "directory"
    )


def modified(uri: str) -> datetime | None:
    """When a file was last written, None if there is none."""
    fs, root = remote(uri)
    try:
        when: datetime = fs.modified(root)
    except FileNotFoundError:
        return None
    return when


def names(uri: str) -> list[str]:
    """The names of the files that lie directly in the folder `uri`, sorted."""
    if (path := local_path(uri)) is not None:
        return sorted(child.name for child in path.iterdir() if child.is_file()) if path.is_dir() else []
    fs, root = remote(uri)
    inside = [file.removeprefix(root).lstrip("/") for file in files(fs, root)]
    return sorted(name for name in inside if "/" not in name)


def files(fs: Any, root: str) -> list[str]:
    """Every file under `root`, however deep."""
    try:
        return list(fs.find(root))
    except FileNotFoundError:
        return []


def remote(uri: str) -> tuple[Any, str]:
    """(file system, path on it) of a URI, for small files and listings. A store that stops answering is given up within
    half a minute."""
    fs, root = _opened(uri, ANSWER_SECONDS, ATTEMPTS)
    return fs, root.rstrip("/")


def transfer(uri: str) -> tuple[Any, str]:
    """As `remote`, for files of any size."""
    fs, root = _opened(uri, TRANSFER_SECONDS, 1, TRANSFER_ATTEMPTS)
    return fs, root.rstrip("/")


def await_answer(uri: str) -> None:
    """Ask an S3 store for a name, once. Raises what its client raises, but not that nothing is there."""
    if kind_of(uri).repeats:
        fs, root = impatient(uri, attempts=1)
        with suppress(FileNotFoundError, PermissionError):
            fs.info(root)


def impatient(uri: str, attempts: int) -> tuple[Any, str]:
    """As `remote`, for the start of a command, which a server that takes connections and never answers would hold up
    for minutes."""
    return _opened(uri, ANSWER_SECONDS, attempts)


def _opened(uri: str, seconds: float, attempts: int, repeats: int = 1) -> tuple[Any, str]:
    """(file system, path on it). It remembers no listing: other processes write here too, and fsspec keeps it for the
    life of the process."""
    kind = kind_of(uri)
    fs, path = url_to_fs(uri, **kind.options(ANSWER_SECONDS, seconds, attempts))
    if kind.repeats:  # 5 times otherwise, for a file's body 5 times 5, each of which times out anew
        fs.retries = repeats
    fs.invalidate_cache()
    return fs, path


def has_folders(fs: Any) -> bool:
    """Whether folders are made and removed there."""
    return kind_by([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol).has_folders


def make_parent(fs: Any, path: str) -> None:
    """Make the folder of `path`, where there are folders."""
    if has_folders(fs):
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
