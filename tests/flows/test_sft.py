"""The warm-up on a cluster where others train."""

import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from rich.console import Console

from flows.finetune_config import SftConfig
from flows.run.display import Display
from flows.run.prefect_session import PrefectSession
from flows.run.workplace import Workplace, present
from infra.cluster.placement import PlacementConfig
from infra.cluster.training_lock import training, training_lock
from infra.dispatch.calls import DispatchStoppedError
from infra.dispatch.dispatch import Dispatch
from tasks.batch.failures import Failures
from tasks.warm_up import is_kept
from tests.processes import until

pytestmark = pytest.mark.slow


@contextmanager
def workplace(lab: Any, home: Path, said: io.StringIO) -> Iterator[Workplace]:
    display = Display(Console(file=said, width=500))
    with (
        Client(lab.client.scheduler.address, set_as_default=False, security=lab.client.security) as client,
        Dispatch(client, PlacementConfig()) as dispatch,
        display,
    ):
        prefect = PrefectSession(lab.home, display.say)
        yield Workplace(home, display, dispatch, Failures(display.say), str(home), prefect)


def asked(seed: int) -> SftConfig:
    return SftConfig.model_validate({"warm_up": {"steps": 3, "batch": 2, "seed": seed}})


def test_a_warm_up_waits_for_another_one_and_says_so(lab: Any, tmp_path: Path) -> None:
    from flows.sft import sft

    said, trains = io.StringIO(), []
    with lab.prefect(), workplace(lab, tmp_path, said) as mine, present(mine):
        lock = training_lock(lab.client, "another warm-up", str)
        lock.__enter__()

        def end() -> None:
            try:
                until(lambda: "waiting: another warm-up trains on this cluster" in said.getvalue())
                trains.append(training(lab.client))
            finally:
                lock.__exit__(None, None, None)

        ending = threading.Thread(target=end)
        ending.start()
        uri = sft(asked(11))
        ending.join()
    assert trains == ["another warm-up"]
    assert is_kept(uri)
    assert training(lab.client) is None


def test_a_warm_up_that_was_made_by_whoever_had_the_training_lock_is_not_made_again(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import sft as flow

    first, said = io.StringIO(), io.StringIO()
    with lab.prefect(), workplace(lab, tmp_path, first) as other, workplace(lab, tmp_path, said) as mine:
        with present(other):
            uri = flow.sft(asked(12))
        looked = iter([None])
        kept = flow.kept_warm_up
        monkeypatch.setattr(flow, "kept_warm_up", lambda *of: next(looked, None) or kept(*of))
        monkeypatch.setattr(flow, "warm_up", lambda *_: pytest.fail("made again"))
        with present(mine):
            assert flow.sft(asked(12)) == uri


def test_a_warm_up_that_is_not_wanted_any_more_does_not_wait(lab: Any, tmp_path: Path) -> None:
    from flows.sft import sft

    with (
        lab.prefect(),
        workplace(lab, tmp_path, io.StringIO()) as mine,
        present(mine),
        training_lock(lab.client, "another", str),
    ):
        mine.dispatch.stop()
        with pytest.raises(DispatchStoppedError):
            sft(asked(13))


def test_a_run_that_goes_on_from_a_checkpoint_makes_no_warm_up(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path)
    run = lab.train(home=home, steps="1", policy=None).run
    shutil.rmtree(home / "warmup")  # as after an edit, when its name is another
    assert lab.train(home=home, resume=run, steps="2", policy=None).steps == 2
    assert not (home / "warmup").exists()
