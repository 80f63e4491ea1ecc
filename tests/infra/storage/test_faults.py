"""What goes wrong with a storage is one line that says what to do."""

import errno
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from infra.disk import own_folder
from infra.errors import mark_worker
from infra.storage import place, store
from infra.storage.faults import explained
from infra.storage.manifest import NotThere, Torn


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Torn("s3://b/run/state/3 is torn: 'x' is missing"), r"is torn: 'x' is missing; a run goes on from its newest"),
        (
            NotThere("there is nothing whole at s3://b/run"),
            "nothing whole at s3://b/run; a run goes on from its newest",
        ),
        (SafetensorError("HeaderTooLarge"), r"weights cannot be read \(HeaderTooLarge\): the file is damaged"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/disk/file"),
            "no space left on the disk for /disk/file; free",
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "/share/file"),
            "the quota of the storage is used up for /share/file; free",
        ),
        (
            caused(RuntimeError("a task crashed"), OSError(errno.ENOSPC, "No space")),
            "no space left on the disk; free some",
        ),
    ],
)
def test_each_has_its_remedy(error: BaseException, says: str) -> None:
    line = explained(error)
    assert line is not None
    assert "\n" not in line
    assert re.search(says, line), line


def test_a_fault_of_a_worker_s_machine_names_it_and_no_home_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVF_HOME", str(tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device", "/cache/x")
    mark_worker(full, "jetson")
    line = explained(pickle.loads(pickle.dumps(full)))
    assert line is not None
    assert line.startswith(
        "jetson: no space left on the disk for /cache/x; free some, or name another, a run's by --run"
    )
    assert "what is that worker's own by its RLVF_HOME" in line
    assert str(tmp_path) not in line
    torn = Torn("v3 is torn")
    mark_worker(torn, "jetson")
    assert str(explained(caused(RuntimeError("a task crashed"), torn))).startswith("jetson: v3 is torn; a run goes on")


def test_what_is_no_fault_of_a_storage_is_not_explained() -> None:
    assert explained(RuntimeError("a bug")) is None
    assert explained(KeyError("a bug")) is None
    assert explained(FileNotFoundError(errno.ENOENT, "No such file", "my.yaml")) is None


def test_what_an_error_names_travels_with_it() -> None:
    error = Torn("torn")
    error.damaged = ("a", "b")
    assert pickle.loads(pickle.dumps(error)).damaged == ("a", "b")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"needs the right to mount: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_called_one_and_what_is_there_stays(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    for step, size in ((1, 10**6), (2, 2 * 10**6)):
        (made / "model.safetensors").write_bytes(os.urandom(size))
        if step == 1:
            store.write_folder(f"{small_disk}/run/state/1", made)
    with pytest.raises(OSError, match="No space left") as full:
        store.write_folder(f"{small_disk}/run/state/2", made)
    assert (explained(full.value) or "").startswith(f"no space left on the disk for {small_disk}/run/state/")
    with pytest.raises(OSError, match="No space left") as small:
        place.write_bytes(f"{small_disk}/run/big.json", bytes(3 * 10**6))
    assert (explained(small.value) or "").startswith(f"no space left on the disk for {small_disk}/run/big.json; free")
    tensors = {"weight": np.zeros(10**6, np.float32)}
    with pytest.raises(OSError, match="No space left") as of_library, store.scratch(f"{small_disk}/run") as folder:
        save_file(tensors, folder / "model.safetensors")
    assert f" for {small_disk}/run/scratch; free" in (explained(of_library.value) or "")
    assert store.versions(f"{small_disk}/run/state") == [1]
    with store.read_folder(f"{small_disk}/run/state/1") as whole:
        assert whole.manifest.size == 10**6
    monkeypatch.setenv("RLVF_HOME", str(small_disk))
    left = shutil.disk_usage(small_disk).free
    (small_disk / "rest").write_bytes(bytes(left - left % 4096 - 8192))
    line = explained(
        RuntimeError("(sqlite3.OperationalError) disk I/O error")
    )  # who else meets it says it in his words
    assert (line or "").startswith(f"no space left on the disk for {small_disk}; free some, or set RLVF_HOME (now ")


def test_the_advice_of_a_full_disk_is_of_the_folder_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVF_HOME", f"{tmp_path}/home")
    monkeypatch.setenv("RLVF_STORAGE", f"{tmp_path}/share")

    def advised(path: str) -> str:
        line = explained(OSError(errno.ENOSPC, "No space left on device", path))
        assert line is not None
        return line.partition("; free some, or ")[2].partition(";")[0]

    assert advised(f"{tmp_path}/home/x") == f"set RLVF_HOME (now {tmp_path}/home) or RLVF_STORAGE to another one"
    assert advised(f"{tmp_path}/share/runs/x") == f"set RLVF_STORAGE (now {tmp_path}/share) to another one"
    assert advised("/elsewhere/run/state/1") == "name another, a run's by --run or RLVF_STORAGE"
    assert advised(str(own_folder() / "weights")) == "set TMPDIR to another one"


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("RLVF_HOME", str(home))
    for where in (home, home / "runs" / "first", tmp_path):
        line = explained(OSError(errno.EROFS, "Read-only file system", str(where)))
        assert line == (
            f"{where} cannot be written (Read-only file system); set RLVF_HOME to a folder that can, now {home}"
        )
    assert explained(PermissionError(errno.EACCES, "Permission denied", "/elsewhere/file")) is None
    assert explained(FileNotFoundError(errno.ENOENT, "No such file", str(home / "runs" / "x"))) is None
    monkeypatch.setenv("RLVF_HOME", "/proc/home")  # which has no space, and that is not why
    line = explained(FileNotFoundError(errno.ENOENT, "No such file", "/proc/home"))
    assert (line or "").startswith(
        "/proc/home cannot be written (No such file or directory); set RLVF_HOME to a folder"
    )
