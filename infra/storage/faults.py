"""Errors of a storage, a disk or a damaged file: one line that says what to do, and whether a retry may help."""

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.disk import FORBIDDEN, FULL
from infra.errors import causes, one_line, worker_of
from infra.home import rlvf_home
from infra.storage.kinds import KINDS
from infra.storage.manifest import StoreError

SQLITE_FULL = "database or disk is full"
NO_SPACE = 1 << 20  # bytes free, below which a full disk is taken for the cause of any failure
# an answer rather than a failure to get one
_ANSWERS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def explained(error: BaseException) -> str | None:
    """One line for the first fault of a storage among `error` and its causes; None where there is none. It begins with
    the name of the worker that raised the error, if one did."""
    chain = list(causes(error))
    worker = next((name for each in chain if (name := worker_of(each)) is not None), None)
    where = "" if worker is None else f"{worker}: "
    for each in chain:
        if isinstance(each, OSError) and each.errno in FULL:
            return where + _full(_named(chain), worker, quota=each.errno == errno.EDQUOT)
        said = str(each)  # by a library's own exception
        if (quota := os.strerror(errno.EDQUOT) in said) or os.strerror(errno.ENOSPC) in said or SQLITE_FULL in said:
            return where + _full(None, worker, quota=quota)
    known = next((where + line for each in chain if (line := _line_for(each)) is not None), None)
    if known is None and (space := _free(rlvf_home())) is not None and space < NO_SPACE:
        return f"{_full(str(rlvf_home()))} ({one_line(error)})"
    return known


def may_pass(error: BaseException) -> bool:
    """Whether a retry may succeed."""
    if isinstance(error, OSError):
        return not isinstance(error, _ANSWERS) and error.errno not in FULL | {errno.EROFS}
    return any(kind.raised(error, kind.passing) for kind in KINDS if kind.passing)


def is_forbidden(error: OSError) -> bool:
    """Whether this process may not do that there; a store's own error has no number."""
    return isinstance(error, PermissionError) or error.errno in FORBIDDEN


def is_of_library(error: BaseException) -> bool:
    """Whether a library's file system may have raised the error, for what is away, refused or not installed: no
    exception of ours, and none of Python's that means a mistake in a program."""
    if isinstance(error, OSError | ImportError):
        return True
    return type(error).__module__.partition(".")[0] not in ("builtins", "flows", "tasks", "rl", "infra")


def unreachable(error: BaseException) -> str | None:
    """Why a server was not reached, where a file system calls its files missing for that."""
    for each in causes(error):
        if isinstance(each, ConnectionError | TimeoutError) or "Connect" in type(each).__name__:
            return one_line(each)
    return None


def _line_for(error: BaseException) -> str | None:
    if isinstance(error, StoreError):
        return f"{one_line(error)}; {error.remedy}"
    if type(error).__module__.partition(".")[0] in ("safetensors", "safetensors_rust"):
        return f"weights cannot be read ({one_line(error)}): the file is damaged or cut off; fetch or make it again"
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        path, home = Path(os.fsdecode(error.filename)).absolute(), rlvf_home()
        within = path == home or path in home.parents  # a missing one of these could not be made
        if (within and error.errno == errno.ENOENT) or ((within or home in path.parents) and error.errno in FORBIDDEN):
            return (
                f"{path} cannot be written ({os.strerror(error.errno or 0)}); set RLVF_HOME to a folder that can, now "
                f"{home}"
            )
    return next((line for kind in KINDS if (line := kind.explain(error)) is not None), None)


def _full(path: str | None, worker: str | None = None, *, quota: bool = False) -> str:
    """No space left, on the disk or of a quota, here or on that worker's machine, whose home is its own."""
    what = "the quota of the storage is used up" if quota else "no space left on the disk"
    where = "" if path is None else f" for {path}"
    return (
        f"{what}{where}; free some, or {_elsewhere(path, worker)}; what was saved before is there, and a run goes on "
        "by --resume"
    )


def _elsewhere(path: str | None, worker: str | None) -> str:
    """How another disk is named than the one that `path` is on."""
    home = f"RLVF_HOME (now {rlvf_home()})" if worker is None else "that worker's RLVF_HOME"
    storage = os.environ.get("RLVF_STORAGE")
    if path is None or _within(path, str(rlvf_home())):
        return f"set {home} or RLVF_STORAGE to another one"
    if storage and _within(path, storage):
        return f"set RLVF_STORAGE (now {storage}) to another one"
    if _within(path, tempfile.gettempdir()) and f"{os.sep}rlvf-{os.getuid()}{os.sep}" in path:
        return "set TMPDIR to another one"
    own = "" if worker is None else ", what is that worker's own by its RLVF_HOME"
    return f"name another, a run's by --run or RLVF_STORAGE{own}"


def _within(path: str, folder: str) -> bool:
    return Path(path).absolute().is_relative_to(Path(folder).absolute())


def _named(chain: Sequence[BaseException]) -> str | None:
    """The file that an error about a full disk names, among an error and its causes."""
    full = (each.filename for each in chain if isinstance(each, OSError) and each.errno in FULL)
    return next((os.fsdecode(name) for name in full if isinstance(name, str | bytes)), None)


def _free(folder: Path) -> int | None:
    """Bytes that are left on the disk of `folder`; None of what is no disk, as /proc."""
    try:
        usage = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists()))
    except OSError:
        return None
    return usage.free if usage.total else None
