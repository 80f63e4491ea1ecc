"""A view of the files of one process's own (Linux, as root): folders that only root enters are empty in it but for what
is kept. See mount(2), mount_namespaces(7)."""

import ctypes
import os
from pathlib import Path

from rl.verifiers.isolation.interpreter import View

NEW_MOUNTS = 0x20000  # CLONE_NEWNS
BIND, RECURSIVE, PRIVATE, NO_SET_USER, NO_DEVICES = 1 << 12, 1 << 14, 1 << 18, 1 << 1, 1 << 2  # mount

_libc = ctypes.CDLL(None, use_errno=True)


def show(view: View, folder: str) -> None:
    """Give this process the view, with ``folder`` in it too. Raises PermissionError, with the remedy, where root may
    mount nothing, as in most containers."""
    if not view.closed:
        return
    try:
        _done(_libc.unshare(NEW_MOUNTS))
        _mount(None, "/", RECURSIVE | PRIVATE)
        kept = [(path, os.open(path, os.O_PATH)) for path in (*view.kept, folder)]
        for path in view.closed:
            _mount("none", path, NO_SET_USER | NO_DEVICES, "tmpfs", "mode=755")
        for path, opened in kept:
            _bind(opened, Path(path), view)
            os.close(opened)
    except PermissionError as error:
        remedy = " ".join(f"chmod o+x {path};" for path in view.closed)
        raise PermissionError(
            error.errno,
            f"Python lies where only root enters, and root may mount nothing here: {remedy} or install it elsewhere",
        ) from error


def _bind(opened: int, path: Path, view: View) -> None:
    """Show what was opened at its path, if a closed folder covers that."""
    if not any(path.is_relative_to(closed) for closed in view.closed):
        return
    if Path(f"/proc/self/fd/{opened}").is_dir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    _mount(f"/proc/self/fd/{opened}", str(path), BIND | RECURSIVE)


def _mount(source: str | None, target: str, flags: int, kind: str | None = None, options: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind, options)]
    _done(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
