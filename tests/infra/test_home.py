"""Where rlvf keeps its things."""

import os
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from infra.home import ForeignHomeError, home_line, private_home, rlvf_home, rlvf_storage, runs_uri
from infra.runs.mlflow_run import home_database
from infra.security.identity import own_certificates


def test_a_home_that_cannot_be_one_is_a_line_and_another_user_s_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").write_text("mine")
    (tmp_path / "other").write_text("mine")
    with pytest.raises(ForeignHomeError, match="its 'logs' is a file; name another by RLVF_HOME"):
        private_home(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").touch()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    private_home(elsewhere)
    assert [path.name for path in elsewhere.iterdir()] == ["theirs"]


def test_home_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLVF_HOME", raising=False)
    assert rlvf_home() == tmp_path / ".rlvf"
    monkeypatch.setenv("RLVF_HOME", "elsewhere")
    assert rlvf_home() == tmp_path / "elsewhere"


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory two below `tmp_path`, in which this process stands without a home."""
    folder = tmp_path / "project" / "rewards"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RLVF_HOME", raising=False)
    return folder


def test_a_home_that_is_above_is_taken_and_said(standing: Path, tmp_path: Path) -> None:
    assert (rlvf_home(), home_line()) == (standing / ".rlvf", f"home {standing / '.rlvf'}")
    above = tmp_path / "project" / ".rlvf"
    (tmp_path / ".rlvf").mkdir()
    above.mkdir()
    assert (rlvf_home(), home_line()) == (above, f"home {above} (the nearest above this directory)")
    assert rlvf_storage() == str(above)
    (standing / ".rlvf").mkdir()
    assert rlvf_home() == standing / ".rlvf"


@pytest.mark.usefixtures("standing")
def test_the_variable_wins_over_what_is_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / ".rlvf").mkdir()
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "mine"))
    assert (rlvf_home(), home_line()) == (tmp_path / "mine", f"home {tmp_path / 'mine'} ($RLVF_HOME)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_above_that_another_user_made_is_not_taken(standing: Path, tmp_path: Path) -> None:
    planted = tmp_path / "project" / ".rlvf"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    assert rlvf_home() == standing / ".rlvf"
    (tmp_path / "project" / "file").touch()
    (tmp_path / ".rlvf").write_text("a file is no home")
    assert rlvf_home() == standing / ".rlvf"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_here_that_another_user_made_is_refused(standing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = standing / ".rlvf"
    planted.mkdir()
    os.chown(planted, 12345, 12345)
    with pytest.raises(ForeignHomeError) as refused:
        rlvf_home()
    assert str(refused.value).startswith(f"{planted} belongs to another user")
    assert str(refused.value).endswith("set RLVF_HOME to a folder of yours")
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("RLVF_HOME", str(planted))  # by name, somebody wants it
    assert rlvf_home() == planted


def test_runs_lie_on_the_storage_and_that_is_the_home_by_default(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rlvf_storage() == str(home_folder)
    monkeypatch.setenv("RLVF_STORAGE", "s3://bucket/rlvf/")
    assert runs_uri() == "s3://bucket/rlvf/runs"
    monkeypatch.setenv("RLVF_STORAGE", "there/")
    assert rlvf_storage() == str(Path.cwd() / "there")  # workers may stand elsewhere


@pytest.mark.parametrize("below", ["", "deep/home"])
def test_a_home_that_can_be_no_folder_is_named(below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "file" / below))
    with pytest.raises(ValueError, match=f"RLVF_HOME = .*: {tmp_path}/file is no folder"):
        rlvf_home()


@pytest.mark.parametrize("given", [True, False])
def test_a_home_whose_path_cuts_the_url_of_a_database_is_refused(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "odd?b&c=1"
    odd.mkdir()
    monkeypatch.chdir(odd)
    monkeypatch.delenv("RLVF_HOME", raising=False)
    if given:
        monkeypatch.setenv("RLVF_HOME", str(odd / ".rlvf"))
    with pytest.raises(ValueError, match=r"home .*/odd\?b&c=1/\.rlvf: databases cannot lie in .* set RLVF_HOME to"):
        rlvf_home()


@pytest.mark.parametrize("name", ["a#b", "a%b", "a%41b", "a b", "a@b"])
def test_a_database_lies_in_a_home_of_any_other_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / name
    home.mkdir()
    monkeypatch.setenv("RLVF_HOME", str(home))
    with create_engine(home_database(rlvf_home())).connect() as database:
        database.execute(text("create table one (two int)"))
    assert [path.name for path in home.iterdir()] == ["mlflow.db"]


def test_others_do_not_look_into_the_home(tmp_path: Path) -> None:
    home, shared = tmp_path / "home", tmp_path / "shared"
    home.mkdir(mode=0o755)  # made beforehand, and empty
    private_home(home)
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o755)  # of an earlier version
    (home / "runs").mkdir()
    private_home(home)
    assert home.stat().st_mode & 0o777 == 0o700
    shared.mkdir(mode=0o755)
    (shared / "other").touch()
    (shared / "theirs").mkdir(mode=0o755)
    (shared / "logs").mkdir(mode=0o755)  # of an earlier version
    for _ in range(2):  # also when there is something of ours
        private_home(shared)  # a folder of somebody's
        rights = {path.name: path.stat().st_mode & 0o777 for path in shared.iterdir()}
        assert (shared.stat().st_mode & 0o777, rights.pop("theirs"), rights.pop("other") & 0o044) == (
            0o755,
            0o755,
            0o044,
        )
        assert {"prefect", "runs", "logs", "services", "mlflow.db"} <= set(rights)
        assert {name for name, mode in rights.items() if mode & 0o077} == set()


def test_a_home_that_cannot_be_made_or_written_is_the_user_s_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Path("/proc/nowhere")
    for start in (private_home, own_certificates):
        with pytest.raises(
            ValueError, match=r"^/proc/nowhere cannot be written \(.*\); set RLVF_HOME to a folder that"
        ):
            start(nowhere)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o555)
    monkeypatch.setattr("os.getuid", lambda: theirs.stat().st_uid + 1)
    monkeypatch.setattr("os.access", lambda *_: False)  # of root, too
    with pytest.raises(ValueError, match=r"/theirs cannot be written \(Permission denied\); set RLVF_HOME to a folder"):
        private_home(theirs)
