"""Where rlvf keeps its things."""

from pathlib import Path

import pytest

from infra.home import rlvf_home, rlvf_storage, runs_uri


def test_home_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLVF_HOME", raising=False)
    assert rlvf_home() == tmp_path / ".rlvf"
    monkeypatch.setenv("RLVF_HOME", "elsewhere")
    assert rlvf_home() == tmp_path / "elsewhere"


def test_runs_lie_on_the_storage_and_that_is_the_home_by_default(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rlvf_storage() == str(home_folder)
    monkeypatch.setenv("RLVF_STORAGE", "s3://bucket/rlvf/")
    assert runs_uri() == "s3://bucket/rlvf/runs"
