"""What the trainer takes a run for whose checkpoints are damaged or gone."""

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import disk
from infra.cluster.resident import drop
from infra.runs import checkpoints
from infra.runs.checkpoints import CheckpointConfig
from infra.runs.metric_log import MetricLog
from infra.runs.remains import CheckpointsLostError
from infra.storage import store
from infra.storage.fence import Fence
from infra.storage.lock import acquire
from infra.weights.version import SyncConfig
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.loading.policy import load_policy
from rl.model import memory
from tasks.calls.trained import drop_publisher
from tasks.calls.trainer import Trainer

CPU = PolicyConfig(device="cpu")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def fence(run: Path) -> Iterator[Fence]:
    lock = acquire(str(run), print)
    yield lock.new_fence()
    lock.release()


@pytest.fixture
def mine(run: Path, fence: Fence, half_right: Path) -> Iterator[Trainer]:
    yield Trainer(
        run_uri=str(run),
        source=str(half_right),
        policy=CPU,
        optimizer=OptimizerConfig(lr=1e-3),
        algorithm=AlgorithmSpec(),
        sampling=SamplingConfig(max_tokens=12),
        checkpoint=CheckpointConfig(every=10),
        sync=SyncConfig(),
        window=1,
        steps=20,
        fence=fence,
    )
    lose()


def lose() -> None:
    """What a trainer that is killed had in memory."""
    drop_publisher("learner")
    drop("learner")


def saved(run: Path, half_right: Path, step: int, reward: float = 0.5) -> None:
    """A checkpoint as that of any step."""
    learner = Learner(load_policy(str(half_right), CPU, master=True), OptimizerConfig(lr=1e-3))
    learner.step = step
    with store.scratch(str(run)) as folder:
        learner.save(folder)
        checkpoints.save(str(run), step, folder, {"figures": {"reward/mean": reward}}, 2)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def contents(run: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in run.rglob("*") if file.is_file() and file.parent.name != "lock"}


def test_a_run_that_was_killed_before_its_first_checkpoint_begins(mine: Trainer, run: Path) -> None:
    (run / "state" / "0").mkdir(parents=True)  # as one is left whose upload was cut off
    (run / "state" / "0" / "model.safetensors").write_bytes(b"half of")
    assert mine.begin().step == 0
    assert mine.publish(0).version.step == 0
    lose()
    flip(run / "state" / "0" / "model.safetensors")  # killed again, before anything was learned
    begun = mine.begin()
    assert (begun.step, len(begun.warnings)) == (0, 1)
    checkpoints.load(str(run), 0)


def test_a_storage_that_goes_away_while_a_checkpoint_is_looked_for_is_waited_for(
    mine: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine.begin()
    lose()
    newest, away = checkpoints.newest, [True]

    def of(*args: Any, warn: Callable[[str], None], **options: Any) -> Any:
        warn("checkpoint 0 is skipped: as the storage went away")
        if away.pop():
            away.append(False)
            raise ConnectionError("the storage is away")
        return newest(*args, warn=lambda _: None, **options)

    monkeypatch.setattr(checkpoints, "newest", of)
    begun = mine.begin()
    assert (begun.step, len(begun.warnings)) == (0, 1)


def test_a_trainer_takes_what_updates_keep_before_a_generator_asks_what_is_free(
    mine: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(memory, "reserve", lambda count, _: taken.append(count))
    mine.begin()
    lose()
    mine.begin()
    with mine._learner(None) as (learner, _):
        assert taken == [12 * sum(parameter.numel() for parameter in learner.parameters)] * 2


@pytest.mark.slow
def test_a_run_that_was_killed_between_two_checkpoints_makes_its_steps_again(
    mine: Trainer, run: Path, half_right: Path
) -> None:
    mine.begin()
    mine.publish(0)
    MetricLog(run / "metrics.jsonl").append(7, {"reward/mean": 0.5})
    saved(run, half_right, 0, 0.25)  # as another version of a library would write it
    lose()
    begun = mine.begin()
    assert begun.step == 0
    assert begun.figures == {"reward/mean": 0.25}  # not replaced: a store is without one meanwhile


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", "absent"])
def test_a_run_whose_checkpoints_are_lost_is_left_as_it_is(
    mine: Trainer, run: Path, half_right: Path, damage: str
) -> None:
    mine.begin()
    mine.publish(0)
    for step in (10, 20):
        saved(run, half_right, step)
    lose()
    assert mine.begin().step == 20
    mine.publish(20)
    lose()
    if damage == "flipped":
        for state in (run / "state").iterdir():
            flip(state / "model.safetensors")
        why = f"checkpoint 20 is skipped: {run}/state/20 is torn: 'model.safetensors' does not match the digest"
    else:
        shutil.rmtree(run / "state")
        why = f"there is none in {run}/state"
    before = contents(run)
    for call in (mine.begin, lambda: mine.publish(20), lambda: mine.mend(20, [])):
        with pytest.raises(CheckpointsLostError) as refused:
            call()
        assert f"it has been at version 20, and no checkpoint of it is whole ({why}" in str(refused.value)
        assert f"Its last weights are at {run}/weights/v20" in str(refused.value)
    assert contents(run) == before


def test_what_it_publishes_with_leaves_no_folder_behind(mine: Trainer) -> None:
    before = set(disk.own_folder().iterdir())
    for _ in range(2):
        mine.begin()
        mine.publish(0)
    assert set(disk.own_folder().iterdir()) > before
    lose()
    gc.collect()
    assert set(disk.own_folder().iterdir()) == before
