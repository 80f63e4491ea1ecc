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

from rl.verifiers.isolation import interpreter, landlock, seccomp
from rl.verifiers.isolation.confinement import is_linux
from rl.verifiers.isolation.shown import Folder, Link, Mask, Seen, Tree, shown

AUTO, BUBBLEWRAP, LANDLOCK, NONE = "auto", "bubblewrap", "landlock", "none"
PROBE_SECONDS = 20.0
AS_ROOT = ("SETUID", "SETGID")  # that confinement needs to leave root, and drops
OWN = ("/dev", "/proc")  # that bubblewrap makes
COVERED = ("/tmp", "/run", "/var/tmp")  # where other programs put their sockets; the first is its own folder
RESOLVERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager")  # where /etc/resolv.conf may lead


class SandboxError(ValueError):
    """The sandbox that was asked for cannot be had on this machine."""


def chosen(asked: str, section: str = "verifier") -> str:
    """The sandbox to use; ``section`` of the configuration has asked for it. Raises SandboxError where that cannot work
    here."""
    if asked == AUTO:
        return BUBBLEWRAP if not missing(BUBBLEWRAP) else LANDLOCK if not missing(LANDLOCK) else NONE
    if lacks := missing(asked):
        raise SandboxError(
            f"{section}.sandbox: {asked!r} does not work on this machine ({lacks}); auto takes what there is"
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
        command = [*bubblewrap(None, [], [], network=False), "true"]
        tried = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap: {error}"
    return " ".join(tried.stderr.split())[:200] or f"bwrap ended with {tried.returncode}" if tried.returncode else ""


def bubblewrap(folder: str | None, hidden: Sequence[str], reads: Sequence[str], *, network: bool) -> list[str]:
    """The command that runs what follows it, with ``folder`` as /tmp. Raises UnreadableError."""
    words = ["bwrap", "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    words += ["--unshare-cgroup-try", *([] if network else ["--unshare-net"])]
    words += ["--bind", folder, "/tmp"] if folder is not None else ["--dir", "/tmp"]
    of_root = interpreter.view(reads)
    seen = shown(
        [*OWN, *COVERED, *of_root.closed, *hidden],
        [*interpreter.folders(), *of_root.kept, *reads, *(RESOLVERS if network else ())],
        covered=True,
    )
    words += [word for one in seen for word in _mounted(one)]
    words += ["--dev", "/dev", "--proc", "/proc"]
    # /proc to be read alone: a program that the function runs could write its memory by /proc/<pid>/mem
    words += ["--remount-ro", "/proc", "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    words += [word for one in seen if isinstance(one, Folder) and one.covers for word in ("--remount-ro", one.path)]
    words += ["--remount-ro", "/"]
    words += ["--chdir", "/"]  # who is root may not enter another's /tmp: its process goes there when it is that
    if os.geteuid() == 0:
        words += ["--cap-drop", "ALL", *[word for name in AS_ROOT for word in ("--cap-add", f"CAP_{name}")]]
    return [*words, "--"]


def _mounted(one: Seen) -> list[str]:
    """bubblewrap's words for a part of the view."""
    match one:
        case Tree(path):
            return ["--ro-bind-try", path, path]
        case Mask(path):
            return ["--ro-bind", "/dev/null", path]
        case Link(path, target):
            return ["--symlink", target, path]
        case Folder("/" | "/tmp"):
            return []
        case Folder(path, rights, covers):  # bwrap itself would make it for root alone
            return ["--perms", f"{rights:04o}", "--tmpfs" if covers else "--dir", path]


def leaves_open(sandbox: str) -> str:
    """What of the network a sandbox leaves open on this machine, and the remedy."""
    if sandbox != LANDLOCK or seccomp.works():
        return ""
    return ", but Unix sockets and UDP are open (no seccomp here); on Debian and Ubuntu: apt install bubblewrap"
