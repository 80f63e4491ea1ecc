"""Weights through a storage on a bad day: every mirror ends with the bits that were published or with an error that
says why, and the versions after that are none the worse for it."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infra.storage import place, retry_policy
from infra.storage.manifest import NotThere, StoreError, Torn
from infra.weights import mirror
from infra.weights.difference import weights_digest
from infra.weights.mirror import Mirror
from infra.weights.publisher import Publisher
from infra.weights.version import PolicyVersion, SyncConfig
from tests.faulty_s3 import FaultyS3

pytestmark = pytest.mark.slow

errors = pytest.importorskip("botocore.exceptions", reason="needs boto3: install the extra 's3'")

CELLS = 60_000
PATIENCE = 20.0  # seconds
MANIFEST, DIFFERENCE, WHOLE = "*/manifest.json", "*/difference", "*/model.safetensors"


def trained(steps: int) -> list[dict[str, Tensor]]:
    """The weights after every step, of which each changes about a percent."""
    draws = torch.Generator().manual_seed(0)
    flat = torch.randn(CELLS, generator=draws)
    versions = []
    for _ in range(steps):
        versions.append({"a": flat.bfloat16().view(-1, 6), "b": torch.arange(len(versions) + 5.0)[-5:].clone()})
        flat = flat.clone()
        flat[torch.randperm(CELLS, generator=draws)[: CELLS // 100]] += 0.1
    return versions


TRAINED = trained(16)


def holds(weights: Any, step: int) -> bool:
    return weights.keys() == TRAINED[step].keys() and all(torch.equal(weights[n], t) for n, t in TRAINED[step].items())


class Run:
    """One run's publisher, a mirror that follows it, and mirrors that come anew."""

    def __init__(self, uri: str, files: Path, patience: float) -> None:
        self.uri = uri
        self.patience = patience
        self.publisher = Publisher(uri, SyncConfig(anchor_every=4, patience=patience), window=3, files=files)
        self.follower = self.fresh()

    def fresh(self) -> Mirror:
        return Mirror(place.join(self.uri, "weights"), patience=self.patience)

    def publish(self, step: int) -> PolicyVersion:
        version = self.publisher.publish(step, TRAINED[step]).version
        assert version.digest == weights_digest(TRAINED[step])
        return version

    def check(self, version: PolicyVersion, *mirrors: Mirror) -> None:
        for each in mirrors:
            with each.at(version) as weights:
                assert holds(weights, version.step)

    def check_or_torn(self, version: PolicyVersion, each: Mirror, may_be_torn: bool) -> None:
        """Of a version whose manifest comes damaged nothing is known."""
        try:
            self.check(version, each)
        except Torn:
            if not may_be_torn:
                raise


StartRun = Callable[..., Run]


@pytest.fixture
def start_run(s3: str, faulty: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartRun]:
    monkeypatch.setattr(retry_policy, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(retry_policy, "LONGEST_PAUSE", 0.5)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # of botocore, whose pauses grow to many seconds
    started = []
    (tmp_path / "config.json").write_text("{}")

    def start(patience: float = PATIENCE) -> Run:
        started.append(Run(f"{s3}/run", tmp_path, patience))
        return started[-1]

    yield start
    faulty.clear()
    for run in started:
        run.publisher.close()


FAULTS: dict[str, Callable[[FaultyS3], object]] = {
    "slow down": lambda s3: s3.slow_down(times=6),
    "slow down for the manifest": lambda s3: s3.slow_down(key=MANIFEST, times=4),
    "slow": lambda s3: s3.slow(150_000, times=None),
    "differences cut off": lambda s3: s3.truncate(key=DIFFERENCE, times=3),
    "manifests cut off": lambda s3: s3.truncate(key=MANIFEST, times=3),
    "everything cut off": lambda s3: s3.truncate(times=8),
    "no answer": lambda s3: s3.leave_unanswered(times=3),
    "no answer to the manifest": lambda s3: s3.leave_unanswered("PUT", MANIFEST, times=2),
    "damaged": lambda s3: s3.damage(DIFFERENCE),
    "damaged whole": lambda s3: s3.damage(WHOLE),
    "damaged manifest": lambda s3: s3.damage(MANIFEST),
    "damaged often": lambda s3: s3.damage(times=4),
    "late": lambda s3: s3.late(1.0),
    "late manifest": lambda s3: s3.late(1.0, MANIFEST),
    "late difference": lambda s3: s3.late(1.0, DIFFERENCE),
    "gone": lambda s3: s3.away(2),
    "silent": lambda s3: s3.away(2, "hang"),
    "overloaded": lambda s3: s3.away(2, "503"),
}
QUICK = ("everything cut off", "damaged", "gone")


SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS if fault not in QUICK]


