"""What code that a model wrote can do when a reward runs it: each sandbox, as root (there and in a container) and as
an ordinary user."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl.verifiers.isolation.leftovers import PREFIX, sweep
from rl.verifiers.isolation.sandbox import BUBBLEWRAP, LANDLOCK, NONE
from rl.verifiers.isolation.watched import PROCESSES

ROOT = Path(__file__).parents[4]
ORDINARY = 4242  # a user that the machine does not know
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what holds elsewhere is limits alone: needs Linux")


CONTAINER = "-sys_admin,-sys_ptrace,-dac_read_search"  # rights that root of a container lacks
DROPS = {
    "user": f"setpriv --reuid {ORDINARY} --regid {ORDINARY} --clear-groups",
    "container": f"setpriv --bounding-set {CONTAINER} --inh-caps {CONTAINER}",
}


def as_another(drop: str, command: Sequence[str], folder: Path, then: Sequence[str] = ()) -> list[str]:
    """The command run by an ordinary user, or root of a container, in a mount namespace in which everybody can read
    Python and us, after ``then``."""
    closed: dict[Path, list[Path]] = {}
    for path in map(Path, (sys.prefix, sys.base_prefix, ROOT, folder)):
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o001:
                closed.setdefault(above, []).append(path)
                break
    words = ["mount --make-rprivate /"]
    for number, (above, paths) in enumerate(closed.items()):
        for at, path in enumerate(paths):
            words += [f"mkdir {folder}/{number}.{at}", f"mount --bind {path} {folder}/{number}.{at}"]
        words += [f"mount -t tmpfs -o mode=755 none {above}"]
        for at, path in enumerate(paths):
            words += [f"mkdir -p {path}", f"mount --bind {folder}/{number}.{at} {path}"]
    return ["unshare", "-m", "sh", "-ec", "\n".join([*words, *then, f"exec {drop} {shlex.join(command)}"])]


def answers_of(command: Sequence[str], env: Mapping[str, str], at: Path) -> dict[str, Any]:
    """What a program that is run in this folder, which is removed then, has printed; skips what it says is missing."""
    try:
        done = subprocess.run(command, env=env, cwd=at, capture_output=True, text=True, timeout=100, check=False)
    finally:
        shutil.rmtree(at)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    if "missing" in answers:
        pytest.skip(answers["missing"])
    return answers


def slow(*values: str) -> list[Any]:
    """Of all of which one is enough while one waits."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(scope="module", params=[LANDLOCK, *slow(BUBBLEWRAP, NONE)])
def sandbox(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["user", *slow("root", "container")])
def found(request: pytest.FixtureRequest, sandbox: str) -> Any:
    # best where bubblewrap covers nothing; an ordinary user has only this one
    folder = Path("/srv" if os.access("/srv", os.W_OK) else "/var/tmp") / f"rlvf-hostile-{os.getpid()}"
    (folder / "keys").mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "keys" / "key").write_text("told nobody")
    (folder / "owned").write_text("told nobody")
    (folder / "owned").chmod(0o600)
    for path in (folder, folder / "keys", folder / "keys" / "key", folder / "tmp"):
        path.chmod(0o777)
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.socket(socket.AF_UNIX) as unix,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
            socket.socket(type=socket.SOCK_DGRAM) as udp,
        ):
            given = {"port": listening.getsockname()[1], "outside": str(folder / "outside")}
            for one, name in ((unix, "unix"), (datagrams, "datagrams")):
                one.bind(given.setdefault(name, str(folder / name)))
                (folder / name).chmod(0o777)
            unix.listen()
            udp.bind(("127.0.0.1", 0))
            udp.settimeout(0)
            given["udp"] = udp.getsockname()[1]
            asked = json.dumps({**given, "secret": str(folder / "keys" / "key"), "owned": str(folder / "owned")})
            command = [sys.executable, str(Path(__file__).with_name("hostile.py")), sandbox, asked]
            if request.param != "user" and os.geteuid():
                pytest.skip("needs root")
            if request.param == "container" and sandbox != LANDLOCK:
                pytest.skip("once is enough")
            if request.param in DROPS and os.geteuid() == 0:
                if not (shutil.which("unshare") and shutil.which("setpriv")):
                    pytest.skip("root loses its rights by unshare and setpriv (util-linux)")
                command = as_another(DROPS[request.param], command, folder)
            env = {**os.environ, "HOSTILE_SECRET": "told nobody", "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
            env["PYTHONPATH"] = str(ROOT)
            done = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, timeout=200, check=False
            )
            assert done.returncode == 0, done.stderr
            answers = json.loads(done.stdout)
            try:
                answers["udp"] = [float(len(udp.recv(1))), "heard"]
            except BlockingIOError:
                answers["udp"] = [0, "heard nothing"]
    finally:
        shutil.rmtree(folder)
    if "missing" in answers:
        pytest.skip(answers["missing"])
    assert answers["uid"] == (0 if request.param != "user" else os.geteuid() or ORDINARY)
    return {**answers, "as": request.param}


