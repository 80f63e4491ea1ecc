"""Weights that are those of adapters: whole, they lie where peft looks for them."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from infra.runs.remains import CheckpointsLostError, refuse_to_begin_anew
from infra.storage.manifest import Torn
from infra.weights.publisher import Publisher
from infra.weights.version import newest_version
from infra.weights.whole import files_digest
from tests.infra.weights.versions import CONFIG, WINDOW, fresh, publish_all, same, version


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_they_are_published_and_read_bit_for_bit(tmp_path: Path, files: Path) -> None:
    publisher = Publisher(str(tmp_path / "run"), CONFIG, window=WINDOW, files=files)
    publish_all(publisher, range(12))
    publisher.close()
    newest = newest_version(str(tmp_path / "run"))
    assert newest is not None
    with fresh(str(tmp_path / "run")).at(newest) as found:
        assert same(dict(found), version(11))
    whole = [file.parent for file in (tmp_path / "run" / "weights").rglob("adapter_model.safetensors")]
    assert whole
    assert not list((tmp_path / "run").rglob("model.safetensors"))
    first = min(whole, key=lambda folder: int(folder.name[1:].partition("-")[0]))
    assert same(load_file(first / "adapter_model.safetensors"), version(int(first.name[1:].partition("-")[0])))
    (first / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(Torn, match=r"adapter_model\.safetensors"), fresh(str(tmp_path / "run")).at(newest):
        pass


def test_the_digest_of_what_lies_beside_them_leaves_them_out(files: Path) -> None:
    before = files_digest(files)
    (files / "adapter_model.safetensors").write_bytes(b"any")
    assert files_digest(files) == before


def test_a_new_run_is_not_sent_to_start_from_them(tmp_path: Path, files: Path) -> None:
    publisher = Publisher(str(tmp_path / "run"), CONFIG, window=WINDOW, files=files)
    publish_all(publisher, range(1, 3))
    publisher.close()
    with pytest.raises(CheckpointsLostError, match="which --policy does not take"):
        refuse_to_begin_anew(str(tmp_path / "run"), [])
