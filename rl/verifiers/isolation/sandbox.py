"""The sandbox around a verifier's process on this machine, beside the limits that it always has.

bubblewrap  nothing outside is in reach: read-only files, a temporary folder of its own, no other process, no network
landlock    the same files and folder; other processes can be seen, not looked into; no network
none        limits alone

In both of the first, seccomp refuses what goes round them: `rl.verifiers.isolation.seccomp`.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rl.verifiers.isolation import interpreter, landlock, seccomp
from rl.verifiers.isolation.confinement import is_linux

AUTO, BUBBLEWRAP, LANDLOCK, NONE = "auto", "bubblewrap", "landlock", "none"
PROBE_SECONDS = 20.0
# where people keep their keys; below their home
SECRETS = (
    *(".ssh", ".aws", ".config", ".netrc", ".kube", ".docker", ".gnupg", ".azure", ".git-credentials"),
    *(".cache/huggingface/token", ".cache/huggingface/stored_tokens"),
)
AS_ROOT = ("SETUID", "SETGID")  # that confinement needs to leave root, and drops
COVERED = ("/tmp", "/run", "/var/tmp")  # where other programs put their sockets; the first is its own folder
RESOLVERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager")  # where /etc/resolv.conf may lead


class SandboxError(ValueError):
    """The sandbox that was asked for cannot be had on this machine."""


def chosen(asked: str) -> str:
    """The sandbox to use. Raises SandboxError where the one that is asked for cannot work here."""
    if asked == AUTO:
        return BUBBLEWRAP if not missing(BUBBLEWRAP) else LANDLOCK if not missing(LANDLOCK) else NONE
    if lacks := missing(asked):
        raise SandboxError(
            f"verifier.sandbox: {asked!r} does not work on this machine ({lacks}); auto takes what there is"
        )
    return asked


@cache
def missing(sandbox: str) -> str:
    """Why a sandbox does not work on this machine; empty where it does."""
    if sandbox == LANDLOCK:
        return "" if is_linux() and landlock.abi() else "the kernel has no Landlock"
    if sandbox == NONE:
        return ""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed; on Debian and Ubuntu: apt install bubblewrap"
    try:
        command = [*bubblewrap("/", [], network=False), "true"]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap: {error}"
    return " ".join(tried.stderr.split())[:200] or f"bwrap ended with {tried.returncode}" if tried.returncode else ""


def bubblewrap(folder: str, hidden: Sequence[str], *, network: bool) -> list[str]:
    """The command that runs what follows it, with ``folder`` as /tmp; "/" does without one. Raises UnreadableError."""
    words = ["bwrap", "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    words += ["--unshare-cgroup-try", *([] if network else ["--unshare-net"])]
    words += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    # /proc to be read alone: a program that the function runs could write its memory by /proc/<pid>/mem
    words += ["--remount-ro", "/proc", "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    shown = interpreter.view() if folder != "/" else interpreter.NOTHING_CLOSED
    covered = [path for path in COVERED[1:] if Path(path).is_dir() and not Path(path).is_symlink()]
    covered += [path for path in shown.closed if not _below(path, COVERED)]
    words += [word for path in covered for word in ("--tmpfs", path)]
    needed = [path for path in interpreter.folders() if _below(path, COVERED)]
    needed += [path for path in shown.kept if not _below(path, COVERED)]
    if folder != "/":
        words += ["--bind", folder, "/tmp"]
        for path in needed:  # bwrap itself would make the folders above for root alone
            above = [str(one) for one in reversed(Path(path).parents) if _below(str(one), (*COVERED, *shown.closed))]
            words += [word for one in above for word in ("--dir", one)] + ["--ro-bind", path, path]
        words += ["--chdir", "/"]  # who is root may not enter another's /tmp: its process goes there when it is that
    for path in hidden:
        if (path in shown.closed or _below(path, (*COVERED, *shown.closed))) and not _below(path, needed):
            continue
        if Path(path).is_dir():
            words += ["--tmpfs", path, "--remount-ro", path]
        elif Path(path).exists():
            words += ["--ro-bind", "/dev/null", path]
    if network:
        for path in RESOLVERS:
            words += ["--ro-bind-try", path, path]
    words += [word for path in covered for word in ("--remount-ro", path)]
    if os.geteuid() == 0:
        words += ["--cap-drop", "ALL", *[word for name in AS_ROOT for word in ("--cap-add", f"CAP_{name}")]]
    return [*words, "--"]


def leaves_open(sandbox: str) -> str:
    """What of the network a sandbox leaves open on this machine, and the remedy."""
    if sandbox != LANDLOCK or seccomp.works():
        return ""
    return ", but Unix sockets and UDP are open (no seccomp here); on Debian and Ubuntu: apt install bubblewrap"


def hidden(home: Path | None) -> list[str]:
    """The files and folders with secrets on this machine: people's own, and rlvf's home; resolved, and only what is
    there. A folder that Python or a package lies in is left out."""
    mine = Path.home() if "HOME" in os.environ else None
    found = [mine / name for name in SECRETS] if mine is not None else []
    found += [home] if home is not None else []
    there = [path.resolve() for path in found if path.exists()]
    return [str(path) for path in there if not any(Path(kept).is_relative_to(path) for kept in interpreter.folders())]


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(Path(folder) in Path(path).parents for folder in folders)
