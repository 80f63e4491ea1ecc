"""Files that MLflow does not take: the rest of the run gets there."""

import sys
from functools import partial

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact import s3_artifact_repo

from infra.runs import outage
from infra.runs.outage import Uploads
from tests.conftest import free_port
from tests.infra.runs.tracked import points, start


@pytest.fixture
def unwritable(monkeypatch):
    """The names of files that MLflow does not take."""
    names = {"report.html"}
    real = MlflowClient.log_artifact

    def log_artifact(self, run_id, local_path, *args):
        if any(local_path.endswith(name) for name in names):
            raise MlflowException("no files of that name\nand more")
        real(self, run_id, local_path, *args)

    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    return names


@pytest.mark.slow
def test_one_that_fails_keeps_neither_others_nor_metrics_nor_status_from_mlflow(
    home, client, tmp_path, unwritable, caplog
):
    assert unwritable == {"report.html"}
    for name in ("report.html", "reward.png"):
        (tmp_path / name).write_text(name)
    with start(home, local=tmp_path / "metrics.jsonl") as tracker:
        tracker.log_file(tmp_path / "report.html")
        tracker.log(1, {"a": 1})
        assert points(client, tracker.run_id, "a") == [(1, 1)]
        tracker.log_picture(tmp_path / "reward.png")
    assert client.get_run(tracker.run_id).info.status == "FINISHED"
    assert [each.path for each in client.list_artifacts(tracker.run_id)] == ["pictures"]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"MLflow at sqlite:///{home}/mlflow.db lacks files of this run (report.html): no files of that name"
    ] * len(lines)
    assert len(lines) == 2


def test_one_that_failed_is_tried_again(home, client, tmp_path, unwritable, monkeypatch, caplog):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(outage, "PAUSE_RATIO", 0)
    (tmp_path / "report.html").write_text("<p>")
    with start(home) as tracker:
        tracker.log_file(tmp_path / "report.html")
        tracker.log(1, {"a": 1})
        unwritable.clear()
        tracker.log(2, {"a": 2})
        assert [each.path for each in client.list_artifacts(tracker.run_id)] == ["report.html"]
    assert len(caplog.records) == 1


STORES = {  # the address of an artifact store, what is set for it, and what is said
    "credentials": ("s3://bucket/x", {}, "S3: Unable to locate credentials; set AWS_ACCESS_KEY_ID"),
    "endpoint": ("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "is the network up"),
    "library": ("gs://bucket/x", {}, "google.cloud"),
}


@pytest.mark.parametrize("lacks", STORES)
def test_an_artifact_store_that_fails_in_its_own_words_keeps_only_files_from_mlflow(
    home, client, tmp_path, monkeypatch, caplog, lacks
):
    location, environment, said = STORES[lacks]
    boto3 = pytest.importorskip("boto3", reason="needs boto3: install the extra 's3'")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it, and MLflow, know the credentials of tests before
    uncached = s3_artifact_repo._cached_get_s3_client.__wrapped__
    monkeypatch.setattr(s3_artifact_repo, "_cached_get_s3_client", uncached)
    monkeypatch.setitem(sys.modules, "google.cloud", None)  # as where it is not installed
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    there = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{free_port()}", "AWS_MAX_ATTEMPTS": "1"}
    nothing = dict.fromkeys(("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"), str(tmp_path / "none"))
    for name, value in {**there, **nothing, "AWS_EC2_METADATA_DISABLED": "true", **environment}.items():
        monkeypatch.setenv(name, value)
    client.create_experiment("sums", artifact_location=location)
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 3600)
    with start(home, local=tmp_path / "metrics.jsonl") as tracker:
        for step in (1, 2):
            tracker.log(step, {"a": step})
            tracker.log_samples(step, [{"completion": "of 1"}])
    assert client.get_run(tracker.run_id).info.status == "FINISHED"
    assert points(client, tracker.run_id, "a") == [(1, 1), (2, 2)]
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("infra")]
    assert len(lines) == 2  # when it happened, and at the end
    assert all("lacks files of this run (" in line and said in line and "\n" not in line for line in lines)
    assert "(samples/000001.json): " in lines[0]
    assert all(f"samples/00000{step}.json" in lines[1] for step in (1, 2))


def test_a_store_that_is_away_is_asked_once_for_all_files(monkeypatch):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(outage, "PAUSE_RATIO", 0)
    asked = []

    def upload(path):
        asked.append(path)
        raise ConnectionError("away")

    uploads = Uploads("sqlite:///mlflow.db", is_served=False)
    for path in ("one", "two"):
        uploads.add(path, partial(upload, path))
    uploads.send(last=False)
    assert asked == ["one"]
    uploads.send(last=False)
    assert asked == ["one", "two"]  # the first one waits behind the others


def test_an_upload_that_a_signal_ends_is_not_forgotten():
    stored = []

    def interrupted():
        if not stored:
            stored.append("part")
            raise KeyboardInterrupt
        stored.append("whole")

    uploads = Uploads("sqlite:///mlflow.db", is_served=False)
    uploads.add("one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        uploads.send(last=False)
    uploads.send(last=True)
    assert stored == ["part", "whole"]
