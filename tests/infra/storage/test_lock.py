"""One writer of a run at a time: who comes second is refused, who is dead is succeeded, who slept writes no more."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra.storage import lock
from infra.storage import place as places
from infra.storage.fence import Fence, LockLostError
from infra.storage.lock import RunInUseError, RunLock, acquire, held
from tests.infra.storage.owners import of_another_machine, other_process, taken

pytestmark = pytest.mark.usefixtures("quick")


def test_the_second_is_refused_with_who_and_since_when(place: str) -> None:
    with taken(place) as first:
        with pytest.raises(RunInUseError) as refused:
            acquire(place, print)
        line = str(refused.value)
        assert line.startswith(f"{place} is in use by ")
        assert f"(process {os.getpid()}) since 20" in line
        assert "\n" not in line
        first.check()
    with taken(place) as next_one:  # at once
        assert next_one.fence.epoch == 2


def test_what_is_held_around_a_command_is_held_by_its_flow(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with held(run, print) as outer:
        with held(run, print) as inner:
            assert inner is outer
        outer.check()
        with pytest.raises(RunInUseError):
            acquire(run, print)
    with taken(run):
        pass


def test_a_sign_that_is_just_being_written_is_ones_own_where_a_store_writes_in_place(place: str) -> None:
    with taken(f"{place}/run") as mine, mine._writing:
        places.write_text(mine.fence.claim, "")
        if places.local_path(place) is None:
            mine.fence.check()
        else:  # a folder's is there whole or not at all
            with pytest.raises(LockLostError):
                mine.fence.check()


def test_of_many_at_once_one_has_it(place: str) -> None:
    got: list[RunLock] = []
    refused: list[RunInUseError] = []
    ready = threading.Barrier(4)

    def try_it() -> None:
        ready.wait()
        try:
            got.append(acquire(place, print))
        except RunInUseError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(got), len(refused)) == (1, 3)
    got[0].check()
    got[0].fence.check()
    got[0].release()


def test_a_killed_owner_of_this_machine_is_succeeded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path / "run")
    monkeypatch.setattr(lock, "DEAD_SECONDS", 10_000)
    with other_process(run, tmp_path / "made") as holder:
        holder.kill()
        holder.wait()
    with taken(run) as mine:
        assert mine.fence.epoch == 2


@pytest.mark.slow
def test_an_owner_elsewhere_is_dead_when_its_sign_stands_still_whatever_its_clock_says(place: str) -> None:
    with taken(place) as first:
        name = first.fence.claim
    away = replace(of_another_machine(), since=4e9)
    places.write_text(name, json.dumps(away.__dict__))
    with taken(place) as mine:
        assert mine.fence.epoch == 2
        with pytest.raises(LockLostError, match="was taken over by another process"):
            first.fence.check()


def test_who_is_waited_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path / "run")
    with taken(run) as first:
        name = first.fence.claim
    places.write_text(name, json.dumps(of_another_machine().__dict__))
    monkeypatch.setattr(lock, "DEAD_SECONDS", 0.5)
    said: list[str] = []
    acquire(run, said.append).release()
    (line,) = said
    assert line.startswith("ann@jetson (process ")
    assert "gives no sign; it is taken over in " in line


@pytest.mark.slow
def test_a_claim_that_was_cut_off_is_outlived(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "lock").mkdir(parents=True)
    (run / "lock" / "00000007.json").write_bytes(b"")
    with taken(str(run)) as mine:
        assert mine.fence.epoch == 8


def test_a_folder_by_its_uri_is_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with taken(f"file://{tmp_path}/run") as mine:
        assert [path.name for path in (tmp_path / "run" / "lock").iterdir()] == ["00000001.json"]
        with pytest.raises(RunInUseError):
            acquire(str(tmp_path / "run"), print)
        mine.check()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_was_begun_keeps_its_lock_and_one_that_was_not_leaves_nothing(place: str) -> None:
    run = f"{place}/run"
    with held(run, print):
        assert places.exists(run)
    assert lock.claims(run) == []
    with held(run, print):
        places.write_text(f"{run}/config.yaml", "steps: 1")
    assert places.exists(f"{run}/lock")


def test_a_storage_that_hangs_at_the_end_is_given_up_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, over = threading.Event(), threading.Event()
    said: list[str] = []

    def hang(_: Fence) -> None:
        hangs.set()
        assert over.wait(60)

    try:
        with held(str(tmp_path / "run"), said.append):
            monkeypatch.setattr(Fence, "check", hang)
            assert hangs.wait(60)  # the sign of life
            monkeypatch.setattr(lock, "DEAD_SECONDS", 0.1)
    finally:
        over.set()
    assert said == [f"{tmp_path}/run could not be released (no answer for 0 s); who wants it next waits 0 s"]
