"""No test reads or writes the state of whoever runs the suite, and none asks a network for a model."""

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

# At once, not in a hook: libraries read these when they are imported, and the conftest files below import them.
STATE = Path(tempfile.mkdtemp(prefix="rlvf-tests-"))
for name in [name for name in os.environ if name.startswith(("PREFECT_", "RLVF_", "MLFLOW_"))]:
    del os.environ[name]
os.environ["RLVF_HOME"] = str(STATE / "home")
os.environ["PREFECT_HOME"] = str(STATE / "prefect")
os.environ["HF_HUB_OFFLINE"] = "1"
# not in the work tree; it outlives the session, so that what failed once is tried first the next time
set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"rlvf-hypothesis-{os.getuid()}"))


def pytest_unconfigure() -> None:
    resource_tracker._resource_tracker._stop()  # it would outlive this process for a moment
    shutil.rmtree(STATE, ignore_errors=True)


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$RLVF_HOME of this test; it does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("RLVF_HOME", str(folder))
    return folder


@pytest.fixture
def mlflow_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow's own REST handlers on a port, over `home/mlflow.db`; `stop` makes the port refuse, `go` answers on it
    again."""
    import mlflow.server
    from mlflow.server import handlers
    from werkzeug.serving import make_server

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):  # MLflow sets them, and this takes them back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv(mlflow.server.BACKEND_STORE_URI_ENV_VAR, f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}")
    monkeypatch.setenv(mlflow.server.ARTIFACT_ROOT_ENV_VAR, "mlflow-artifacts:/")
    monkeypatch.setenv(mlflow.server.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path / "served"))
    monkeypatch.setenv(mlflow.server.SERVE_ARTIFACTS_ENV_VAR, "true")
    monkeypatch.setattr(handlers, "_tracking_store", None)
    monkeypatch.setattr(handlers, "_artifact_repo", None)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    class Server:
        port = 0

        def go(self) -> None:
            self.http = make_server("127.0.0.1", self.port, mlflow.server.app, threaded=True)
            self.port = self.http.server_port
            self.uri = f"http://127.0.0.1:{self.port}"
            self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
            self.thread.start()

        def stop(self) -> None:
            self.http.shutdown()
            self.http.server_close()
            self.thread.join()

    server = Server()
    server.go()
    yield server
    server.stop()
