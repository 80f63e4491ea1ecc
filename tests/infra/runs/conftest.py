"""A home whose MLflow database needs no migration."""

import shutil

import pytest
from mlflow import MlflowClient


@pytest.fixture
def home(tmp_path, empty_database):
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def client(home):
    return MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
