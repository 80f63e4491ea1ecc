import csv
import gzip
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import httpx
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from infra.storage.files import PathError, open_texts
from infra.storage.usable import StorageError, named_storage_errors

MATH_1K = Path(__file__).parents[3] / "../shared/data/math_1k.csv"


def texts(pattern: str | Path) -> dict[str, str]:
    return {name: opened.read() for name, opened in open_texts(str(pattern))}


def refusal(pattern: str | Path) -> str:
    with pytest.raises(PathError) as error:
        texts(pattern)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.csv").write_text("b", encoding="utf-8")
    (tmp_path / "a.csv").write_text("a", encoding="utf-8")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress("ç".encode()))
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "d.csv").write_text("d", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.csv", {"a.csv": "a"}),
        ("c.csv.gz", {"c.csv.gz": "ç"}),
        ("*.csv", {"a.csv": "a", "b.csv": "b"}),
        ("*.csv*", {"a.csv": "a", "b.csv": "b", "c.csv.gz": "ç"}),
        ("[ab].csv", {"a.csv": "a", "b.csv": "b"}),
        ("**/*.csv", {"a.csv": "a", "b.csv": "b", "deeper/d.csv": "d"}),
    ],
)
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_local_files_come_in_the_order_of_their_names(
    folder: Path, prefix: str, pattern: str, expected: dict[str, str]
) -> None:
    found = texts(f"{prefix}{folder}/{pattern}")
    assert list(found.items()) == [(f"{folder}/{name}", text) for name, text in expected.items()]


def test_a_path_may_be_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert texts("deeper/*.csv") == {f"{folder}/deeper/d.csv": "d"}


def test_a_name_that_looks_like_a_pattern_is_a_name_first(folder: Path) -> None:
    (folder / "x[1].csv").write_text("itself", encoding="utf-8")
    (folder / "x1.csv").write_text("another", encoding="utf-8")
    assert list(texts(folder / "x[1].csv").values()) == ["itself"]


@pytest.mark.parametrize("name", ["x::y.csv", "file::y.csv", "-z.csv"])
def test_a_name_that_looks_like_one_thing_within_another_is_a_name_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("1")
    monkeypatch.chdir(tmp_path)
    for given in (name, str(tmp_path / name)):
        assert [(found, text.read()) for found, text in open_texts(given)] == [(str(tmp_path / name), "1")]


def test_line_ends_are_kept_and_a_byte_order_mark_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffa,b\r\n"c\r\nd",e\n'.encode())
    [(_, opened)] = open_texts(str(path))
    assert list(csv.reader(opened)) == [["a", "b"], ["c\r\nd", "e"]]


def test_memory_is_read_like_a_disk() -> None:
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe({"/test-files/b.csv": b"b", "/test-files/a.csv.gz": gzip.compress(b"a")})
        assert list(texts("memory://test-files/*")) == ["memory:///test-files/a.csv.gz", "memory:///test-files/b.csv"]
        assert texts("memory://test-files/a.csv.gz") == {"memory:///test-files/a.csv.gz": "a"}
        assert "is a folder" in refusal("memory://test-files")
    finally:
        memory.rm("/test-files", recursive=True)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("none.csv", "no such file"),
        ("*.parquet", "no such file, and no file matches it as a pattern"),
        ("a.cvs", "no such file; did you mean a.csv?"),
        ("nowhere/*.csv", "no such file"),
        ("a.csv/b.csv", "no such file"),
        ("deeper", "is a folder; name its files, such as"),
        ("deeper/", "deeper/*.csv"),
        ("folder*", "matches only folders"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_what_is_not_there_is_named(folder: Path, pattern: str, says: str) -> None:
    message = refusal(f"{folder}/{pattern}")
    assert message.startswith(f"{folder}/{pattern}: ")
    assert says in message


@pytest.mark.parametrize("pattern", ["", "  ", "a\0.csv"])
def test_what_is_no_path_is_refused(pattern: str) -> None:
    assert refusal(pattern).startswith(f"{pattern!r} is no path")


def test_an_unknown_protocol_is_named() -> None:
    assert re.fullmatch(r"s4://a/b\.csv: Protocol not known: s4; use .*", refusal("s4://a/b.csv"))


@pytest.mark.slow
def test_the_extra_that_brings_s3_is_named() -> None:
    program = """if True:
        import sys
        sys.modules["s3fs"] = None  # what import finds where the package is not installed
        from infra.storage.files import PathError, open_texts
        try:
            list(open_texts("s3://bucket/a.csv"))
        except PathError as refusal:
            print(refusal)
    """
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"s3://bucket/a\.csv: .* pip install 'rlvf\[s3\]'\n", run.stdout)


