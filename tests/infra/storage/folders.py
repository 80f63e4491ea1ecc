"""Folders to store."""

from pathlib import Path

from fsspec.core import url_to_fs

from infra.storage.manifest import MANIFEST

FILES = {"model.safetensors": b"weights" * 1000, "config.json": b"{}", "empty": b"", "nested/deep/tokens.txt": b"a b"}


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def everything(uri: str) -> list[str]:
    """The names of all files under `uri`, whatever they are."""
    fs, root = url_to_fs(uri)
    fs.invalidate_cache()
    return sorted(file.removeprefix(root).lstrip("/") for file in fs.find(root))
