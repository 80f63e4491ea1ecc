"""A folder as storage that can be slow, or have a quota that is used up: a FUSE file system, which passes all on.

    python -m tests.bench.faulty_storage FOLDER MOUNT FAULT

What the file FAULT holds is done to the folder's files under MOUNT from the next operation on: nothing where it is
empty or missing. It serves until it is unmounted (`fusermount3 -u MOUNT`).
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes.util import find_library
from errno import EDQUOT
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2  # as nanoseconds, by utimensat(2)
SLOW, QUOTA = "slow", "quota"
DELAY = 0.02  # seconds of an operation on slow storage: a share over Wi-Fi
RATE = 1e6  # bytes a second of it


def serve(folder: Path, mount: Path, fault: Path) -> None:
    from mfusepy import FUSE, Operations

    def under(path: str) -> Path:
        return folder / path.lstrip("/")

    def fails(kind: str) -> bool:
        with suppress(FileNotFoundError):
            return fault.read_text() == kind
        return False

    def wait(size: int = 0) -> None:
        if fails(SLOW):
            time.sleep(DELAY + size / RATE)

    def check_quota() -> None:
        if fails(QUOTA):
            raise OSError(EDQUOT, os.strerror(EDQUOT))

    class Faulty(Operations):  # type: ignore[misc]
        """What a run does to its files, each operation in a thread of libfuse's."""

        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            found = under(path).lstat() if fh is None else os.fstat(fh)
            names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
            times = {name: getattr(found, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
            return {**{name: getattr(found, name) for name in names}, **times}

        def readdir(self, path: str, _: int) -> Iterable[str]:
            wait()
            return [".", "..", *(each.name for each in under(path).iterdir())]

        def readlink(self, path: str) -> str:
            return str(under(path).readlink())

        def mkdir(self, path: str, mode: int) -> None:
            wait()
            check_quota()
            under(path).mkdir(mode)

        def rmdir(self, path: str) -> None:
            wait()
            under(path).rmdir()

        def unlink(self, path: str) -> None:
            wait()
            under(path).unlink()

        def rename(self, old: str, new: str) -> None:
            wait()
            under(old).rename(under(new))

        def link(self, target: str, source: str) -> None:
            wait()
            os.link(under(source), under(target), follow_symlinks=False)

        def symlink(self, target: str, source: str) -> None:
            wait()
            under(target).symlink_to(source)

        def chmod(self, path: str, mode: int) -> None:
            under(path).chmod(mode)

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
            found, now = under(path).stat(), time.time_ns()
            kept = {UTIME_NOW: (now, now), UTIME_OMIT: (found.st_atime_ns, found.st_mtime_ns)}
            given = (now, now) if times is None else times
            os.utime(under(path), ns=tuple(kept.get(ns, (ns, ns))[at] for at, ns in enumerate(given)))

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(under(path))
            return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

        def open(self, path: str, flags: int) -> int:
            wait()
            return os.open(under(path), flags)

        def create(self, path: str, mode: int, flags: int = os.O_WRONLY) -> int:
            wait()
            check_quota()
            return os.open(under(path), flags | os.O_CREAT, mode)

        def read(self, _: str, size: int, offset: int, fh: int) -> bytes:
            wait(size)
            return os.pread(fh, size, offset)

        def write(self, _: str, data: bytes, offset: int, fh: int) -> int:
            wait(len(data))
            check_quota()
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(under(path) if fh is None else fh, length)

        def fsync(self, _: str, __: int, fh: int) -> None:
            wait()
            os.fsync(fh)

        def release(self, _: str, fh: int) -> None:
            os.close(fh)

    FUSE(Faulty(), str(mount), foreground=True, fsname="rlvf-faulty")


@contextmanager
def mounted(folder: Path, mount: Path, fault: Path, stack: ExitStack) -> Iterator[None]:
    """The folder's files are under `mount` meanwhile, as `fault` says. Files that are open then can be read until
    `stack` ends."""
    folder.mkdir(parents=True, exist_ok=True)
    mount.mkdir(parents=True, exist_ok=True)
    process = stack.enter_context(subprocess.Popen([sys.executable, "-m", __name__, folder, mount, fault]))
    stack.callback(process.kill)
    while not mount.is_mount():
        if process.poll() is not None:
            raise RuntimeError(f"{mount} could not be mounted: exit code {process.returncode}")
        time.sleep(0.05)
    try:
        yield
    finally:
        subprocess.run(["fusermount3", "-u", "-z", mount], check=True)


def lacks() -> str:
    """What this machine lacks for it."""
    if find_library("fuse3") is None or which("fusermount3") is None:
        return "needs FUSE (on Debian and Ubuntu: apt install fuse3)"
    with TemporaryDirectory() as place, ExitStack() as stack:
        try:
            with mounted(Path(place) / "folder", Path(place) / "mount", Path(place) / "fault", stack):
                return ""
        except RuntimeError as error:
            return f"needs the right to mount a file system of FUSE: {error}"


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:4]))
