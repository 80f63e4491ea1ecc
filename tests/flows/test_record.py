"""The record on this machine of runs that lie elsewhere: each has its own, whatever they are called."""

from pathlib import Path
from typing import Any

import pytest

from flows.start.runs import local_folder
from infra.runs.record import METRICS, begin_record
from infra.storage import place


def test_runs_of_one_name_share_no_folder_of_this_machine(tmp_path: Path) -> None:
    uris = (
        "s3://one/exp",
        "s3://two/exp",
        "gs://one/exp",
        "s3://one/deep/exp",
        str(tmp_path / "home" / "runs" / "exp"),
    )
    assert len({local_folder(uri, tmp_path / "home") for uri in uris}) == len(uris)
    there = local_folder("s3://one/exp/", tmp_path / "home")
    assert there == local_folder("s3://one/exp", tmp_path / "home")
    assert there.parent == tmp_path / "home" / "runs"
    assert there.name.startswith("exp-")


def test_what_is_left_of_a_removed_run_is_not_the_record_of_the_next_one_there(tmp_path: Path) -> None:
    names = {METRICS, "timeline.jsonl", "about.json", "result.json", "eval-sums.jsonl", "report.html"}
    for name in names:
        (tmp_path / name).write_text("{}\n")
    begin_record(str(tmp_path), tmp_path)  # a local one: its folder is the user's
    assert {path.name for path in tmp_path.iterdir()} == names
    begin_record("s3://one/exp", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.html"}


@pytest.mark.slow
def test_runs_of_one_name_share_no_record_and_a_run_begun_anew_has_none(lab: Any, s3: str) -> None:
    here = Path(lab.train(run="twin", steps="1").run)
    metrics = (here / "metrics.jsonl").read_bytes()
    uris = [f"{s3}/one/twin", f"{s3}/two/twin"]
    for uri, steps in zip(uris, (2, 1), strict=True):
        assert lab.train(run=uri, steps=str(steps)).reward_before is not None
        assert list(lab.metrics(lab.record_folder(uri), "reward/mean")) == list(range(1, steps + 1))
    place.remove(uris[0])
    lab.train(run=uris[0], steps="1")
    for uri in uris:
        assert list(lab.metrics(lab.record_folder(uri), "reward/mean")) == [1]
        assert list(lab.metrics(lab.record_folder(uri), "eval/pass_at_1")) == [0, 1]
    assert (here / "metrics.jsonl").read_bytes() == metrics
    assert lab.mlflow(here)[1].info.lifecycle_stage == "active"
