"""One writer of a run at a time: who comes second is refused, who is dead is succeeded, who slept writes no more."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from infra.runs import checkpoints
from infra.storage import lock, place, store
from infra.storage.claim import Claim
from infra.storage.fence import Fence, LockLostError
from infra.storage.lock import RunInUseError, RunLock, acquire, held
from infra.storage.place import remove
from tests.processes import started, until

DEAD = 2.0  # seconds, of an owner without a sign
HOLDER = """
import sys
from pathlib import Path
from infra.runs import checkpoints
from infra.storage import lock
lock.BEAT_SECONDS = 0.1
lock.SETTLE_SECONDS = 0.1
lock.SURE_SECONDS = 0.5
run, folder = sys.argv[1], Path(sys.argv[2])
mine = lock.acquire(run, print)
print("held", flush=True)
step = 0
while True:
    step += 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(f"the first owner's {step}\\n" * 2000)
    try:
        checkpoints.save(run, step, folder, {"owner": "first"}, 2, patience=5, fence=mine.fence)
    except lock.LockLostError as error:
        print(error, flush=True)
        break
    print(step, flush=True)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(lock, "DEAD_SECONDS", DEAD)
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.1)


@contextmanager
def taken(run: str) -> Iterator[RunLock]:
    mine = acquire(run, print)
    try:
        yield mine
    finally:
        mine.release()


