"""A run's record, where it lies and on this machine."""

from pathlib import Path

from infra.runs.metric_log import MetricLog, read_metrics
from infra.runs.record import EVALUATIONS, METRICS, cut_evaluations, read_record
from infra.storage import place as places


def test_of_versions_that_are_made_again_no_evaluation_stays(place: str, tmp_path: Path) -> None:
    names = ["v5-sums-0123.json", "v6-sums-0123.json", "v50-sums-0123.json", "notes.txt"]
    for name in names:
        places.write_text(places.join(place, EVALUATIONS, name), "{}")
    log = MetricLog(tmp_path / "eval-sums.jsonl", again=True)
    for step in (0, 5, 6, 50):
        log.append(step, {"eval/sums/reward": 0.5})
    cut_evaluations(place, tmp_path, 5)
    assert places.names(places.join(place, EVALUATIONS)) == ["notes.txt", "v5-sums-0123.json"]
    assert [line.step for line in read_metrics(tmp_path / "eval-sums.jsonl")] == [0, 5]
    cut_evaluations(places.join(place, "without"), tmp_path / "without", 0)


def test_a_curve_mixes_no_two_evaluations(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / METRICS)
    for step, plan, reward in ((0, "one", 0.4), (2, "one", 0.7), (2, "other", 0.1), (4, "other", 0.2)):
        log.append(step, {"eval/reward": reward}, plan)
        log.append(step, {"reward/mean": 0.5})
    record = read_record(str(tmp_path), tmp_path)
    assert record.curve("eval/reward") == {2: 0.1, 4: 0.2}
    assert record.curve("reward/mean") == {0: 0.5, 2: 0.5, 4: 0.5}
    assert record.has_other_plans("eval/reward")
    assert not record.has_other_plans("reward/mean")
