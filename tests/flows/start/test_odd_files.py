"""What is no file in the folder of a run from elsewhere."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.start.elsewhere import saved

pytestmark = pytest.mark.slow

PROGRAM = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32)); from flows.cli import main; main()"


def rlvf(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, which ends within a minute or fails the test, as does one that takes all memory."""
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


def plant(kind: str, path: Path) -> None:
    match kind:
        case "a FIFO":
            os.mkfifo(path)
        case "a socket":
            with socket.socket(socket.AF_UNIX) as bound:
                os.chdir(path.parent)  # its address has 107 bytes at most
                bound.bind(path.name)
        case "a device":
            path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_a_configuration_that_is_no_file_is_refused_before_it_is_opened(
    tmp_path: Path, home_folder: Path, kind: str
) -> None:
    uri = saved(str(tmp_path / "run")).uri
    config = Path(uri, "config.yaml")
    config.unlink()
    plant(kind, config)
    for words in (("eval", "--policy", uri), ("train", "--resume", uri)):
        done = rlvf(*words)
        assert (done.returncode, done.stderr) == (
            2,
            f"rlvf: {config}: is no file but {kind}; put a file in its place\n",
        )
    assert not home_folder.exists()


@pytest.mark.usefixtures("home_folder")
@pytest.mark.parametrize("name", ["metrics.jsonl", "timeline.jsonl", "problems.json", "weights/v3/manifest.json"])
@pytest.mark.parametrize("kind", ["a FIFO", "a socket"])
def test_nothing_of_a_run_is_opened_where_one_of_its_files_is_none(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.cli import main

    monkeypatch.chdir(tmp_path)
    uri = saved(str(tmp_path / "run")).uri
    planted = Path(uri, name)
    planted.parent.mkdir(parents=True, exist_ok=True)
    plant(kind, planted)
    for words in (("report", uri), ("eval", "--policy", uri), ("train", "--resume", uri)):
        with pytest.raises(SystemExit) as ended:
            main([*words])
        assert ended.value.code == 2
        assert f"{planted} is no file but {kind}, which no run has; remove it" in capsys.readouterr().err


def test_a_configuration_of_any_size_is_not_read(tmp_path: Path, home_folder: Path) -> None:
    uri = saved(str(tmp_path / "run")).uri
    with Path(uri, "config.yaml").open("ab") as config:
        config.truncate(2**40)
    done = rlvf("eval", "--policy", uri)
    assert done.returncode == 2
    assert "config.yaml: has more than 1048576 bytes" in done.stderr
    assert not home_folder.exists()