@pytest.mark.slow
def test_limits_cannot_be_raised_and_hold(found: dict[str, Any]) -> None:
    assert found["raise_limits"] == [0, "none"]
    assert found["memory"] == [0, "MemoryError "]
    assert found["new_privileges"] == [1, "told"]


@pytest.mark.slow
def test_files_are_bounded_in_size_and_in_number(found: dict[str, Any]) -> None:
    assert found["write"] == [0, "OSError 27"]  # EFBIG
    for name in ("fill", "fill_amid_orphans"):
        assert found[name] == [None, "r.py: reward wrote more than 256 MB or 10000 files (here)"], name


MEMORY, DISK = "held more than 300 MB of memory", "wrote more than 256 MB or 10000 files"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("processes", MEMORY),
        ("shared", MEMORY),
        ("memory_files", MEMORY),
        ("shm", MEMORY),
        ("deleted", DISK),
        ("mapped", DISK),
        ("carried", "kept open files in sockets"),
    ],
)
def test_what_all_processes_hold_together_is_bounded(sandbox: str, found: dict[str, Any], name: str, says: str) -> None:
    reward, said = found.get(f"hold_{name}", [0, "not tried where nothing closes the machine's own"])
    if sandbox != NONE and (name, said) in (("memory_files", "OSError 38"), ("shm", "PermissionError 13")):
        assert reward == 0  # refused at once
    elif f"hold_{name}" in found:
        assert (reward, said) == (None, f"r.py: reward {says} (here)")


@pytest.mark.slow
def test_what_is_within_the_bounds_goes_on(found: dict[str, Any]) -> None:
    assert found["within"] == [1, "right"]


@pytest.mark.slow
def test_a_process_neither_hides_nor_outlives_its_first_thread(sandbox: str, found: dict[str, Any]) -> None:
    if sandbox == NONE and found["as"] == "user":
        assert found["hide"] == [None, "r.py: reward closed its processes to its supervisor (here)"]
    elif sandbox == NONE:
        assert found["hide"][0] == 1  # root sees it none the less
    elif "calls" in found:
        assert found["hide"] == [0, "PermissionError 1"]
    assert (found["headless"], found["headless_left"]) == ([1, "right"], 0)


@pytest.mark.slow
def test_the_environment_and_the_memory_of_other_processes_are_closed(found: dict[str, Any]) -> None:
    assert found["parent"][0] == found["memory_of_parent"][0] == 0
    assert found["everybody"] == [0, "seen"]


@pytest.mark.slow
def test_a_process_of_another_session_and_an_orphan_end(found: dict[str, Any]) -> None:
    assert found["orphan"] == found["session"] == found["orphan_amid_orphans"] == [1, "right"]
    assert found["orphans"] == 0
    made, *_ = found["bombs_said"]
    # the kernel's bound counts what the user ran when the verifier began (root's verifiers are all one user, another
    # test's too), and some of that may have ended since: then the supervisor ends it, and with it all that it started
    ended = [None, f"r.py: reward ran more than {PROCESSES} processes (here)"]
    assert made == ended or (made[0] == 0 and int(made[1]) > 0), found["bombs_said"]
    assert found["most"] <= PROCESSES
    assert found["left"] == 0


