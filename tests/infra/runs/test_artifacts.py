"""Files of a run in an experiment that the home's MLflow server made, written while no server does it."""

import mlflow.server
import pytest
from mlflow import MlflowClient

from infra.runs.tracking import TrackingConfig
from infra.services.own_artifacts import artifact_store, remember_store
from infra.storage.mark import leave_mark
from tests.infra.runs.tracked import points, start, table


@pytest.fixture
def server(home, request, tmp_path, monkeypatch):
    """The home's server, which keeps artifacts on a storage and made the experiment."""
    server = request.getfixturevalue("mlflow_server")
    storage = str(tmp_path / "storage")
    remember_store(home, storage, leave_mark(storage, "up"))
    monkeypatch.setenv(mlflow.server.ARTIFACTS_DESTINATION_ENV_VAR, artifact_store(storage))
    MlflowClient(server.uri).create_experiment("sums")
    return server


@pytest.mark.slow
def test_a_run_without_the_server_has_its_files_where_the_server_finds_them(home, client, server, tmp_path):
    (tmp_path / "report.html").write_text("<p>")
    local = tmp_path / "metrics.jsonl"
    with start(home, local=local) as plain:
        for step in (1, 2):
            plain.log(step, {"a": step})
            plain.log_samples(step, [{"completion": f"of {step}"}])
        plain.log_file(tmp_path / "report.html")
        plain.log_picture(tmp_path / "report.html")
    run = client.get_run(plain.run_id)
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert run.info.status == "FINISHED"
    served = MlflowClient(server.uri)
    assert {each.path for each in served.list_artifacts(plain.run_id)} == {"pictures", "report.html", "samples"}
    assert [each.path for each in served.list_artifacts(plain.run_id, "pictures")] == ["pictures/report.html"]
    assert table(served, plain.run_id, "samples/000002.json", tmp_path)["data"] == [["of 2"]]
    with start(home, run_id=plain.run_id, local=local) as again:  # and what it has to read there again
        assert again.go_back(1) is True
    assert table(served, again.run_id, "samples/000001.json", tmp_path)["data"] == [["of 1"]]


@pytest.mark.slow
def test_a_run_that_the_server_wrote_goes_on_without_it(home, server):
    with start(home, TrackingConfig(uri=server.uri, system_metrics=False)) as first:
        first.log_samples(1, [{"completion": "of 1"}])
    with start(home, run_id=first.run_id) as second:
        second.log_samples(2, [{"completion": "of 2"}])
    served = MlflowClient(server.uri)
    shown = [each.path for each in served.list_artifacts(first.run_id, "samples")]
    assert shown == ["samples/000001.json", "samples/000002.json"]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (None, "is not known here before its next `rlvf up`"),
        ("mark", "mount it"),
        ("file", "is damaged"),
        ("database", "name that in tracking.uri"),
    ],
)
def test_where_the_place_is_not_known_or_not_here_only_the_files_are_lacking(
    home, client, tmp_path, caplog, kept, said
):
    client.create_experiment("sums", artifact_location="mlflow-artifacts:/1")
    if kept == "mark":
        (tmp_path / "empty").mkdir()  # a mount point, say
        remember_store(home, str(tmp_path / "empty"), "0123456789abcdef-0")
    elif kept == "file":
        (home / "services").mkdir()
        (home / "services" / "artifacts.json").write_text("{")
    where = tmp_path / "other" if kept == "database" else home
    with start(where, TrackingConfig(uri=f"sqlite:///{home / 'mlflow.db'}", system_metrics=False)) as tracker:
        tracker.log_samples(1, [{"completion": "of 1"}])
        tracker.log(1, {"a": 1})
    assert client.get_run(tracker.run_id).info.status == "FINISHED"
    assert points(client, tracker.run_id, "a") == [(1, 1)]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2  # when it happened, and at the end
    assert all("lacks files of this run (samples/000001.json): " in line and said in line for line in lines)
    assert not list(tmp_path.rglob("000001.json"))
