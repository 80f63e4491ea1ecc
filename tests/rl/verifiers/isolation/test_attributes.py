"""Rights and times of files, limits and priorities of processes: a verifier changes its own alone."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rl.verifiers.isolation.sandbox import BUBBLEWRAP, LANDLOCK
from tests.rl.verifiers.isolation.test_hostile import DROPS, answers_of, as_another

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no sandbox elsewhere")

REWARD = """
import os, resource, shutil, subprocess, sys, tempfile

def reward(problem, completion):
    return globals()[completion](problem)

def done(attempts):
    made = []
    for name, attempt in attempts.items():
        try:
            attempt()
            made.append(name)
        except OSError:
            pass
    return float(len(made)), " ".join(made) or "none"

def set_id(problem):
    open("plain", "w").close()
    opened = os.open("plain", os.O_RDWR)
    return done({f"{name} {mode:o}": (lambda attempt=attempt, mode=mode: attempt(mode)) for mode in (0o4755, 0o2755)
        for name, attempt in {
            "chmod": lambda mode: os.chmod("plain", mode),
            "fchmod": lambda mode: os.fchmod(opened, mode),
            "fchmodat": lambda mode: os.chmod("plain", mode, dir_fd=os.open(".", os.O_RDONLY)),
            "open": lambda mode: os.open(f"made{mode}", os.O_CREAT | os.O_WRONLY, mode),
            "nameless": lambda mode: os.open(".", os.O_TMPFILE | os.O_WRONLY, mode),
            "mknod": lambda mode: os.mknod(f"node{mode}", mode | 0o100000),
        }.items()})

def outside(problem):
    folder, mine, other = (problem.extra[name] for name in ("folder", "mine", "other"))
    os.symlink(mine, "link")
    made = done({
        "chmod": lambda: os.chmod(mine, 0o644),
        "chmod link": lambda: os.chmod("link", 0o644),
        "chmod back": lambda: os.chmod(os.path.relpath(mine), 0o644),
        "chmod folder": lambda: os.chmod(folder, 0o755),
        "fchmod": lambda: os.fchmod(os.open(mine, os.O_RDONLY), 0o644),
        "fchmodat": lambda: os.chmod("mine", 0o644, dir_fd=os.open(folder, os.O_RDONLY)),
        "around": lambda: os.chmod(os.path.dirname(os.getcwd()), 0o755),
        "utime": lambda: os.utime(mine, (1, 1)),
        "futimens": lambda: os.utime(os.open(mine, os.O_RDONLY), (1, 1)),
        "setxattr": lambda: os.setxattr(mine, "user.x", b"1"),
        "chown": lambda: os.chown(mine, os.getuid(), os.getgid()),
        "prlimit": lambda: resource.prlimit(other, resource.RLIMIT_NOFILE, (9, 9)),
        "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, other, 19),
        "affinity": lambda: os.sched_setaffinity(other, {max(os.sched_getaffinity(0))}),
        "scheduler": lambda: os.sched_setscheduler(other, os.SCHED_BATCH, os.sched_param(0)),
    })
    return made

def all_of_mine(problem):
    return done({"setpriority": lambda: os.setpriority(os.PRIO_USER, 0, 19)})

def inside(problem):
    os.chmod(os.getcwd(), 0o755)
    os.makedirs("below")
    open("below/file", "w").write("x")
    at, opened = os.open("below", os.O_RDONLY), os.open("below/file", os.O_RDONLY)
    def mode(): return os.stat("below/file").st_mode & 0o7777
    for number, change in enumerate([
        lambda to: os.chmod("below/file", to),
        lambda to: os.chmod(os.path.abspath("below/file"), to),
        lambda to: os.chmod("file", to, dir_fd=at),
        lambda to: os.fchmod(opened, to),
    ]):
        change(0o700 + number)
        assert mode() == 0o700 + number, number
    os.utime("below/file", (5, 6.5))
    assert os.stat("below/file").st_mtime == 6.5
    os.utime(opened, (5, 7))
    assert os.stat("below/file").st_mtime == 7
    os.symlink("file", "below/link")
    os.utime("below/link", (5, 8), follow_symlinks=False)
    assert (os.stat("below/file").st_mtime, os.lstat("below/link").st_mtime) == (7, 8)
    try:
        os.chmod("below/none", 0o700)
    except FileNotFoundError:
        pass
    else:
        return 0.0
    shutil.copy(shutil.which("true"), "copied")
    shutil.copy2("copied", "again")
    shutil.copytree("below", "tree")
    tempfile.TemporaryDirectory().cleanup()
    os.nice(1)
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    resource.prlimit(0, resource.RLIMIT_NOFILE)
    return float(subprocess.run([os.path.abspath("again")]).returncode == 0)

def starts(problem):
    return float(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout)
"""


@pytest.fixture(scope="module", params=[BUBBLEWRAP, LANDLOCK])
def found(request: pytest.FixtureRequest) -> Any:
    at = Path("/srv" if os.access("/srv", os.W_OK) else "/var/tmp") / f"rlvf-attributes-{os.getpid()}"
    (at / "tmp").mkdir(parents=True)
    for folder in (at, at / "tmp"):
        folder.chmod(0o777)
    asked = {"text": REWARD, "completions": ["set_id", "outside", "all_of_mine", "inside", "starts"]}
    command = [sys.executable, str(Path(__file__).with_name("judged.py")), request.param, json.dumps(asked)]
    if os.geteuid() == 0:
        if not (shutil.which("unshare") and shutil.which("setpriv")):
            pytest.skip("root loses its rights by unshare and setpriv (util-linux)")
        command = as_another(DROPS["user"], command, at)
    env = {**os.environ, "TMPDIR": str(at / "tmp"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    answers = answers_of(command, env, at)
    return {**answers, "sandbox": request.param}


def test_no_program_is_made_that_is_the_users_for_whoever_runs_it(found: dict[str, Any]) -> None:
    assert found["set_id"] == [0, "none"]


def test_no_other_user_gets_into_its_folder(found: dict[str, Any]) -> None:
    assert found["around"] == [[True, 0]]


def test_files_and_processes_outside_stay_as_they_are(found: dict[str, Any]) -> None:
    assert found["outside"] == [0, "none"]
    assert found["unchanged"]
    if found["sandbox"] == LANDLOCK:  # elsewhere its user's processes are its own alone
        assert found["all_of_mine"] == [0, "none"]


def test_what_is_its_own_it_changes(found: dict[str, Any]) -> None:
    assert found["inside"] == [1, "right"]


def test_programs_start_after_the_user_has_started_others(found: dict[str, Any]) -> None:
    assert found["starts"] == [1, "right"]
