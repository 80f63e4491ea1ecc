"""The local file of a run's metrics."""

import pytest

from infra.runs.metric_log import MetricLog, read_metrics


@pytest.mark.parametrize("name", ["", "a?b", "/a", "a/", "a//b", "../a", "step", "time", "a\n"])
def test_a_name_that_mlflow_refuses_is_refused_before_it_is_written(tmp_path, name):
    log = MetricLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="metric name"):
        log.append(0, {name: 1.0})
    assert log.lines() == []


@pytest.mark.parametrize("torn", [b'{"step": 2, "ti', b'{"step": 2, "time": 5, "a": 1.0}'])
def test_a_torn_last_line_is_dropped_and_a_broken_one_is_skipped(tmp_path, torn, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "time": 1, "a": 1.0}\n\x00\x00\n[]\n{"step": 1, "time": 2, "a": 2.0}\n' + torn)
    assert [line.step for line in read_metrics(path)] == [0, 1]
    log = MetricLog(path)
    assert log.last == {"a": 1}
    log.append(2, {"a": 3.0})
    assert [line.step for line in read_metrics(path)] == [0, 1, 2]
    (said,) = (record.getMessage() for record in caplog.records)  # however often a run reads it
    assert said == f"{path}: line 2 is not a line of metrics, nor are 1 more: left out"


def test_another_evaluation_of_a_step_is_logged_beside_the_one_before(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricLog(path)
    log.append(2, {"eval/reward": 0.9}, "one")
    assert log.append(2, {"eval/reward": 0.8}, "one") is None
    log.append(2, {"eval/reward": 0.1}, "other")
    assert MetricLog(path).append(2, {"eval/reward": 0.2}, "other") is None
    assert [(line.plan, line.metrics["eval/reward"]) for line in read_metrics(path)] == [("one", 0.9), ("other", 0.1)]
    log.cut(1)
    assert log.append(2, {"eval/reward": 0.3}, "other") is not None


def test_a_folder_that_is_away_is_not_made_anew(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "away"
    log = MetricLog(folder / "metrics.jsonl")
    log.append(1, {"reward/mean": 0.5})
    folder.rename(elsewhere)
    with pytest.raises(FileNotFoundError):
        log.append(2, {"reward/mean": 0.6})
    assert not folder.exists()
    elsewhere.rename(folder)
    log.append(2, {"reward/mean": 0.6})
    assert [line.step for line in log.lines()] == [1, 2]
