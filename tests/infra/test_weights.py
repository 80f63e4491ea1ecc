"""Published weights on every kind of store: whole, immutable, found by number, gone when pruned."""

from pathlib import Path

import pytest

from infra import store, weights
from infra.store import NotThere, Torn


def made(tmp_path: Path, text: str) -> Path:
    """A folder such as a trainer publishes."""
    folder = tmp_path / f"made-{text}"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(text * 100)
    (folder / "deep" / "config.json").write_text(f"{{{text}}}")
    return folder


def test_what_is_fetched_is_what_was_published(place: str, tmp_path: Path) -> None:
    version = weights.publish(place, 3, made(tmp_path, "three"))
    assert (version.step, version.uri, str(version)) == (3, f"{place}/weights/v3", "v3")
    with weights.fetch(version) as folder:
        assert (folder.path / "model.safetensors").read_text() == "three" * 100
        assert (folder.path / "deep" / "config.json").read_text() == "{three}"


def test_publishing_the_same_again_is_the_same_version(place: str, tmp_path: Path) -> None:
    first = weights.publish(place, 1, made(tmp_path, "one"))
    source = made(tmp_path, "one")
    assert weights.publish(place, 1, source, move=True) == first
    assert not source.exists()
    with weights.fetch(first):
        pass


def test_a_version_made_anew_with_other_weights_is_not_taken_for_the_old_one(place: str, tmp_path: Path) -> None:
    old = weights.publish(place, 1, made(tmp_path, "old"))
    new = weights.publish(place, 1, made(tmp_path, "new"))
    assert new != old
    with pytest.raises(Torn, match="holds other weights than were published as v1"):
        weights.fetch(old)
    with weights.fetch(new) as folder:
        assert (folder.path / "model.safetensors").read_text() == "new" * 100


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    version = weights.publish(str(tmp_path / "run"), 1, made(tmp_path, "one"))
    (Path(version.uri) / "model.safetensors").write_text("two" * 100)
    with pytest.raises(Torn, match=r"model\.safetensors"):
        weights.fetch(version)


def test_the_newest_is_found_by_number_and_only_when_whole(place: str, tmp_path: Path) -> None:
    assert weights.newest_version(place) is None
    published = {step: weights.publish(place, step, made(tmp_path, f"w{step}")) for step in (9, 999, 1000)}
    store.write_text(f"{place}/weights/v1001/model.safetensors", "no manifest yet")
    assert weights.published(place) == [9, 999, 1000]
    assert weights.newest_version(place) == published[1000]


def test_pruning_keeps_what_is_named(place: str, tmp_path: Path) -> None:
    published = {step: weights.publish(place, step, made(tmp_path, f"w{step}")) for step in range(4)}
    weights.prune(place, keep=range(2, 4))
    assert weights.published(place) == [2, 3]
    with pytest.raises(NotThere):
        weights.fetch(published[1])
    with weights.fetch(published[2]):
        pass
