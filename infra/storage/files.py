"""Files by fsspec path or glob: local, memory://, s3:// and what else fsspec knows; compressed ones by ending."""

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from glob import has_magic
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.local import LocalFileSystem

from infra.errors import one_line
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.faults import is_of_library, unreachable
from infra.storage.kinds import kind_of


class PathError(ValueError):
    """A path that cannot be read: one line that names it, without its secrets, and says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


def open_files(pattern: str, largest: int | None = None) -> Iterator[tuple[str, BinaryIO]]:
    """(name, open content) of each file that matches, in the order of their names; of more than ``largest`` bytes none.

    A file is read whole when its turn comes, so that a fault is found here and not by whoever reads it. Raises
    PathError, for a dead connection too: whoever gives a path at the start of a run wants to hear of it rather than
    wait.
    """
    fs, path = _filesystem(pattern)
    if largest is not None:
        fs = _uncached(fs)
    try:
        for each in _match(fs, path, pattern):
            name = each if "file" in fs.protocol else fs.unstrip_protocol(each)
            content = _content(fs, each, largest)
            yield masked(name), io.BytesIO(content)
    except PermissionError as error:
        raise PathError(f"{pattern}: permission denied; check the rights on it, or the credentials") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PathError(f"{name}: not the compressed file that its name promises ({one_line(error)})") from error
    except PathError:
        raise
    except Exception as error:
        if not is_of_library(error):
            raise
        raise PathError(f"{pattern}: cannot be read: {one_line(error)}") from error


def open_texts(pattern: str, largest: int | None = None) -> Iterator[tuple[str, TextIO]]:
    """As `open_files`, but (name, open text)."""
    for name, content in open_files(pattern, largest):
        yield name, as_text(content, name)


def as_text(content: BinaryIO, name: str) -> TextIO:
    """UTF-8 text. Line ends are kept as they are, which the csv module wants; a byte order mark is dropped. Raises
    PathError."""
    return io.StringIO(_decode(content.read(), name), newline="")


def _filesystem(pattern: str) -> tuple[Any, str]:
    if not pattern.strip() or "\0" in pattern:
        raise PathError(f"{pattern!r} is no path; give a file, or a pattern such as problems/*.csv")
    protocol = pattern.partition("://")[0]
    if "::" in pattern and Path(pattern).is_file():  # fsspec takes `a::b` for a chain
        return LocalFileSystem(), str(Path(pattern).absolute())
    try:
        return place.impatient(pattern, attempts=2)
    except ImportError as error:
        remedy = kind_of(pattern).install or one_line(error)
        raise PathError(f"{pattern}: {protocol}:// paths need a package that is not installed: {remedy}") from error
    except ValueError as error:
        known = "use a local path, memory://, s3:// or another protocol of fsspec"
        raise PathError(f"{pattern}: {one_line(error)}; {known}") from error
    except Exception as error:  # github:// sends a request in its constructor
        if not is_of_library(error):
            raise
        raise PathError(f"{pattern}: cannot be read: {one_line(error)}") from error


def _uncached(fs: Any) -> Any:
    """What a cache of fsspec's reads from: it would fetch a file whole, however large."""
    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
    return fs


def _content(fs: Any, path: str, largest: int | None) -> bytes:
    # A block size of 0 streams what a web server sends; asked for a range it may send any amount.
    streamed = {"block_size": 0} if largest is not None and {"http", "https"} & {*fs.protocol} else {}
    with fs.open(path, "rb", compression="infer", **streamed) as opened:
        if largest is None:
            return bytes(opened.read())
        content = bytearray()
        while len(content) <= largest and (more := opened.read(largest + 1 - len(content))):
            content += more
    if len(content) > largest:
        raise PathError(f"{path}: is larger than {largest} bytes; name a smaller file")
    return bytes(content)


def _match(fs: Any, path: str, pattern: str) -> list[str]:
    # A name is tried as it stands first: it may hold brackets. Where the storage refuses or cannot be reached, `isfile`
    # says False and `glob` finds nothing; `info` raises.
    try:
        kind = fs.info(path)["type"]
    except (FileNotFoundError, NotADirectoryError) as missing:
        if why := unreachable(missing):
            raise PathError(f"{pattern}: cannot be reached: {why}") from missing
        matches = fs.glob(path, detail=True)
        files = sorted(name for name, info in matches.items() if info["type"] == "file")
        if not files:
            if matches:
                raise PathError(f"{pattern}: matches only folders") from None
            beyond = ", and no file matches it as a pattern" if has_magic(path) else ""
            near = _near(Path(path)) if "file" in fs.protocol else ""
            raise PathError(f"{pattern}: no such file{beyond}{near}") from None
        return files
    if kind == "directory":
        raise PathError(f"{pattern}: is a folder; name its files, such as {pattern.rstrip('/')}/*.csv")
    return [path]


def _near(path: Path) -> str:
    """The end of a message about a file that is not there: the nearest name in its folder; empty where none is near."""
    with suppress(OSError), os.scandir(path.parent) as there:
        if near := get_close_matches(path.name, [each.name for each in there if each.is_file()], n=1, cutoff=0.75):
            return f"; did you mean {near[0]}?"
    return ""


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PathError(f"{name}: line {line}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
