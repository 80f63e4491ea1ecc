"""Folders and files on the local file system that are there whole or not at all, whenever their writer dies.

Each is made under a hidden name beside its place, `.<name>.<random>.tmp`, flushed to the disk and renamed.
"""

import errno
import fcntl
import hashlib
import itertools
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


@contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A new folder in `path`'s parent, locked as long as its writer lives; removed at the end unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        made = _temporary_name(path)
        made.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(made, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: what a dead writer left there stays
                fcntl.flock(lock, fcntl.LOCK_EX)
            if made.exists():
                break
            os.close(lock)  # `sweep` took it before it was locked
    try:
        with naming(path):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the path in an error that says that its disk is full: a write that fails names no file, nor do libraries.
    Raises OSError with that name."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, OSError) and error.filename is not None
        number = next((full for full in FULL if os.strerror(full) in str(error)), None)
        if known or number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


@cache
def own_folder() -> Path:
    """This process's own folder for what it need not keep, under `$TMPDIR`. It is removed when the process ends; what
    killed processes of this user left is removed by the next one. Raises PermissionError where another user has taken
    the place."""
    shared = Path(tempfile.gettempdir()) / f"rlvf-{os.getuid()}"
    shared.mkdir(mode=0o700, exist_ok=True)
    if shared.is_symlink() or shared.stat().st_uid != os.getuid():
        raise PermissionError(f"{shared} is another user's: remove it, or set TMPDIR to a folder of your own")
    sweep(shared)
    until_the_end = ExitStack()
    folder = until_the_end.enter_context(temporary_beside(shared / "process"))
    # of a fork of a server's, atexit is not asked
    Finalize(None, until_the_end.close, exitpriority=0)
    return folder


def claim(name: str) -> bool:
    """Whether nobody of this user on this machine has claimed the name; this process has it until it ends."""
    if name in _claimed:
        return False
    byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise  # else a file system without locks: two in one second are told apart by what they write
    _claimed.add(name)
    return True


_claimed: set[str] = set()  # by this process, whose own locks never stand in its way


@cache
def _claims() -> int:
    """A file of which nothing but locks of single bytes is used; closing it anywhere in the process would lose them."""
    return os.open(own_folder().parent / "claims.lock", os.O_RDWR | os.O_CREAT, 0o600)


def take(source: Path, target: Path, move: bool) -> None:
    """Copy a file, or rename it if it may be moved and lies on the same file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if move and not source.is_symlink():
        try:
            source.rename(target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error  # which is named second, if at all


def copy_files(source: Path, target: Path, names: Iterable[str | Path]) -> None:
    """Copy these files of a folder, by paths inside it, into another: content alone, with the rights of new files. A
    copy that kept those of the files would make a set-id program of its owner's out of one of anybody's."""
    for name in names:
        take(source / name, target / name, move=False)


def put_beside(made: Path, path: Path) -> Path:
    """Flush the folder `made` to the disk and rename it to `path`, or where something is there by now, which stays as
    it is, to the first of `path`-2, `path`-3, … that is free; returns the one."""
    _flush_all(made)
    for count in itertools.count(1):
        free = path if count == 1 else path.with_name(f"{path.name}-{count}")
        try:
            free.mkdir()  # the name is ours
            made.rename(free)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            continue
        break
    _flush(path.parent)
    return free


def put_in_place(made: Path, path: Path, check: Callable[[], None] = lambda: None) -> None:
    """Flush the folder `made` to the disk and rename it to `path`, replacing what is there; `check` is called between
    the two and may raise.

    A folder cannot be renamed onto a full one: the old one is moved aside first. A writer that dies between the two
    renames leaves neither.
    """
    _flush_all(made)
    check()
    aside = []
    while True:
        try:
            made.replace(path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        aside.append(_temporary_name(path))
        with suppress(FileNotFoundError):
            path.rename(aside[-1])
    _flush(path.parent)
    for old in aside:
        _delete(old)


def remove(path: Path) -> None:
    """Remove a folder: for readers it is gone at once."""
    hidden = _temporary_name(path)
    with suppress(FileNotFoundError):
        path.rename(hidden)
    _delete(hidden)


def sweep(parent: Path) -> None:
    """Remove what dead writers left in `parent`: the kernel drops a writer's lock in whatever manner it dies."""
    for leftover in parent.iterdir() if parent.is_dir() else ():
        if _TEMPORARY.fullmatch(leftover.name):
            with suppress(OSError), _open_folder(leftover) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError if its writer lives
                shutil.rmtree(leftover, ignore_errors=True)


def keep_newest(path: Path, count: int) -> None:
    """Count the folder `path` as used now, and remove all but the `count` folders beside it that were used last."""
    os.utime(path)
    used = {each: each.stat().st_mtime for each in path.parent.iterdir() if not _TEMPORARY.fullmatch(each.name)}
    for old in sorted(used, key=used.__getitem__, reverse=True)[count:]:
        remove(old)


def sweep_files(parent: Path) -> None:
    """Remove the files that a dead writer left half-written in `parent`, which only the caller writes to now."""
    for leftover in parent.iterdir() if parent.is_dir() else ():
        if _TEMPORARY.fullmatch(leftover.name) and leftover.is_file():
            leftover.unlink(missing_ok=True)


class NotAFileError(ValueError):
    """What is there in place of a file is none, or larger than such a file is."""


def read_file(path: Path, most: int) -> bytes:
    """A regular file of at most so many bytes. Anything else is not opened: a FIFO has no end, a device may do
    something.

    Raises:
        NotAFileError: it is no file, or larger.
        OSError: as `Path.read_bytes`.
    """
    _require_regular(path, path.stat())
    # should it be another by now: who opens a FIFO waits for whoever writes
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        found = os.fstat(file.fileno())
        _require_regular(path, found)
        if found.st_size > most:
            raise NotAFileError(f"{path}: has more than {most} bytes, which no such file has")
        return file.read()


def _require_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise NotAFileError(f"{path}: is no file but {kind_of_node(found.st_mode)}; put a file in its place")


def kind_of_node(mode: int) -> str:
    """What is at a path, in words."""
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "something else")


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a small file with these permissions, less the umask; a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = _temporary_name(path)
    try:
        # born with its permissions: a secret is never readable by others, not for a moment
        with naming(path), open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123
            file.write(data)
        _flush(made)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    _flush(path.parent)


def is_locked(path: Path, probe: int = fcntl.LOCK_EX) -> bool:
    """Whether a process has locked the file, which is made in a folder that is there. Two that `probe` by LOCK_SH at a
    time do not see each other, nor any process that shares the lock."""
    try:
        with path.open("a") as lock:
            fcntl.flock(lock, probe | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _temporary_name(beside: Path) -> Path:
    return beside.with_name(f".{beside.name}.{secrets.token_hex(4)}.tmp")


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush_all(made: Path) -> None:
    for folder, _, names in os.walk(made):
        for name in names:
            _flush(Path(folder, name))
        _flush(Path(folder))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