@pytest.mark.parametrize("fault", [*QUICK, *SLOW])
def test_a_version_published_and_fetched_through_a_fault_is_the_version(
    fault: str, faulty: FaultyS3, start_run: StartRun
) -> None:
    run = start_run()
    run.check(run.publish(0), run.follower)
    FAULTS[fault](faulty)
    version = run.publish(1)
    for each in (run.follower, run.fresh()):  # while it lasts
        run.check_or_torn(version, each, "damaged" in fault)
    faulty.clear()
    time.sleep(0.1)
    version = run.publish(2)
    behind = run.fresh()
    run.check(version, behind)
    FAULTS[fault](faulty)
    for each in (run.follower, run.fresh()):
        run.check_or_torn(version, each, "damaged" in fault)
    faulty.clear()
    for step in range(3, 6):  # merged, with an anchor, and pruned
        version = run.publish(step)
        run.check(version, run.follower)
    run.publisher.finish()
    assert run.publish(5) == version
    run.check(version, behind, run.fresh())


def test_away_while_a_version_is_on_its_way_to_both_sides(faulty: FaultyS3, start_run: StartRun) -> None:
    run = start_run()
    run.check(run.publish(0), run.follower)
    faulty.slow(10_000, key=DIFFERENCE, times=None)
    threading.Timer(0.15, faulty.away, [3]).start()
    version = run.publish(1)
    threading.Timer(0.15, faulty.away, [3]).start()
    run.check(version, run.follower, run.fresh())
    assert version.step == 1


def test_a_storage_that_stays_away_is_an_error_and_the_next_version_is_none_the_worse(
    faulty: FaultyS3, start_run: StartRun
) -> None:
    run = start_run(patience=1.0)
    run.check(run.publish(0), run.follower)
    faulty.away(3600)
    began = time.monotonic()
    with pytest.raises(errors.EndpointConnectionError):
        run.publish(1)
    assert time.monotonic() - began < 15
    faulty.clear()
    version = run.publish(2)
    run.check(version, run.follower, run.fresh())
    faulty.away(3600)
    began = time.monotonic()
    with pytest.raises(errors.EndpointConnectionError):
        run.check(version, run.fresh())
    assert time.monotonic() - began < 15
    faulty.clear()
    run.check(run.publish(3), run.follower, run.fresh())


def test_what_is_never_seen_is_said_not_to_be_there(
    faulty: FaultyS3, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "UNSEEN_SECONDS", 1.0)
    run = start_run(patience=1.0)
    run.check(run.publish(0), run.follower)
    faulty.late(3600, "*/v1/*")
    version = run.publish(1)
    with pytest.raises(NotThere, match=r"v1\b"):
        run.check(version, run.follower)
    faulty.clear()
    run.check(PolicyVersion(0, version.uri[:-1] + "0", weights_digest(TRAINED[0])), run.follower, run.fresh())


def test_a_difference_that_is_always_damaged_is_torn_and_is_gone_round_where_there_is_another_way(
    faulty: FaultyS3, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "TORN_SECONDS", 1.0)
    run = start_run()
    run.check(run.publish(0), run.follower)
    faulty.damage("*/v1/difference", times=None)
    version = run.publish(1)
    for each in (run.follower, run.fresh()):
        with pytest.raises(Torn, match="difference"):
            run.check(version, each)
    version = run.publish(2)
    run.publisher.finish()  # v2-from-v0 is there, which does not need what is damaged
    run.check(version, run.follower, run.fresh())


@pytest.mark.parametrize("step", [5, 6, 7])
def test_a_manifest_that_comes_damaged_while_old_versions_are_removed_costs_nobody_his_way(
    step: int, faulty: FaultyS3, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "UNSEEN_SECONDS", 1.0)
    run = start_run(patience=1.0)
    for each in range(step):
        run.publish(each)
    run.publisher.finish()
    faulty.damage("*/v0/manifest.json")
    version = run.publish(step)
    run.publisher.finish()
    assert faulty.met("damage")
    run.check(version, run.fresh())


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_in_whatever_order_nobody_has_other_weights(
    seed: int, faulty: FaultyS3, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "TORN_SECONDS", 3.0)
    draws = random.Random(seed)
    run = start_run()
    slow = run.fresh()
    run.check(run.publish(0), run.follower, slow)
    faults: list[Callable[[], object]] = [
        lambda: faulty.slow_down(times=draws.randint(1, 4)),
        lambda: faulty.truncate(times=draws.randint(1, 4), share=draws.random()),
        lambda: faulty.leave_unanswered(times=draws.randint(1, 3)),
        lambda: faulty.damage(times=draws.randint(1, 2)),
        lambda: faulty.late(draws.random() / 2, times=draws.randint(1, 3)),
        lambda: faulty.away(draws.random(), draws.choice(["refuse", "hang", "503"])),
    ]
    met: list[StoreError] = []
    for step in range(1, 7):
        draws.choice(faults)()
        version = run.publish(step)
        for each in [run.follower, *([slow] if step % 4 == 0 else []), *([run.fresh()] if step % 3 == 0 else [])]:
            draws.choice(faults)()
            try:
                run.check(version, each)
            except StoreError as error:
                met.append(error)
    print("errors met:", met)
    faulty.clear()
    time.sleep(1.0)
    run.publisher.finish()
    version = run.publish(7)
    run.check(version, run.follower, slow, run.fresh())
