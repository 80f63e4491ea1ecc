"""What does not come whole on its way."""

import os
import uuid
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from infra.storage import store
from infra.storage.manifest import Torn
from tests.infra.storage.folders import FILES, content, fill


@pytest.mark.parametrize("cut", [1, 2])
def test_what_is_cut_off_on_its_way_once_is_fetched_again(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that closes early ends no file with an error. What is short twice is stored so."""
    uri, left = f"memory://{uuid.uuid4().hex}/v1", [cut]
    store.write_folder(uri, fill(tmp_path / "source", FILES))
    whole = MemoryFileSystem.get_file

    def get_file(fs: MemoryFileSystem, path: str, to: str, **options: object) -> None:
        whole(fs, path, to, **options)
        if left[0] and Path(to).name == "model.safetensors":
            left[0] -= 1
            os.truncate(to, 0)

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_file)
    if cut == 1:
        with store.read_folder(uri) as folder:
            assert content(folder.path) == FILES
    else:
        with pytest.raises(Torn, match=r"model\.safetensors"):
            store.read_folder(uri)
