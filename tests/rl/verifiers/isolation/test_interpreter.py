"""Python below a folder that only root enters, and a verifier that is another user without any right."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl.verifiers.isolation import interpreter, sandbox

ROOT = Path(__file__).parents[4]
ASK = """
import sys
from rl.records import Problem
from rl.verifiers.isolation import sandbox
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import Cell
text = '''
import mine
def reward(problem, completion):
    try:
        return 1.0, open(completion).read()
    except OSError as error:
        return 0.0, f"{type(error).__name__} {mine.VALUE}"
'''
pool = Pool(text, "r.py", "reward", seconds=20, memory_mb=300, size=1, cell=Cell(sys.argv[1]))
(verdict,) = pool.judge([Problem("", "", "here")], [sys.argv[2]])
pool.close()
print(verdict.error or verdict.reason)
"""
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs Linux, as root: others stay who they are"
)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that only root enters, with a package that all may read, named by a link."""
    folder = Path("/srv" if os.access("/srv", os.W_OK) else "/var/tmp") / f"rlvf-closed-{os.getpid()}"
    (folder / "lib").mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "lib" / "mine.py").write_text("VALUE = 42")
    (folder / "named").symlink_to("lib")
    (folder / "secret").write_text("told nobody")
    (folder / "secret").chmod(0o644)
    folder.chmod(0o700)
    yield folder
    shutil.rmtree(folder)


def asked(closed: Path, wanted: str, around: tuple[str, ...] = (), python: str = sys.executable) -> str:
    folders = [f"{closed}/named", str(ROOT), sysconfig.get_path("purelib")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "TMPDIR": str(closed / "tmp")}
    command = [*around, python, "-c", ASK, wanted, str(closed / "secret")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [sandbox.BUBBLEWRAP, sandbox.LANDLOCK, sandbox.NONE])
def test_only_python_is_there_of_a_folder_that_only_root_enters(closed: Path, wanted: str) -> None:
    if lacks := sandbox.missing(wanted):
        pytest.skip(lacks)
    assert asked(closed, wanted) == "FileNotFoundError 42"
    assert (closed / "secret").read_text() == "told nobody"
    assert list((closed / "tmp").iterdir()) == []


def test_python_below_the_folder_that_bubblewrap_replaces_starts(closed: Path) -> None:
    if lacks := sandbox.missing(sandbox.BUBBLEWRAP):
        pytest.skip(lacks)
    with tempfile.TemporaryDirectory(dir="/tmp") as below:
        venv.create(below, symlinks=True)
        assert asked(closed, sandbox.BUBBLEWRAP, python=f"{below}/bin/python") == "FileNotFoundError 42"


def test_root_that_may_not_mount_is_told_what_to_do(closed: Path) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("a right is taken from root by setpriv (util-linux)")
    said = asked(closed, sandbox.NONE, ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"))
    assert said.startswith(
        "r.py cannot be judged apart: Python lies where only root enters, and root may mount nothing here"
    )
    assert f"chmod o+x {closed}" in said


def test_python_that_is_closed_itself_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir(mode=0o700)
    paths = interpreter.sysconfig.get_paths()
    monkeypatch.setattr(interpreter.sysconfig, "get_paths", lambda: {**paths, "purelib": str(tmp_path / "site")})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    with pytest.raises(interpreter.UnreadableError, match=rf"chmod -R o\+rX {tmp_path}"):
        interpreter.view()
