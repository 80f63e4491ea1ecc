"""Models that cannot be loaded are refused, wherever they are looked for."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start import model_files
from flows.start.model_files import Found, ModelFilesError, find_model
from flows.start.preflight import check_model
from tests.conftest import free_port
from tests.flows.start.model_hub import Hub, use_hub

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model in Hugging Face layout."""
    import torch

    from rl.model.policy import Policy, save_policy
    from rl.model.tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed=0)
    folder = tmp_path_factory.mktemp("saved")
    save_policy(Policy(model, tokenizer, torch.device("cpu"), torch.float32), folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(saved, tmp_path / "model")


def reason(model: Path | str) -> str:
    """Why `rlvf train` refuses it."""
    with pytest.raises(ValueError, match=r"^policy\.model ") as refused:
        check_model(str(model), "runs")
    said = str(refused.value)
    assert "\n" not in said
    return said.removeprefix(f"policy.model {str(model)!r}: ")


def in_cache(cache: Path, model: str, files: Path) -> Path:
    """The folder where a download of the model would have put it."""
    home = cache / f"models--{model.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    return shutil.copytree(files, home / "snapshots" / "abc")


def shard(folder: Path) -> None:
    """Divide the weights into two files."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {SHARD: names[::2], SHARD.replace("00001", "00002", 1): names[1::2]}
    for file, those in halves.items():
        save_file({name: weights[name] for name in those}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, those in halves.items() for name in those}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_whole_model_is_taken_in_one_file_or_several(folder: Path) -> None:
    assert check_model(str(folder), "runs") == ""
    shard(folder)
    check_model.cache_clear()
    assert check_model(str(folder), "runs") == ""


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def half(folder: Path) -> None:
    shard(folder)
    (folder / SHARD).unlink()


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def without(*patterns: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for file in [file for pattern in patterns for file in folder.glob(pattern)]:
            file.unlink()

    return remove


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (without("tokenizer*"), "it has no tokenizer files (tokenizer.json, or tokenizer.model, vocab.json and the li"),
        (without("*.safetensors"), "there are no weights: no model.safetensors and no model.safetensors.index.json"),
        (without("*"), "the folder has no config.json"),
        (pickled, "no model.safetensors, and pickled weights (pytorch_model.bin) are never read, because they can run"),
        (cut, "model.safetensors (3,"),
        (pointer, "model.safetensors (63 bytes) is cut off or damaged: "),
        (half, "model-00001-of-00002.safetensors is missing, 1 of 2 files are there"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read: Expecting property"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json holds no settings"),
        (config(model_type="nonsense"), "not a model that transformers can load: The checkpoint you are trying to"),
        (
            config(num_hidden_layers="two"),
            "not a model that transformers can load: Validation error for field 'num_hidden_layers': TypeError: Field",
        ),
        (config(model_type="t5"), "transformers has no causal language model of type 't5'"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(folder: Path, harm: Callable[[Path], Any], says: str) -> None:
    harm(folder)
    assert reason(folder).startswith(says)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("./doesnotexist", "there is no such folder"),
        ("/nowhere/at/all", "there is no such folder"),
        ("a/b/c", "there is no such folder"),
        ("some file", "is a file, not a folder"),
        ("s3://bucket/model", "a model is a folder or a hub id; copy it to a folder first"),
    ],
)
def test_a_path_is_not_looked_for_on_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some file").touch()
    assert reason(model) == says
    assert hub.asked == []


def test_a_name_that_is_none_says_what_one_looks_like(hub: Hub) -> None:
    assert reason("a model") == "there is no such folder, and it is no id of the hub, such as Qwen/Qwen3-0.6B"
    assert hub.asked == []


def test_what_the_hub_says_of_a_model_is_said_after_one_question(hub: Hub) -> None:
    hub.answers["me/gated"] = (403, {"X-Error-Code": "GatedRepo"}, {})
    hub.answers["me/gone"] = (404, {}, {})
    hub.has("me/pickled", "config.json", "pytorch_model.bin")
    hub.has("me/gguf", "config.json", "q4.gguf")
    hub.has("me/adapter", "adapter_config.json", "adapter_model.safetensors", "config.json")
    hub.has("me/data", "README.md")
    hub.has("me/whole", "config.json", "model-00001-of-00002.safetensors")
    said = {model: reason(f"me/{model}") for model in ("none", "gated", "gone", "pickled", "gguf", "adapter", "data")}
    assert said["none"].endswith(" has no model of that id, or a private one (then: `hf auth login`)")
    assert said["gone"].endswith(" has no model of that id")
    assert "its licence has to be accepted at http://127.0.0.1:" in said["gated"]
    assert "/me/gated, then `hf auth login`" in said["gated"]
    assert "pickled weights (pytorch_model.bin) are never read" in said["pickled"]
    assert "GGUF files cannot be trained" in said["gguf"]
    assert "an adapter; merge it into its model first" in said["adapter"]
    assert said["data"] == "the hub's files of it include no config.json"
    assert find_model("me/whole") == Found("me/whole")
    assert hub.asked == [*(f"me/{model}" for model in said), "me/whole"]


@pytest.mark.parametrize("away", ["refused", "silent", "broken", "HF_HUB_OFFLINE"])
def test_without_the_hub_its_cache_is_taken_or_offline_is_said(
    hub: Hub, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    from huggingface_hub import constants

    says = {"refused": "cannot be reached (", "silent": "does not answer within 0.3 s"}.get(away, away)
    match away:
        case "refused":
            use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}", tmp_path / "cache")
        case "silent":
            hub.silent.set()
            monkeypatch.setattr(model_files, "HUB_SECONDS", 0.3)
        case "broken":
            hub.answers["me/kept"] = hub.answers["me/none"] = (503, {}, {})
            says = "503"
        case _:
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    missing = reason("me/none")
    assert says in missing
    assert missing.endswith(
        ", and this machine has no copy of such a model: offline? then name a folder that holds one"
    )
    assert away == "HF_HUB_OFFLINE" or "HF_HUB_OFFLINE" not in os.environ
    copy = in_cache(tmp_path / "cache", "me/kept", saved)
    found = find_model("me/kept")
    assert found.source == str(copy)
    assert says in found.note
    assert found.note.endswith(": the copy of this machine is taken")
    assert os.environ["HF_HUB_OFFLINE"] == "1"  # the workers that start now do not try either
    cut(copy)
    with pytest.raises(ModelFilesError, match=r"the copy of this machine is not whole: model\.safetensors \("):
        find_model("me/kept")


def test_a_folder_is_named_by_its_whole_path_for_workers_that_stand_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    whole = str(tmp_path / "mine")
    for given in ("mine", "./mine/", whole):
        config = read_config(TrainConfig, file=None, overrides={"policy": given})
        assert config.policy.model == whole
        assert TrainConfig.model_validate({"policy": given}).policy.model == whole  # as Prefect gives it
    for model in ("tiny", "Qwen/Qwen3-0.6B"):
        assert TrainConfig.model_validate({"policy": model}).policy.model == model
    monkeypatch.chdir("/")
    assert read_config(TrainConfig, file=None, overrides={}, base=config.model_dump(mode="json")) == config
