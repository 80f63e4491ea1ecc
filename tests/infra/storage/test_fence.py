"""Who has lost a run writes nothing there any more."""

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.runs import checkpoints
from infra.storage import lock, store
from infra.storage import place as places
from infra.storage.fence import Fence, LockLostError
from infra.storage.lock import RunInUseError, acquire, held
from infra.storage.manifest import MANIFEST
from infra.storage.place import remove
from tests.infra.storage.owners import other_process, taken
from tests.processes import until

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.slow
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


@pytest.mark.slow
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
                rest, _ = holder.communicate(timeout=90)
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
        each.uri: places.read(places.join(each.uri, MANIFEST))
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
        if places.local_path(run) is not None:  # elsewhere that is seen at its next sign
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
    assert not places.exists(f"{run}/lock")
    assert store.versions(f"{run}/state") == []


def test_a_sleeper_notices_by_itself_and_is_told(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with ExitStack() as stack:
        mine = stack.enter_context(taken(run))
        told = threading.Event()
        mine.when_lost(told.set)
        Path(run, "lock", "00000009.json").write_text("{}")
        until(told.is_set, 90)
        with pytest.raises(LockLostError):
            mine.check()
    assert Path(run, "lock", "00000009.json").read_text() == "{}"  # released was what is not held any more


@pytest.mark.slow
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
            patch.setattr(places, "remove", lambda _: None)  # done before the new owner wrote
            with pytest.raises(LockLostError, match="late"):
                store.write_folder(f"{run}/state/8", made, fence=first.fence)
        with checkpoints.load(run, 8) as whole:
            assert (whole.path / "model.safetensors").read_bytes() == b"the second owner's"
