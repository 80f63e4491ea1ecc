"""Published weights on every kind of store: every way to a version ends with the bits that were published."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infra.storage.fence import Fence
from infra.storage.manifest import NotThere, Torn
from infra.weights import chain, mirror, publisher
from infra.weights.chain import read_edges
from infra.weights.difference import weights_digest
from infra.weights.mirror import Mirror, Prefetched
from infra.weights.publisher import Publisher
from infra.weights.version import Gone, PolicyVersion, SyncConfig, newest_version, published, published_version
from tests.infra.weights.versions import WINDOW, fresh, publish_all, same, version, version_id

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.slow
def test_whoever_follows_falls_behind_or_comes_anew_has_the_published_bits(
    place: str, open_publisher: Callable[..., Publisher]
) -> None:
    writer = open_publisher()
    followers = {every: fresh(place) for every in (1, 2, 5, 7)}
    for step in range(20):
        (done,) = publish_all(writer, range(step, step + 1))
        assert done.version == PolicyVersion(step, f"{place}/weights/v{step}", weights_digest(version(step)))
        for every, follower in followers.items():
            if step % every == 0:
                with follower.at(done.version) as weights:
                    assert same(weights, version(step))
                assert follower.take_fetched().bytes > 0
        with (late := fresh(place)).at(done.version) as weights:
            assert same(weights, version(step))
        assert json.loads((late.root / "config.json").read_text()) == {"model": "small"}
    assert done.changed < 0.02
    assert done.bytes * 5 < done.full
    assert followers[1].take_fetched().bytes == 0


@pytest.mark.slow
def test_what_is_kept_stays_small_and_the_way_short(place: str, open_publisher: Callable[..., Publisher]) -> None:
    writer = open_publisher()
    for step in range(35):
        publish_all(writer, range(step, step + 1))
        edges = read_edges(f"{place}/weights")
        assert len(edges) <= 14
        newest = version_id(step)
        way = chain.cheapest_chain(edges, newest)
        assert way is not None
        assert len(way) <= 5  # the first version, an anchor, and a difference for each of three bits
        for behind in range(max(0, step - WINDOW), step):
            short = chain.cheapest_chain(edges, newest, version_id(behind))
            assert short is not None
            assert short[0].base is not None
            assert sum(edge.bytes for edge in short) < way[0].bytes
    assert {0, 34, 33, 32, 31} <= set(published(place))
    assert newest_version(place) == PolicyVersion(34, f"{place}/weights/v34", newest.digest)


def test_a_new_trainer_goes_on_with_differences(place: str, open_publisher: Callable[..., Publisher]) -> None:
    publish_all(open_publisher(), range(6))
    again = open_publisher()
    (same_again,) = publish_all(again, range(5, 6))
    assert same_again.version == published_version(f"{place}/weights/v5")
    assert same_again.bytes == 0
    (after,) = publish_all(again, range(6, 7))
    assert after.changed < 0.02
    # one that was killed before it published what its checkpoint holds
    (skipped,) = publish_all(open_publisher(), range(8, 9))
    assert 0 < skipped.changed < 0.03
    assert not skipped.warnings
    with fresh(place).at(skipped.version) as weights:
        assert same(weights, version(8))


def test_a_future_that_was_left_is_gone(place: str, open_publisher: Callable[..., Publisher]) -> None:
    left = publish_all(open_publisher(), range(7))
    back = open_publisher()
    done = back.publish(4, version(4))
    assert done.bytes == 0
    assert published(place)[-1] == 4
    other = back.publish(5, version(5, seed=1))
    assert other.version != left[5].version
    with pytest.raises(Torn, match="holds other weights than were published as v5"), fresh(place).at(left[5].version):
        pass
    follower = fresh(place)
    with follower.at(done.version), follower.at(other.version) as weights:
        assert same(weights, version(5, seed=1))


def test_not_yet_and_not_any_more_are_told_apart(place: str, open_publisher: Callable[..., Publisher]) -> None:
    done = publish_all(open_publisher(), range(12))
    reader = fresh(place)
    with pytest.raises(Gone, match=r"weights/v3 was removed: the newest version is v11"), reader.at(done[3].version):
        pass
    missing = PolicyVersion(12, f"{place}/weights/v12", "0" * 64)
    with pytest.raises(NotThere, match=r"there is nothing whole that makes .*weights/v12, yet"), reader.at(missing):
        pass
    with reader.at(done[11].version) as weights:  # and neither did it harm
        assert same(weights, version(11))


def test_a_failed_publication_harms_no_later_one(
    place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_publisher()
    publish_all(writer, range(3))

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publisher.store, "write_folder", full)
        with pytest.raises(OSError, match="No space left"):
            writer.publish(3, version(3))
    assert published(place)[-1] == 2
    done = publish_all(writer, range(3, 6))
    with fresh(place).at(done[-1].version) as weights:
        assert same(weights, version(5))


@pytest.mark.slow
def test_what_fails_in_the_background_is_said_with_the_next_version_and_costs_no_bits(
    place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_publisher()
    publish_all(writer, range(2))

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "merge_differences", broken)
        publish_all(writer, range(2, 3))
    (done,) = publish_all(writer, range(3, 4))
    assert done.warnings == ("for those who are behind nothing shorter was stored: out of luck",)
    for step in range(4, 18):  # and in time there are short ways again
        (done,) = publish_all(writer, range(step, step + 1))
        with fresh(place).at(done.version) as weights:
            assert same(weights, version(step))
    way = chain.cheapest_chain(read_edges(f"{place}/weights"), done.version.id)
    assert way is not None
    assert len(way) <= 5


@pytest.mark.slow
def test_tensors_may_come_go_and_change_their_shape(place: str, open_publisher: Callable[..., Publisher]) -> None:
    writer = open_publisher()
    shapes: list[dict[str, Tensor]] = [
        {"a": torch.randn(6, 4), "b": torch.zeros(3)},
        {"a": torch.randn(6, 4), "b": torch.zeros(3), "c": torch.ones(5, dtype=torch.float16)},
        {"a": torch.randn(4, 6), "c": torch.ones(5, dtype=torch.bfloat16)},
        {"a": torch.randn(4, 6), "c": torch.tensor([float("nan"), -0.0, 0.0, float("inf"), 1e-40]).bfloat16()},
    ]
    follower = fresh(place)
    for step in range(20):
        weights = shapes[min(step, 3)] if step < 4 else {**shapes[3], "a": torch.full((4, 6), float(step))}
        done = writer.publish(step, weights)
        writer.finish()
        for reader in (follower, fresh(place)):
            with reader.at(done.version) as found:
                assert same(found, weights)


def test_a_version_is_brought_ahead_while_another_is_used(place: str, open_publisher: Callable[..., Publisher]) -> None:
    done = publish_all(open_publisher(), range(3))
    reader, session = fresh(place), Fence(place, 7)
    reader.prefetch(done[2].version, session)  # from nothing it brings nothing: nobody may need it
    with reader.at(done[1].version):
        reader.prefetch(done[2].version, session)
        assert reader.prefetched is None
    prefetched()
    assert reader.prefetched == Prefetched(done[2].version, session)
    before = reader.take_fetched().bytes
    with reader.at(done[2].version) as weights:
        assert same(weights, version(2))
    assert before > 0
    assert reader.take_fetched().bytes == 0


def test_what_is_here_and_free_is_had_now_and_nothing_else_is_waited_for(
    place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = publish_all(open_publisher(), range(3))
    reader, session = fresh(place), Fence(place, 7)
    with reader.at(done[1].version):
        pass
    reader.take_fetched()
    fetching, go_on, apply = threading.Event(), threading.Event(), mirror.apply_difference

    def slowly(*given: Any) -> None:
        fetching.set()
        assert go_on.wait(60)
        apply(*given)

    monkeypatch.setattr(mirror, "apply_difference", slowly)
    reader.prefetch(done[2].version, session)
    assert fetching.wait(60)
    for each in done:
        with reader.now(each.version) as weights:
            assert weights is None  # it is being written to
    assert (reader.prefetched, reader.take_fetched().bytes) == (None, 0)
    go_on.set()
    prefetched()
    with reader.now(done[1].version) as weights:
        assert weights is None
    with reader.now(done[2].version) as weights:
        assert weights is not None
        assert same(dict(weights), version(2))


def prefetched() -> None:
    """Wait for the prefetches that go on."""
    for thread in threading.enumerate():
        if thread.name == "weights":
            thread.join(90)


def test_who_is_not_wanted_any_more_waits_for_no_storage(tmp_path: Path) -> None:
    class GivenUpError(Exception):
        pass

    def check() -> None:
        raise GivenUpError

    reader = Mirror(str(tmp_path / "weights"), patience=60.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "UNSEEN_HERE_SECONDS", 60.0)
        with pytest.raises(GivenUpError), reader.at(PolicyVersion(1, str(tmp_path / "weights" / "v1"), "0"), check):
            pass


def test_an_anchor_comes_every_power_of_two() -> None:
    with pytest.raises(ValueError, match="24 is no power of two; take 16 or 32"):
        SyncConfig(anchor_every=24)
