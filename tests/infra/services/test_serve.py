"""MLflow's server as it is started here, a real process: where it writes what it is sent."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.services.gate import basic
from infra.services.http import get_json, opener, proves
from infra.services.served import served
from tests.conftest import free_port
from tests.processes import started, until

pytestmark = pytest.mark.slow

AUTH = "rlvf:secret"
CREATE = "api/2.0/mlflow/experiments/create"


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server."""
    home, url = tmp_path_factory.mktemp("served"), f"http://127.0.0.1:{free_port()}"
    command, secret = served("mlflow", url, home, AUTH)
    environment = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home}/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": str(home / "mlartifacts"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (
        (home / "log").open("w") as log,
        started(
            *command, cwd=home, env={**os.environ, **environment, **secret}, stdout=log, stderr=subprocess.STDOUT
        ) as server,
    ):
        until(lambda: server.poll() is not None or proves(url, AUTH), 120, about=(home / "log").read_text)
        assert server.poll() is None, (home / "log").read_text()
        yield url


def post(url: str, path: str, **body: str) -> Any:
    return get_json(f"{url}/{path}", AUTH, body, timeout=60)


def refused(url: str, path: str, **body: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as error:
        post(url, path, **body)
    assert error.value.code == 400
    return error.value.read().decode()


def test_artifacts_lie_nowhere_but_in_the_servers_own_store(mlflow: str, tmp_path: Path) -> None:
    elsewhere = (tmp_path.as_uri(), str(tmp_path), "/", "../../..", "s3://x/y", "C:\\x")
    outside = ("mlflow-artifacts:/../x", "mlflow-artifacts:/%2e%2e/x")
    for number, folder in enumerate((*elsewhere, *outside)):
        said = refused(mlflow, CREATE, name=f"away-{number}", artifact_location=folder)
        assert "leave it out, or give mlflow-artifacts:/FOLDER" in said
    for server in ("mlflow-artifacts://elsewhere:80/x", "http://elsewhere:80/x"):  # by MLflow itself
        assert "artifact_location" in refused(mlflow, CREATE, name="away", artifact_location=server)
    for prefix in ("ajax-api/2.0", "api/3.0", "ajax-api/3.0"):
        path = CREATE.replace("api/2.0", prefix)
        with pytest.raises(urllib.error.HTTPError):  # 404 where MLflow has no such page
            post(mlflow, path, name=f"away-{prefix}", artifact_location=tmp_path.as_uri())
    for number, chosen in enumerate(({}, {"artifact_location": ""}, {"artifact_location": "mlflow-artifacts:/mine/x"})):
        assert post(mlflow, CREATE, name=f"within-{number}", **chosen)["experiment_id"]


def test_a_models_version_lies_there_too(mlflow: str) -> None:
    post(mlflow, "api/2.0/mlflow/registered-models/create", name="model")
    version = "api/2.0/mlflow/model-versions/create"
    for source in ("s3://x/y", "file:///etc", "/etc", "mlflow-artifacts:/../../etc"):
        assert "Invalid model version source" in refused(mlflow, version, name="model", source=source)
    run = post(mlflow, "api/2.0/mlflow/runs/create", experiment_id="0")["run"]["info"]
    source = f"{run['artifact_uri']}/model"
    made = post(mlflow, version, name="model", source=source, run_id=run["run_id"])
    assert made["model_version"]["source"] == source
    assert source.startswith("mlflow-artifacts:/0/")


def trace(url: str, number: int, **tags: str) -> str:
    """The id of a new trace with these tags."""
    where = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    info = {
        "trace_id": f"tr-{number}",
        "trace_location": where,
        "request_time": "2026-01-01T00:00:00Z",
        "state": "OK",
        "tags": tags,
    }
    made = get_json(f"{url}/api/3.0/mlflow/traces", AUTH, {"trace": {"trace_info": info}}, timeout=60)
    return str(made["trace"]["trace_info"]["trace_id"])


def tag(url: str, made: str, key: str, value: str) -> None:
    asked = urllib.request.Request(
        f"{url}/api/3.0/mlflow/traces/{made}/tags",
        json.dumps({"key": key, "value": value}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Basic {basic(AUTH)}"},
        method="PATCH",
    )
    with opener(url).open(asked, timeout=60) as answer:
        answer.read()


def traced(url: str, made: str) -> tuple[int, str]:
    """The status and body with which the content of a trace is served."""
    try:
        content = get_json(f"{url}/ajax-api/2.0/mlflow/get-trace-artifact?request_id={made}", AUTH, timeout=60)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    return 200, json.dumps(content)


def test_no_tag_of_a_trace_has_the_server_read_elsewhere(mlflow: str, tmp_path: Path) -> None:
    (tmp_path / "traces.json").write_text('{"spans": [], "planted": true}')
    for number, folder in enumerate((tmp_path.as_uri(), str(tmp_path))):
        made = trace(mlflow, 10 + number)
        assert "tags name" not in traced(mlflow, made)[1]  # its own place, where nothing lies yet
        tag(mlflow, made, "mlflow.artifactLocation", folder)
        code, said = traced(mlflow, made)
        assert "planted" not in said
        assert (code, "reads from its own store only" in said) == (400, True)
        archived = {"mlflow.trace.spansLocation": "ARCHIVE_REPO", "mlflow.trace.archiveLocation": folder}
        code, said = traced(mlflow, trace(mlflow, 20 + number, **archived))
        assert (code, "reads from its own store only" in said) == (400, True)
