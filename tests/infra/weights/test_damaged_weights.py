"""Damaged versions: refused, gone round, and mended by the trainer."""

import json
from collections.abc import Callable

import pytest

from infra.storage import place as places
from infra.storage import store
from infra.storage.manifest import NotThere, Torn
from infra.weights.publisher import Publisher
from infra.weights.version import PolicyVersion, StaleBase, newest_version
from tests.infra.weights.versions import damage, fresh, publish_all, same, version

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data[:9] + b"!" + data[10:]], ids=["cut", "bit"]
)
def test_a_damaged_difference_is_refused_and_another_way_found(
    place: str, open_publisher: Callable[..., Publisher], change: Callable[[bytes], bytes]
) -> None:
    writer = open_publisher()
    done = publish_all(writer, range(9))  # 8 has a way of its own from 0
    follower = fresh(place)
    with follower.at(done[7].version):
        pass
    damage(done[8].version.uri, "difference", change)
    with follower.at(done[8].version) as weights:
        assert same(weights, version(8))
    for base in (0, 4, 6):
        if places.read((uri := f"{place}/weights/v8-from-v{base}") + "/difference"):
            damage(uri, "difference", change)
    reader = fresh(place)
    with pytest.raises(Torn, match="is torn: 'difference'"), reader.at(done[8].version):
        pass
    with reader.at(done[7].version) as weights:
        assert same(weights, version(7))


def test_a_difference_from_other_weights_is_refused(place: str, open_publisher: Callable[..., Publisher]) -> None:
    done = publish_all(open_publisher(), range(3))
    reader = fresh(place)
    with reader.at(done[1].version) as weights:
        weights["a"][0, 0] += 1  # what no honest reader does
    with reader.at(done[2].version) as found:  # noticed by its digest, and all is read anew
        assert same(found, version(2))
    uri = done[2].version.uri
    told = json.loads(places.read_text(f"{uri}/manifest.json"))["meta"]
    told["digest"] = "f" * 64
    with store.scratch(str(places.join(place, "other"))) as folder:
        (folder / "difference").write_bytes(places.read(f"{uri}/difference") or b"")
        store.write_folder(uri, folder, meta=told)
    with pytest.raises(StaleBase), fresh(place).at(PolicyVersion(2, uri, "f" * 64)):
        pass


def break_first(place: str, how: str) -> None:
    uri = f"{place}/weights/v0"
    if how == "weights":
        damage(uri, "model.safetensors", lambda data: data[:-1])
    elif how == "manifest":
        damage(uri, "manifest.json", lambda _: b"{")
    else:
        places.remove(uri)


@pytest.mark.parametrize("how", ["weights", "manifest", "removed"])
def test_a_trainer_that_begins_goes_round_a_damaged_first_version(
    place: str, open_publisher: Callable[..., Publisher], how: str
) -> None:
    publish_all(open_publisher(), range(6))
    break_first(place, how)
    writer = open_publisher()
    done = publish_all(writer, [5, 6])
    for each in done:
        with fresh(place).at(each.version) as weights:
            assert same(weights, version(each.version.step))


@pytest.mark.parametrize("how", ["weights", "manifest", "removed"])
def test_what_a_reader_found_damaged_is_mended_by_the_trainer(
    place: str, open_publisher: Callable[..., Publisher], how: str
) -> None:
    writer = open_publisher()
    newest = publish_all(writer, range(6))[-1].version
    break_first(place, how)
    reader = fresh(place)
    with pytest.raises((Torn, NotThere)) as refused, reader.at(newest):
        pass
    writer.mend(refused.value.damaged)
    with reader.at(newest) as weights:
        assert same(weights, version(5))
    for step in range(6, 11):  # and the ways of those who come later do not begin at what is damaged
        later = writer.publish(step, version(step)).version
        writer.finish()
        with fresh(place).at(later) as weights:
            assert same(weights, version(step))


def test_a_damaged_difference_that_is_the_version_itself_is_mended(
    place: str, open_publisher: Callable[..., Publisher]
) -> None:
    writer = open_publisher()
    newest = publish_all(writer, range(6))[-1].version
    damage(newest.uri, "manifest.json", lambda _: b"{")
    with pytest.raises(Torn) as refused, fresh(place).at(newest):
        pass
    assert refused.value.damaged == (newest.uri,)
    writer.mend(refused.value.damaged)
    with fresh(place).at(newest) as weights:
        assert same(weights, version(5))
    assert newest_version(place) == newest