def test_a_file_without_permission_is_named(folder: Path) -> None:
    (folder / "a.csv").chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        assert refusal(folder / "a.csv").endswith("permission denied; check the rights on it, or the credentials")
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    "content",
    [b"plain,text\n", gzip.compress(b"cut off" * 99)[:-9], b"\x1f\x8b\x08" + b"\0" * 7 + b"\xff" * 50],
    ids=["not compressed", "cut off", "broken"],
)
def test_a_file_that_is_not_as_compressed_as_its_name_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}: not the compressed file that its name promises")


def test_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b\n1,one\n2,z\xfcrich\n")
    assert refusal(path).startswith(f"{path}: line 3: not UTF-8 text")


@pytest.mark.skipif(not MATH_1K.exists(), reason="real problems are not there: ../shared/data/math_1k.csv")
def test_a_file_that_others_wrote() -> None:
    [(_, opened)] = open_texts(str(MATH_1K))
    assert len(list(csv.reader(opened, strict=True))) == 1001


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket on an S3 API of this process, which keeps its buckets from one server to the next."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the endpoint that it was made with
    name = f"problems-{uuid4()}"
    s3fs.S3FileSystem().mkdir(name)
    try:
        yield name
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


@pytest.mark.slow
def test_objects_are_read_and_new_ones_are_seen(bucket: str) -> None:
    s3fs.S3FileSystem().pipe(
        {f"{bucket}/set/b.csv": b"b", f"{bucket}/set/a.csv.gz": gzip.compress(b"a"), f"{bucket}/other.csv": b"o"}
    )
    assert texts(f"s3://{bucket}/set/b.csv") == {f"s3://{bucket}/set/b.csv": "b"}
    assert list(texts(f"s3://{bucket}/set/*").items()) == [
        (f"s3://{bucket}/set/a.csv.gz", "a"),
        (f"s3://{bucket}/set/b.csv", "b"),
    ]
    somebody_else = s3fs.S3FileSystem(skip_instance_cache=True)
    somebody_else.pipe(f"{bucket}/set/c.csv", b"c")
    assert list(texts(f"s3://{bucket}/set/*.csv").values()) == ["b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("{bucket}/none.csv", "no such file"),
        ("{bucket}/*.parquet", "no such file"),
        ("{bucket}-of-nobody/*.csv", "no such file"),
        ("{bucket}/set", "is a folder"),
        ("{bucket}", "is a folder"),
    ],
)
def test_objects_that_are_not_there_are_named(bucket: str, path: str, says: str) -> None:
    s3fs.S3FileSystem().pipe(f"{bucket}/set/b.csv", b"b")
    assert says in refusal(f"s3://{path.format(bucket=bucket)}")


def test_storage_that_cannot_be_reached_is_said(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, and nobody listens
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        s3fs.S3FileSystem.clear_instance_cache()
        assert "Could not connect to the endpoint" in refusal(f"s3://{bucket}/*.csv")


def test_a_server_that_is_not_there_is_no_missing_file() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        said = refusal(f"http://127.0.0.1:{deaf.getsockname()[1]}/x.csv")
    assert "cannot be reached: Cannot connect" in said
    assert "no such file" not in said


class Away(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A file system that fails as its library does, which raises no OSError."""

    protocol = "away"
    fault: Exception = httpx.ConnectError("the hub is away")

    def info(self, _path: str, **_: object) -> None:
        raise self.fault


def test_what_a_librarys_file_system_raises_is_one_line_and_our_own_mistakes_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec.register_implementation("away", Away, clobber=True)
    assert refusal("away://x/y.csv") == "away://x/y.csv: cannot be read: the hub is away"
    with (
        pytest.raises(StorageError, match=r"^away://runs: cannot be used: the hub is away$"),
        named_storage_errors("away://runs"),
    ):
        raise httpx.ConnectError("the hub is away")
    monkeypatch.setattr(Away, "fault", TypeError("a mistake"))
    with pytest.raises(TypeError):
        next(open_texts("away://x/y.csv"))
    with pytest.raises(TypeError), named_storage_errors("away://runs"):
        raise TypeError("a mistake")


@pytest.mark.slow
def test_missing_credentials_are_said(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    assert "Unable to locate credentials" in refusal(f"s3://{bucket}/*.csv")
