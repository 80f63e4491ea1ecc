"""Files that MLflow does not take: the rest of the run gets there."""

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from infra.runs import tracking
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
    monkeypatch.setattr(tracking, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(tracking, "PAUSE_RATIO", 0)
    (tmp_path / "report.html").write_text("<p>")
    with start(home) as tracker:
        tracker.log_file(tmp_path / "report.html")
        tracker.log(1, {"a": 1})
        unwritable.clear()
        tracker.log(2, {"a": 2})
        assert [each.path for each in client.list_artifacts(tracker.run_id)] == ["report.html"]
    assert len(caplog.records) == 1
