"""Folders at a URI: what was written is what is read, or a clear error."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from fsspec.core import url_to_fs

from infra.storage import manifest, store
from infra.storage import place as places
from infra.storage.manifest import NotThere, Torn
from tests.infra.storage.folders import FILES, content, everything, fill


def put(uri: str, data: bytes) -> None:
    fs, root = url_to_fs(uri)
    fs.pipe_file(root, data)


def test_a_folder_comes_back_as_it_was_written(place: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", FILES)
    written = store.write_folder(f"{place}/v1", source, meta={"step": 1, "loss": 0.1})
    with store.read_folder(f"{place}/v1") as folder:
        assert content(folder.path) == FILES
        assert folder.manifest == written
        assert folder.manifest.meta == {"step": 1, "loss": 0.1}
        assert folder.manifest.files["config.json"].bytes == 2
    assert folder.path.exists() != folder.temporary
    assert content(source) == FILES


def test_a_local_folder_is_read_where_it_lies(tmp_path: Path) -> None:
    store.write_folder(f"file://{tmp_path}/v1", fill(tmp_path / "source", FILES))
    folder = store.read_folder(f"file://{tmp_path}/v1")
    assert (folder.path, folder.temporary) == (tmp_path / "v1", False)


def test_into_becomes_a_copy_and_is_fetched_once(place: str, tmp_path: Path) -> None:
    into = tmp_path / "cache" / "current"
    for number, files in enumerate([FILES, {"other.bin": b"1"}]):
        store.write_folder(f"{place}/v{number}", fill(tmp_path / f"source{number}", files))
        assert store.read_folder(f"{place}/v{number}", into).path == into
        assert content(into) == files
        before = into.stat().st_ino
        store.read_folder(f"{place}/v{number}", into)
        assert into.stat().st_ino == before
    (into / "other.bin").write_bytes(b"2")
    store.read_folder(f"{place}/v1", into)
    assert content(into) == {"other.bin": b"1"}
    assert [path.name for path in into.parent.iterdir()] == ["current"]


def test_into_never_replaces_something_else(tmp_path: Path) -> None:
    store.write_folder(str(tmp_path / "v1"), fill(tmp_path / "source", FILES))
    home = fill(tmp_path / "home", {"thesis.tex": b"ten years"})
    with pytest.raises(ValueError, match=r"home is no copy of a stored folder and not empty"):
        store.read_folder(str(tmp_path / "v1"), home)
    assert content(home) == {"thesis.tex": b"ten years"}


def test_moving_gives_the_source_away(place: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", FILES)
    node = (source / "model.safetensors").stat().st_ino
    store.write_folder(f"{place}/v1", source, move=True)
    assert not source.exists()
    with store.read_folder(f"{place}/v1") as folder:
        assert content(folder.path) == FILES
        if places.local_path(place):
            assert (folder.path / "model.safetensors").stat().st_ino == node


def test_moving_between_file_systems_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = fill(tmp_path / "source", FILES)
    rename = Path.rename

    def other_device(self: Path, target: Path) -> Path:
        if source in self.parents:
            raise OSError(18, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", other_device)
    store.write_folder(str(tmp_path / "v1"), source, move=True)
    assert not source.exists()
    assert content(store.read_folder(str(tmp_path / "v1")).path) == FILES


def test_writing_the_same_again_changes_nothing_and_something_else_replaces(place: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", FILES)
    store.write_folder(f"{place}/v1", source, meta={"step": 1})
    fs, root = url_to_fs(f"{place}/v1/model.safetensors")
    before = fs.modified(root)
    store.write_folder(f"{place}/v1", source, meta={"step": 1})
    fs.invalidate_cache()
    assert fs.modified(root) == before
    store.write_folder(f"{place}/v1", fill(tmp_path / "other", {"one": b"1"}))
    with store.read_folder(f"{place}/v1") as folder:
        assert content(folder.path) == {"one": b"1"}
    assert everything(place) == ["v1/manifest.json", "v1/one"]


def test_writing_the_same_again_mends_what_is_torn(place: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", FILES)
    store.write_folder(f"{place}/v1", source)
    put(f"{place}/v1/model.safetensors", b"WEIGHTS" * 1000)
    with pytest.raises(Torn):
        store.read_folder(f"{place}/v1")
    store.write_folder(f"{place}/v1", source)
    with store.read_folder(f"{place}/v1") as folder:
        assert content(folder.path) == FILES


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        ("model.safetensors", None, "'model.safetensors' is missing"),
        ("nested/deep/tokens.txt", None, "'nested/deep/tokens.txt' is missing"),
        ("model.safetensors", lambda data: data[:-1], "'model.safetensors' has 6999 bytes, its manifest says 7000"),
        ("empty", lambda data: data + b"x", "'empty' has 1 bytes, its manifest says 0"),
        ("model.safetensors", lambda data: b"W" + data[1:], "'model.safetensors' does not match the digest"),
        ("manifest.json", lambda data: data[:-9], "manifest.json cannot be read: Invalid JSON"),
    ],
)
def test_what_is_torn_is_refused_by_name(
    place: str, tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None, why: str
) -> None:
    store.write_folder(f"{place}/v1", fill(tmp_path / "source", FILES), meta={"step": 7})
    fs, root = url_to_fs(f"{place}/v1/{name}")
    if damage is None:
        fs.rm_file(root)
    else:
        before = fs.cat_file(root)
        assert damage(before) != before
        fs.pipe_file(root, damage(before))
    with pytest.raises(Torn) as raised:
        store.read_folder(f"{place}/v1")
    with pytest.raises(Torn):
        store.read_folder(f"{place}/v1", tmp_path / "into")
    assert why in str(raised.value)
    assert str(raised.value).startswith(f"{place}/v1 is torn: ")
    assert "\n" not in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (Torn, str(raised.value))
    assert not (tmp_path / "into").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda _: b"", "manifest.json cannot be read: Invalid JSON"),
        (lambda _: b"\xff\x00", "manifest.json cannot be read: Invalid JSON"),
        (lambda _: b"[" * 100_000, "manifest.json cannot be read: Invalid JSON"),
        (lambda _: b"[]", "manifest.json cannot be read: Input should be an object"),
        (lambda _: b"{}", "manifest.json cannot be read: 'files': Field required"),
        (lambda data: data.replace(b'"format": 1', b'"format": 2'), "'format': Input should be 1"),
        (lambda data: data.replace(b'"bytes": 7000', b'"bytes": 7001'), "its own digest"),
        (lambda data: data.replace(b'"step": 7', b'"step": 8'), "its own digest"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes], why: str) -> None:
    store.write_folder(str(tmp_path / "v1"), fill(tmp_path / "source", FILES), meta={"step": 7})
    path = tmp_path / "v1" / "manifest.json"
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    with pytest.raises(Torn) as raised:
        store.read_folder(str(tmp_path / "v1"))
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_a_manifest_nothing_is_there(place: str, tmp_path: Path) -> None:
    store.write_folder(f"{place}/v1", fill(tmp_path / "source", FILES))
    fs, root = url_to_fs(f"{place}/v1/manifest.json")
    fs.rm_file(root)
    for uri in (f"{place}/v1", f"{place}/v2", f"{place}/v1/config.json"):
        with pytest.raises(NotThere, match=r"has no manifest\.json") as raised:
            store.read_folder(uri)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert store.versions(place, "v") == []


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "a/../../secret", "", ".", "..", "a//b", "./a", "a/", "manifest.json", "a\\b", "a\0"],
)
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"key")
    (tmp_path / "v1").mkdir()
    entries = {name: manifest.Entry("0" * 64, 3)}
    said = manifest.Manifest(entries, {}, manifest._digest(entries, {}))
    (tmp_path / "v1" / "manifest.json").write_bytes(manifest.render(said))
    with pytest.raises(Torn, match=r"is torn: manifest.json names .*, which is no file inside the folder"):
        store.read_folder(str(tmp_path / "v1"), tmp_path / "into")


def test_what_cannot_be_stored_is_refused_before_anything_is_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no file to store"):
        store.write_folder(f"{place}/v1", tmp_path / "empty")
    with pytest.raises(ValueError, match="which is no file inside the folder"):
        store.write_folder(f"{place}/v1", fill(tmp_path / "odd", {"a\\b": b""}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.write_folder(f"{place}/v1", fill(tmp_path / "nan", FILES), meta={"loss": float("nan")})
    with pytest.raises(ValueError, match="not JSON serializable"):
        store.write_folder(f"{place}/v1", tmp_path / "nan", meta={"path": tmp_path})  # type: ignore[dict-item]
    assert not places.exists(place)


def test_a_stored_folder_can_be_written_elsewhere(tmp_path: Path, place: str) -> None:
    first = store.write_folder(str(tmp_path / "v1"), fill(tmp_path / "source", FILES), meta={"step": 1})
    folder = store.read_folder(str(tmp_path / "v1"))
    assert store.write_folder(f"{place}/v1", folder.path, meta=folder.manifest.meta).digest == first.digest


def test_versions_are_numbers_in_order_and_junk_is_passed_over(place: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"a": b"1"})
    assert store.versions(place, "v") == []
    for name in ("v999", "v1000", "v007", "v0", "12", "v", "v-1", "v1.5", "v12 (copy)", "w3", "v٣", "xv4", "v5/v6"):
        store.write_folder(f"{place}/{name}", source)
    put(f"{place}/v13", b"a file")
    put(f"{place}/v14", b"")
    if places.local_path(place):
        (places.local_path(place) / "v15").mkdir()
    assert store.versions(place, "v") == [0, 7, 999, 1000]
    assert store.versions(place + "/", "v") == [0, 7, 999, 1000]
    assert store.versions(place) == [12]


def test_a_listing_is_never_stale(s3: str, s3_client: Any, tmp_path: Path) -> None:
    """What another process has put or deleted is seen at once, though s3fs remembers listings."""
    store.write_folder(f"{s3}/run/v1", fill(tmp_path / "source", {"a": b"1"}))
    assert store.versions(f"{s3}/run", "v") == [1]
    bucket = urlparse(s3).netloc
    for name in ("a", "manifest.json"):
        s3_client.copy_object(Bucket=bucket, Key=f"run/v2/{name}", CopySource=f"{bucket}/run/v1/{name}")
    assert store.versions(f"{s3}/run", "v") == [1, 2]
    with store.read_folder(f"{s3}/run/v2") as folder:
        assert content(folder.path) == {"a": b"1"}
    s3_client.delete_object(Bucket=bucket, Key="run/v1/manifest.json")
    assert store.versions(f"{s3}/run", "v") == [2]
    assert not places.exists(f"{s3}/run/v1/manifest.json")


@pytest.mark.usefixtures("s3")
def test_no_bucket_is_made_by_mistake(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.write_folder("s3://mistyped/v1", fill(tmp_path / "source", FILES))
    assert store.versions("s3://mistyped", "v") == []


def test_pruning_keeps_what_it_is_told(place: str, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"a": b"1", "b/c": b"2"})
    for number in (998, 999, 1000, 1001, 1002):
        store.write_folder(f"{place}/v{number}", source)
    store.write_folder(f"{place}/other3", source)
    for torn in (998, 1002):
        fs, root = url_to_fs(f"{place}/v{torn}/manifest.json")
        fs.rm_file(root)
    store.prune(place, keep={1000, 1001}, prefix="v")
    left = ["other3", "v1000", "v1001", "v1002"]  # 1002 may be being written
    assert sorted({file.split("/")[0] for file in everything(place)}) == left
    if (path := places.local_path(place)) is not None:
        assert sorted(child.name for child in path.iterdir()) == left
    store.prune(place, keep=[], prefix="v")
    assert store.versions(place, "v") == []
    store.prune(f"{place}/nothing", keep=[1])


def test_texts(place: str) -> None:
    with pytest.raises(NotThere, match=r"there is no .*config\.yaml"):
        places.read_text(f"{place}/config.yaml")
    assert not places.exists(f"{place}/config.yaml")
    for text in ("steps: 1\r\n", "naïve ∑\n", ""):
        places.write_text(f"{place}/config.yaml", text)
        assert places.read_text(f"{place}/config.yaml") == text
    assert places.exists(f"{place}/config.yaml")
    assert places.exists(place)
    assert everything(place) == ["config.yaml"]


def test_the_local_path_of_a_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert places.local_path("runs/a") == tmp_path / "runs" / "a"
    assert places.local_path("~/runs/a#1") == Path("/home/someone/runs/a#1")
    assert places.local_path("file:///data/run") == Path("/data/run")
    assert places.local_path("s3://bucket/run") is None
    assert places.local_path("simplecache::s3://bucket/run") is None
