"""A process's own folder: gone when the process is, however that ends."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra import disk
from tests.processes import started

PROCESS = """
import sys
from infra.disk import own_folder
(own_folder() / "weights").write_bytes(b"w")
print(own_folder(), flush=True)
sys.stdin.read()
"""


@contextmanager
def process(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has filled its own folder and waits for the end of its input."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": None}
    with started(sys.executable, "-c", PROCESS, env=environment, **pipes) as filler:
        assert filler.stdout is not None
        yield filler, Path(filler.stdout.readline().strip())


def test_a_name_is_claimed_once_even_where_there_are_no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    assert disk.claim("a name")
    assert not disk.claim("a name")
    monkeypatch.setattr(fcntl, "lockf", lockf)
    assert disk.claim("another")
    assert not disk.claim("another")


def test_it_goes_with_its_process(tmp_path: Path) -> None:
    with process(tmp_path) as (filler, folder):
        assert folder.is_relative_to(tmp_path)
        assert (folder / "weights").is_file()
        filler.communicate()
        assert filler.returncode == 0
        assert not folder.exists()


FORKED = """
import multiprocessing
from infra.disk import own_folder

def fill():
    (own_folder() / "weights").write_bytes(b"w")
    print(own_folder(), flush=True)

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    worker = context.Process(target=fill)
    worker.start()
    worker.join()
"""


def test_it_goes_with_a_fork_too(tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(FORKED)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    said = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    folder = Path(said.stdout.strip())
    assert folder.is_relative_to(tmp_path)
    assert not folder.exists()


def test_the_next_process_removes_what_a_killed_one_left_and_spares_the_living(tmp_path: Path) -> None:
    with process(tmp_path) as (killed, left), process(tmp_path) as (_, living):
        assert left.parent == living.parent
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        with process(tmp_path) as (_, newest):
            assert not left.exists()
            assert living.exists()
            assert newest.exists()


def test_others_may_not_look_into_it(tmp_path: Path) -> None:
    with process(tmp_path) as (_, folder):
        assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_place_that_somebody_else_has_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"rlvf-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match=r"is another user's: remove it, or set TMPDIR"):
        disk.own_folder.__wrapped__()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_copy_has_the_content_of_a_file_and_not_its_rights(tmp_path: Path) -> None:
    program = tmp_path / "there" / "bin" / "program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o6755)
    disk.copy_files(tmp_path / "there", tmp_path / "here", ["bin/program"])
    copy = tmp_path / "here" / "bin" / "program"
    assert copy.read_text() == "#!/bin/sh\n"
    assert copy.stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize("there", ["file", "folder", "empty", "link"])
def test_a_folder_is_put_beside_what_is_there(tmp_path: Path, there: str) -> None:
    path, kept = tmp_path / "out", tmp_path / "out"
    if there == "file":
        path.write_text("mine")
    elif there == "link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
    if there == "folder":
        kept = path / "thesis.txt"
        kept.write_text("mine")
    before = os.lstat(kept)
    for expected in ("out-2", "out-3"):
        with disk.temporary_beside(path) as made:
            (made / "model").write_text("new")
            assert disk.put_beside(made, path) == tmp_path / expected
        assert (tmp_path / expected / "model").read_text() == "new"
    assert os.lstat(kept).st_ino == before.st_ino
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "out-2", "out-3"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full: Linux")
def test_a_full_disk_is_that_of_the_copy(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    with pytest.raises(OSError, match="No space left") as raised:
        disk.take(tmp_path / "model", Path("/dev/full"), move=False)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