@contextmanager
def other_process(run: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """It holds the run and writes checkpoint after checkpoint."""
    with started(sys.executable, "-c", HOLDER, run, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        yield holder


def of_another_machine() -> Claim:
    """What lies there when the owner of a lock has lost its machine."""
    return replace(Claim.of_this_process(), machine="another", host="jetson", user="ann", state="held")


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


def test_an_owner_who_changes_its_writers_refuses_the_earlier_ones(place: str) -> None:
    with taken(f"{place}/run") as mine:
        first = mine.new_fence()
        first.check()
        second = mine.new_fence()
        with pytest.raises(LockLostError):
            first.check()
        for _ in range(5):  # signs of life do not bring the earlier one back
            time.sleep(0.1)
            second.check()
            mine.check()
        with pytest.raises(RunInUseError):
            acquire(f"{place}/run", print)
    with taken(f"{place}/run") as next_owner:
        assert next_owner.fence.epoch > second.epoch
        with pytest.raises(LockLostError):
            second.check()


def test_a_sign_that_is_just_being_written_is_ones_own_where_a_store_writes_in_place(place: str) -> None:
    with taken(f"{place}/run") as mine, mine._writing:
        store.write_text(mine.fence.claim, "")
        if store.local_path(place) is None:
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


def test_an_owner_elsewhere_is_dead_when_its_sign_stands_still_whatever_its_clock_says(place: str) -> None:
    with taken(place) as first:
        name = first.fence.claim
    away = replace(of_another_machine(), since=4e9)
    store.write_text(name, json.dumps(away.__dict__))
    with taken(place) as mine:
        assert mine.fence.epoch == 2
        with pytest.raises(LockLostError, match="was taken over by another process"):
            first.fence.check()


def test_who_is_waited_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(tmp_path / "run")
    with taken(run) as first:
        name = first.fence.claim
    store.write_text(name, json.dumps(of_another_machine().__dict__))
    monkeypatch.setattr(lock, "DEAD_SECONDS", 0.5)
    said: list[str] = []
    acquire(run, said.append).release()
    (line,) = said
    assert line.startswith("ann@jetson (process ")
    assert "gives no sign; it is taken over in " in line


def test_a_claim_that_was_cut_off_is_outlived(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "lock").mkdir(parents=True)
    (run / "lock" / "00000007.json").write_bytes(b"")
    with taken(str(run)) as mine:
        assert mine.fence.epoch == 8


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_who_slept_while_another_took_over_changes_nothing_any_more(
    where: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = str(tmp_path / "run") if where == "folder" else str(request.getfixturevalue("s3")) + "/run"
    with other_process(run, tmp_path / "made") as holder:
        assert holder.stdout
        for _ in range(3):
            holder.stdout.readline()
        os.kill(holder.pid, signal.SIGSTOP)  # at whatever it is just doing
        try:
            with taken(run) as mine:
                newest = checkpoints.newest(run, warn=print)
                assert newest is not None
                step = int(Path(newest.path).name) if where == "folder" else store.versions(f"{run}/state")[-1]
                for ahead in range(step + 1, step + 6):
                    folder = tmp_path / f"second-{ahead}"
                    folder.mkdir()
                    (folder / "model.safetensors").write_text(f"the second owner's {ahead}\n" * 2000)
                    checkpoints.save(run, ahead, folder, {"owner": "second"}, 2, fence=mine.fence)
                kept = everything(run)
                os.kill(holder.pid, signal.SIGCONT)
                rest, _ = holder.communicate(timeout=60)
                assert "was taken over by another process while this one gave no sign" in rest
                assert "Traceback" not in rest
                assert everything(run) == kept
                mine.check()
                for each in (step + 4, step + 5):
                    with checkpoints.load(run, each) as whole:
                        assert whole.manifest.meta == {"owner": "second"}
        finally:
            holder.kill()


def everything(run: str) -> dict[str, bytes | None]:
    """All manifests and checkpoints of the run that can be read."""
    return {
        each.uri: place.read(store.join(each.uri, store.MANIFEST))
        for each in store.list_versions(f"{run}/state")
        if each.whole
    }


def test_a_run_that_was_removed_and_begun_anew_has_one_owner(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = f"{place}/run"
    with monkeypatch.context() as patch:
        patch.setattr(lock, "BEAT_SECONDS", 3600.0)  # all that follows is between two of its signs
        first = acquire(run, print)
    first.check()
    remove(run)
    with taken(run) as second:
        assert second.fence.epoch == first.fence.epoch == 1
        with pytest.raises(LockLostError, match="was removed while this process trained it") as lost:
            first.fence.check()
        assert "\n" not in str(lost.value)
        if store.local_path(run) is not None:  # elsewhere that is seen at its next sign
            with pytest.raises(LockLostError):
                first.check()
        assert first.release() is False
        second.fence.check()
        second.check()


def test_who_holds_a_run_that_was_removed_makes_nothing_there_again(place: str, tmp_path: Path) -> None:
    run = f"{place}/run"
    with held(run, print) as mine:
        told = threading.Event()
        mine.when_lost(told.set)
        remove(run)
        while not told.wait(1.0):
            remove(run)  # it had looked before, and written its sign after the first time
        made = tmp_path / "made"
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"of nobody")
        with pytest.raises(LockLostError, match="nothing more is written there"):
            checkpoints.save(run, 1, made, {}, 2, fence=mine.fence)
    assert not store.exists(f"{run}/lock")
    assert store.versions(f"{run}/state") == []


def test_a_sleeper_notices_by_itself_and_is_told(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with ExitStack() as stack:
        mine = stack.enter_context(taken(run))
        told = threading.Event()
        mine.when_lost(told.set)
        Path(run, "lock", "00000009.json").write_text("{}")
        until(told.is_set, 20)
        with pytest.raises(LockLostError):
            mine.check()
    assert Path(run, "lock", "00000009.json").read_text() == "{}"  # released was what is not held any more


def test_what_was_sent_before_a_sleep_and_arrives_after_it_writes_over_nothing(s3: str, tmp_path: Path) -> None:
    """A client sends a request again that got no answer: its file must not be one of the new owner's."""
    run = f"{s3}/run"
    with taken(run) as first:
        pass
    with taken(run) as second:
        made = tmp_path / "second"
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"the second owner's")
        checkpoints.save(run, 8, made, {}, 2, fence=second.fence)
        made = tmp_path / "first"
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"the first owner's")
        checks = iter([True, False])

        def check(fence: Fence) -> None:  # it slept behind the first one, and sent a file when it woke
            if fence == first.fence and not next(checks):
                raise LockLostError("late")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Fence, "check", check)
            patch.setattr(place, "remove", lambda _: None)  # done before the new owner wrote
            with pytest.raises(LockLostError, match="late"):
                store.write_folder(f"{run}/state/8", made, fence=first.fence)
        with checkpoints.load(run, 8) as whole:
            assert (whole.path / "model.safetensors").read_bytes() == b"the second owner's"


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
        assert store.exists(run)
    assert lock.claims(run) == []
    with held(run, print):
        store.write_text(f"{run}/config.yaml", "steps: 1")
    assert store.exists(f"{run}/lock")
