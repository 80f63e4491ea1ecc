"""A tokenizer reads no file but those of its folder, whatever its settings name."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.model.policy import UnknownModelError
from rl.model.tokenizer import SETTINGS, read_tokenizer


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    tokenizer.save_pretrained(tmp_path / "made")
    return tmp_path / "made"


def changed(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **settings}))


def test_a_key_that_transformers_takes_for_a_vocabulary_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    named = {"tokenizer_class": "BertTokenizer", "vocab": str(secret), "unk_token": "-----BEGIN PRIVATE KEY-----"}
    changed(theirs / SETTINGS[0], **named)
    assert "AAAA" in AutoTokenizer.from_pretrained(theirs).get_vocab()  # what is guarded against
    with pytest.raises(ValueError, match=r"tokenizer_config.json has 'vocab', which may name any file: remove it"):
        read_tokenizer(str(theirs))
    with pytest.raises(UnknownModelError, match="which may name any file"):
        load_policy(str(theirs), PolicyConfig(device="cpu"))


@pytest.mark.parametrize("file", SETTINGS)
@pytest.mark.parametrize("content", ["{", "[" * 100_000, "\udcff"])
def test_damaged_settings_are_named(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content, errors="surrogateescape")
    with pytest.raises(ValueError, match=f"^{file} is damaged: "):
        read_tokenizer(str(folder))


@pytest.mark.parametrize("file", SETTINGS)
@pytest.mark.parametrize("key", ["vocab", "merges", "init_inputs", "vocab_file", "spm_file", "gguf_file"])
def test_every_such_key_is_refused_in_both_files(folder: Path, file: str, key: str) -> None:
    changed(folder / file, **{key: ["/etc/passwd"] if key == "init_inputs" else "/etc/passwd"})
    with pytest.raises(ValueError, match=f"{file} has '{key}'"):
        read_tokenizer(str(folder))


def test_what_older_tokenizers_say_of_where_they_were_made_is_taken(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    changed(
        folder / SETTINGS[0],
        tokenizer_file="/home/me/tokenizer.json",
        special_tokens_map_file="/home/me/special_tokens_map.json",
        vocab_file=None,
        init_inputs=[],
        name_or_path="/home/me",
    )
    assert read_tokenizer(str(folder)).get_vocab() == tokenizer.get_vocab()
    changed(folder / SETTINGS[1], tokenizer_file="/etc/passwd")  # which would be taken last
    with pytest.raises(ValueError, match="has 'tokenizer_file'"):
        read_tokenizer(str(folder))
