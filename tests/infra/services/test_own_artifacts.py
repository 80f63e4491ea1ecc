"""Where the home's MLflow server keeps files, read without it."""

import shutil
from pathlib import Path

import pytest

from infra.services import programs
from infra.services.own_artifacts import artifact_place, remember_store
from infra.services.programs import StackConfig
from infra.storage.mark import leave_mark

URI = "mlflow-artifacts:/1/run/artifacts"


def plan(home: Path, storage: Path) -> None:
    """What `rlvf up` does before it starts an MLflow server."""
    config = StackConfig(home, str(storage), mark=leave_mark(str(storage), "up"))
    programs.mlflow(config, home / "services" / "mlflow", "http://127.0.0.1:5000", None)


def test_up_notes_it(home_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    plan(home_folder, tmp_path / "storage")
    assert artifact_place(home_folder, URI) == f"{tmp_path}/storage/mlartifacts/1/run/artifacts"


def test_a_server_of_another_database_is_not_that_of_the_home(
    home_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "sqlite:///elsewhere.db")
    plan(home_folder, tmp_path / "storage")
    with pytest.raises(OSError, match="not known"):
        artifact_place(home_folder, URI)


def test_a_copy_of_a_home_does_not_write_into_the_first(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    remember_store(home, str(home), leave_mark(str(home), "up"))
    shutil.copytree(home, copy)
    assert artifact_place(copy, URI) == f"{copy}/mlartifacts/1/run/artifacts"


@pytest.mark.parametrize("uri", ["mlflow-artifacts:/../x", "mlflow-artifacts:/%2e%2e/x", "mlflow-artifacts://host/x"])
def test_no_run_names_a_place_outside_of_it(tmp_path: Path, uri: str) -> None:
    remember_store(tmp_path, str(tmp_path), leave_mark(str(tmp_path), "up"))
    with pytest.raises(OSError, match="names no place"):
        artifact_place(tmp_path, uri)
