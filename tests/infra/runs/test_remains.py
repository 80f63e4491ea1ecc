"""A run that has been somewhere, and has no checkpoint that can be read, is not taken for a new one."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infra.runs.metric_log import MetricLine
from infra.runs.remains import CheckpointsLostError, refuse_to_begin_anew
from infra.storage import place as places
from infra.storage import store
from infra.weights.publisher import Publisher
from infra.weights.version import SyncConfig

TORN = ("checkpoint 2 is skipped: state/2 is torn", "checkpoint 1 is skipped: state/1 is torn")


def stored(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text("weights")
    store.write_folder(uri, folder)


def metrics(uri: str, step: int) -> None:
    places.write_text(uri, "".join(MetricLine(at, 0, {"reward/mean": 0.5}).dumps() + "\n" for at in range(step + 1)))


def test_nothing_above_version_0_may_begin(place: str, tmp_path: Path) -> None:
    refuse_to_begin_anew(place, ())
    metrics(f"{place}/metrics.jsonl", 0)
    for uri in (f"{place}/state/0", f"{place}/weights/v0"):
        stored(uri, tmp_path)
    places.write_text(f"{place}/config.yaml", "steps: 3\n")
    refuse_to_begin_anew(place, ("checkpoint 0 is skipped: state/0 is torn",))


@pytest.mark.parametrize(
    ("left", "known"),
    [
        (lambda run, made: stored(f"{run}/state/3", made), "it has been at version 3"),
        (lambda run, _: places.write_text(f"{run}/state/3/model.safetensors", "torn"), "it has been at version 3"),
        (lambda run, made: stored(f"{run}/weights/v3", made), "it has been at version 3"),
        (lambda run, _: metrics(f"{run}/metrics.jsonl", 3), "it has been at version 3"),
        (lambda run, made: stored(f"{run}/model", made), "it has a model/"),
    ],
    ids=["state", "state without a manifest", "weights", "metrics", "result"],
)
def test_whatever_knows_a_later_version_is_enough(
    place: str, tmp_path: Path, left: Callable[[str, Path], None], known: str
) -> None:
    left(place, tmp_path)
    with pytest.raises(CheckpointsLostError) as refused:
        refuse_to_begin_anew(place, ())
    assert str(refused.value).startswith(
        f"{place} cannot go on: {known}, and no checkpoint of it is whole (there is none in {place}/state); "
    )
    assert "\n" not in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_the_tail_of_the_metrics_counts(place: str) -> None:
    tail = MetricLine(1, 0, {"reward/mean": 0.5}).dumps()
    places.write_text(f"{place}/tail/metrics.jsonl", f"0\n{tail}\n")
    with pytest.raises(CheckpointsLostError, match="it has been at version 1,"):
        refuse_to_begin_anew(place, TORN)


def test_the_damage_is_named_and_what_a_new_run_can_start_from(tmp_path: Path) -> None:
    run = str(tmp_path / "my run")
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_text("{}")
    publisher = Publisher(run, SyncConfig(), window=1, files=files)
    for step in range(3):
        weights = torch.arange(4096.0)
        weights[step] += 1
        publisher.publish(step, {"w": weights})
    publisher.finish()

    def said(damaged: tuple[str, ...] = TORN) -> str:
        with pytest.raises(CheckpointsLostError) as refused:
            refuse_to_begin_anew(run, damaged)
        return str(refused.value)

    assert f"is whole ({TORN[0]}; {TORN[1]}); to begin" in said()
    assert f"({TORN[0]}; {TORN[1]}; and 1 more); " in said((*TORN, TORN[1]))
    last = f" Its last weights are at {run}/weights/v2, which --policy does not take as they are"  # a difference
    assert said().endswith(last)
    stored(f"{run}/model", tmp_path)
    model = f"a new run starts from {run}/model by: rlvf train --policy '{run}/model'"
    assert said().endswith(f"{last}; {model}")
    publisher.mend([f"{run}/weights/v2"])  # published whole
    publisher.close()
    whole = f"a new run starts from {run}/weights/v2 by: rlvf train --policy '{run}/weights/v2'"
    assert said().endswith(f" Its last weights are at {run}/weights/v2; {whole}")
    Path(run, "weights", "v2", "model.safetensors").write_bytes(b"damaged")
    assert said().endswith(model)