@pytest.mark.slow
def test_processes_that_multiply_end_and_the_next_call_works(found: dict[str, Any]) -> None:
    reward, why = found["forever"]
    assert reward is None
    # the supervisor counts them, the kernel refuses more of them, and the clock runs: whichever ends it first says so
    assert why in {f"r.py: reward {did} (here)" for did in ("took longer than 1 s", "ran more than 64 processes")}
    assert found["right"] == [1, "right"]
    assert (found["bombs"], found["folders"]) == (0, 0)


@pytest.mark.slow
def test_what_a_killed_supervisor_had_started_ends_with_its_folder(found: dict[str, Any]) -> None:
    for name in ("killed", "killed_with_its_worker"):
        started, left, folders = found[name]
        assert (started, left, folders) == (1, 0, 1), name  # the one folder is that of the process that runs now


@pytest.mark.slow
def test_a_sandbox_closes_files_keys_and_the_network(sandbox: str, found: dict[str, Any]) -> None:
    closed = sandbox != NONE
    for name in ("outside", "secret", "connect", "udp", "unix", "unix_datagram_of_a_pair"):
        assert found[name][0] == (0 if closed else 1), name
    if closed or found["as"] != "user":
        assert found["kill_parent"][0] == 0
    assert found["pair"] == [1, "right"]
    if sandbox == BUBBLEWRAP:
        assert found["var_tmp"] == [0, "seen"]


@pytest.mark.slow
def test_root_leaves_every_right(found: dict[str, Any]) -> None:
    assert found["rights"] == [0, "told"]
    if os.geteuid() == 0:  # else the file is the user's own
        assert found["owned"] == [0, "PermissionError 13"]


@pytest.mark.slow
def test_a_sandbox_refuses_calls_that_go_round_it(sandbox: str, found: dict[str, Any]) -> None:
    if "calls" not in found:
        pytest.skip("no seccomp here")
    if sandbox != NONE:
        assert found["handle"][0] == 0, found["handle"]
        assert found["calls"] == [0, "none"]
    else:
        assert found["calls"][0] > 0  # the probe tells the two apart


@pytest.mark.slow
def test_what_verifiers_use_works(found: dict[str, Any]) -> None:
    assert found["usual"] == [1, "right"]


@pytest.mark.slow
def test_what_a_killed_supervisor_leaves_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, young = tmp_path / f"{PREFIX}a", tmp_path / f"{PREFIX}b"
    for folder in (left, young):
        folder.mkdir()
    os.utime(left, (1, 1))
    sweep(os.geteuid())
    assert sorted(tmp_path.iterdir()) == [young]


@pytest.mark.slow
def test_what_others_put_beside_the_folders_neither_hangs_a_verifier_nor_is_removed(tmp_path: Path) -> None:
    elsewhere, foreign, pipe, link = (tmp_path / name for name in ("kept", f"{PREFIX}b", f"{PREFIX}a", f"{PREFIX}c"))
    os.mkfifo(pipe)
    for folder in (elsewhere, foreign):
        folder.mkdir()
        os.utime(folder, (1, 1))
    link.symlink_to(elsewhere)
    sweeping = "from rl.verifiers.isolation.leftovers import sweep; sweep(1 + __import__('os').geteuid())"
    command, env = [sys.executable, "-c", sweeping], {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=env, timeout=20, check=True)
    assert sorted(tmp_path.iterdir()) == sorted([elsewhere, foreign, pipe, link])
    sweeping = "from rl.verifiers.isolation.leftovers import sweep; sweep(__import__('os').geteuid())"
    subprocess.run([*command[:2], sweeping], env=env, timeout=20, check=True)
    assert sorted(tmp_path.iterdir()) == sorted([elsewhere, pipe, link])
