"""Folders whose writer dies, whose reader is overtaken, whose bytes are damaged: whole, or a clear error."""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from infra import disk
from infra.storage import manifest, store
from infra.storage import place as places
from infra.storage.manifest import NotThere, StoreError, Torn
from tests.infra.storage.folders import FILES, content, everything, fill


def test_pruning_sweeps_what_dead_writers_left_and_spares_the_living(tmp_path: Path) -> None:
    place = tmp_path / "state"
    script = "import os, sys; from pathlib import Path; from infra import disk\n"
    script += "with disk.temporary_beside(Path(sys.argv[1])) as made:\n (made / 'a').touch(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, place / "12"], check=False)
    (place / ".note.tmp").touch()
    (place / ".12.01234567.tmp").touch()  # no folder: not ours
    (left,) = [path for path in place.iterdir() if path.is_dir()]
    with disk.temporary_beside(place / "13") as living:
        store.prune(str(place), keep=[12])
        assert living.is_dir()
    assert not left.exists()
    assert sorted(path.name for path in place.iterdir()) == [".12.01234567.tmp", ".note.tmp"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store.write_folder(str(tmp_path / "run" / "v1"), fill(tmp_path / "source", FILES))
    places.write_text(str(tmp_path / "run" / "note"), "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write_folder(str(tmp_path / "run" / "v1"), fill(tmp_path / "other", {"a": b"1"}))
    with pytest.raises(OSError, match="No space"):
        places.write_text(str(tmp_path / "run" / "note"), "new")
    assert content(store.read_folder(str(tmp_path / "run" / "v1")).path) == FILES
    assert places.read_text(str(tmp_path / "run" / "note")) == "old"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["note", "v1"]


@pytest.mark.slow
def test_a_reader_beside_a_writer_sees_one_or_the_other(tmp_path: Path) -> None:
    """Never a mixture, though the writer replaces the folder all the time."""
    uri = str(tmp_path / "run" / "v1")
    both = [{"a": bytes([kind]) * 100_000, "b": bytes([kind]) * 1000} for kind in (1, 2)]
    sources = [fill(tmp_path / f"source{kind}", files) for kind, files in enumerate(both)]
    store.write_folder(uri, sources[0])
    finished = threading.Event()

    def write() -> None:
        for turn in range(1, 100):
            store.write_folder(uri, sources[turn % 2], meta={"turn": turn})
        finished.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not finished.is_set():
        try:
            seen.append(content(store.read_folder(uri, tmp_path / "copy").path))
        except NotThere:
            continue
    writer.join()
    assert len(seen) > 3
    assert all(found in both for found in seen)


def test_a_reader_that_is_overtaken_reads_what_came_or_says_that_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "run" / "v1")
    store.write_folder(uri, fill(tmp_path / "old", {"a": b"1", "b": b"1"}))
    new = fill(tmp_path / "new", {"a": b"2"})
    take = disk.take

    def overtake(happens: Callable[[], object]) -> None:
        def overtaken(source: Path, target: Path, move: bool) -> None:
            monkeypatch.setattr(disk, "take", take)
            happens()
            take(source, target, move)

        monkeypatch.setattr(disk, "take", overtaken)

    overtake(lambda: store.write_folder(uri, new))
    assert content(store.read_folder(uri, tmp_path / "copy").path) == {"a": b"2"}
    overtake(lambda: store.prune(str(tmp_path / "run"), keep=[], prefix="v"))
    with pytest.raises(NotThere):
        store.read_folder(uri, tmp_path / "other")


class Frail(MemoryFileSystem):
    """A store whose writer dies: after `left` changes every further one raises."""

    protocol = "frail"
    store: dict[str, object] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    left = 0
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("frail://"))

    def _spend(self) -> None:
        Frail.left -= 1
        if Frail.left < 0:
            raise InterruptedError("the writer is dead")

    def rm_file(self, path: str) -> None:
        self._spend()
        self._rm(path)

    def put_file(self, lpath: str, rpath: str, **_: object) -> None:
        data = Path(lpath).read_bytes()
        for piece in (data[: len(data) // 2], data):  # a store may show half of a file
            self._spend()
            super().pipe_file(rpath, piece)

    def pipe_file(self, path: str, value: bytes, **_: object) -> None:
        self._spend()
        super().pipe_file(path, value)


@pytest.fixture
def frail() -> str:
    fsspec.register_implementation("frail", Frail, clobber=True)
    return f"frail://{uuid.uuid4().hex}"


def test_a_writer_that_dies_at_any_moment_leaves_the_old_the_new_or_nothing(frail: str, tmp_path: Path) -> None:
    new = {name: data.upper() for name, data in FILES.items()}
    old_source, new_source = fill(tmp_path / "old", FILES), fill(tmp_path / "new", new)
    outcomes = []
    for moment in range(100):
        uri = f"{frail}/{moment}"
        Frail.left = 1000
        store.write_folder(uri, old_source)
        Frail.left = moment
        try:
            store.write_folder(uri, new_source)
            died = False
        except InterruptedError:
            died = True
        try:
            with store.read_folder(uri) as folder:
                outcomes.append({True: "old", False: "new"}[content(folder.path) == FILES])
                assert content(folder.path) in (FILES, new)
        except NotThere:
            outcomes.append("nothing")
        if not died:
            break
    # every file is removed once and put in two pieces, and so is, in one, the manifest
    assert outcomes == ["old", *["nothing"] * (3 * len(FILES) + 1), "new"]


def test_a_pruning_that_dies_at_any_moment_leaves_nothing_torn(frail: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", FILES)
    for moment in range(2 * (len(FILES) + 1) + 1):
        place = f"{frail}/{moment}"
        Frail.left = 1000
        for number in (1, 2, 3):
            store.write_folder(f"{place}/v{number}", source)
        Frail.left = moment
        try:
            store.prune(place, keep=[3], prefix="v")
        except InterruptedError:
            left = store.versions(place, "v")
            assert left == [number for number in (1, 2, 3) if number == 3 or moment <= (number - 1) * (len(FILES) + 1)]
            for number in left:
                with store.read_folder(f"{place}/v{number}") as folder:
                    assert content(folder.path) == FILES
    Frail.left = 1000
    store.prune(place, keep=[3], prefix="v")
    assert {file.split("/")[0] for file in everything(place)} == {"v3"}


names = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/\\"), min_size=1, max_size=20)
safe_names = names.filter(lambda name: name not in {".", "..", "manifest.json"} and len(name.encode()) < 100)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(safe_names, st.binary(max_size=100), min_size=1, max_size=4),
    st.dictionaries(st.text(), json_values),
)
def test_any_files_and_any_meta_come_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], meta: dict[str, object]
) -> None:
    place = tmp_path_factory.mktemp("any")
    source = place / "source"
    source.mkdir()
    for name, data in files.items():
        (source / name).write_bytes(data)
    kept = content(source)  # a file system that ignores case keeps fewer
    for uri in (str(place / "v1"), f"memory://{uuid.uuid4().hex}/v1"):
        store.write_folder(uri, source, meta=meta)
        with store.read_folder(uri) as folder:
            assert content(folder.path) == kept
            assert folder.manifest.meta == meta


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stored")
    store.write_folder(str(place / "v1"), fill(place / "source", {"a": b"some bytes", "b": b"more"}), meta={"step": 3})
    return place / "v1"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_after_any_damage_what_is_read_is_what_was_written(stored: Path, data: st.DataObject) -> None:
    before = {path: path.read_bytes() for path in stored.iterdir()}
    written = store.read_folder(str(stored)).manifest
    path = data.draw(st.sampled_from(sorted(before)))
    where = data.draw(st.integers(0, len(before[path]) - 1))
    cut = data.draw(st.sampled_from(["flip", "truncate", "insert"]))
    rest = {"flip": bytes([before[path][where] ^ data.draw(st.integers(1, 255))]) + before[path][where + 1 :]}
    rest |= {"truncate": b"", "insert": data.draw(st.binary(min_size=1, max_size=9)) + before[path][where:]}
    try:
        path.write_bytes(before[path][:where] + rest[cut])
        folder = store.read_folder(str(stored))
        assert path.name == "manifest.json"  # where a blank may differ
        assert folder.manifest == written
    except Torn:
        pass
    finally:
        path.write_bytes(before[path])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_garbage_passes_for_a_manifest(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"^cannot be read: [^\n]+$"):
        manifest.parse(garbage)


def written_while_it_goes(run: Path, by: str) -> None:
    with store.scratch(str(run)) as folder:
        run.rename(run.with_name("away"))
        if by == "open":
            (folder / "a").write_text("a")
        else:
            save_file({"a": np.ones(3)}, folder / "a.safetensors")


@pytest.mark.parametrize("by", ["safetensors", "open"])
def test_files_of_a_folder_that_went_away_are_not_called_damaged(tmp_path: Path, by: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(StoreError, match=f"{run} was removed while it was written, or its disk is no longer there"):
        written_while_it_goes(run, by)


def fails_behind_a_move(run: Path) -> None:
    with store.scratch(str(run)) as folder:
        folder.rename(run / "whole")
        raise ValueError("another")


def test_what_fails_beside_files_that_were_moved_to_their_place_is_said_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another"):
        fails_behind_a_move(tmp_path / "run")
