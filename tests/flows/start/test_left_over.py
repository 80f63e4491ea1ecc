"""A new run where one was removed in part, or where something else is."""

import uuid
from pathlib import Path

import pytest

from flows.config import TrainConfig
from flows.start.runs import known_run, new_run
from infra.runs.checkpoints import NotARun
from infra.storage import place


@pytest.mark.parametrize("left", ["state/3", "weights/v2"])
def test_what_is_left_of_a_run_is_none_to_begin_upon(tmp_path: Path, left: str) -> None:
    (tmp_path / "again" / left).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"again holds checkpoints or weights and no config\.yaml"):
        new_run(TrainConfig(run="again"), str(tmp_path))


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_a_folder_with_files_of_another_s_is_no_place_for_a_run(tmp_path: Path, kept: str) -> None:
    uri = f"memory://{uuid.uuid4().hex}/project" if kept == "memory" else str(tmp_path / "project")
    place.write_text(place.join(uri, "problems.json"), '[{"prompt": "1 + 1", "target": "2"}]')
    with pytest.raises(ValueError, match=r"project holds problems\.json, which is no run's; name a folder of its own"):
        new_run(TrainConfig(run=uri), str(tmp_path))
    for name in ("a.txt", "b/c.txt", "z.txt"):
        place.write_text(place.join(uri, name), "mine")
    with pytest.raises(ValueError, match=r"holds a\.txt, b, problems\.json and more, which is no run's"):
        new_run(TrainConfig(run=uri), str(tmp_path))


def test_what_a_start_left_that_was_killed_before_its_run_was_one_is_in_nobody_s_way(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}/mine"
    for name in ("rlvf-probe-0123abcd", ".DS_Store", "lost+found/.keep"):  # before it took the lock, and of the volume
        place.write_text(place.join(uri, name), "")
    assert not new_run(TrainConfig(run=uri), str(tmp_path)).resumed
    for name in ("lock/00000001.json", "problems.json", "sources.json", "flow_run.txt", "tracking.json"):
        place.write_text(place.join(uri, name), "{}")
        place.write_text(str(tmp_path / "mine" / name), "{}")
    assert not new_run(TrainConfig(run=uri), str(tmp_path)).resumed
    assert not new_run(TrainConfig(run="mine"), str(tmp_path)).resumed


@pytest.mark.slow
def test_a_folder_that_was_made_in_a_bucket_is_empty(s3: str, tmp_path: Path) -> None:
    import boto3

    boto3.client("s3").put_object(Bucket=s3.removeprefix("s3://"), Key="mine/", Body=b"")  # as its page makes it
    assert not new_run(TrainConfig(run=place.join(s3, "mine")), str(tmp_path)).resumed


def test_no_run_is_called_newest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'newest' means the newest one"):
        new_run(TrainConfig(run="newest"), str(tmp_path))


def test_a_start_that_was_killed_before_its_run_was_one_is_begun_anew_by_its_name(tmp_path: Path) -> None:
    for name in ("lora2/lock/00000001.json", "lora1/config.yaml", "zzz/notes.txt"):
        place.write_text(str(tmp_path / name), "{}")
    with pytest.raises(NotARun, match=r"lora2 is not a run: it has no config\.yaml, .*by: rlvf train --run lora2$"):
        known_run("lora2", str(tmp_path))
    (tmp_path / "lora2" / "weights" / "v1").mkdir(parents=True)  # removed in part: nothing to begin upon
    with pytest.raises(NotARun, match=r"lora2 is not a run: it has no config\.yaml; did you mean lora1\?$"):
        known_run("lora2", str(tmp_path))
    with pytest.raises(NotARun, match=r"zzz is not a run: it has no config\.yaml; the newest runs are lora1$"):
        known_run("zzz", str(tmp_path))
