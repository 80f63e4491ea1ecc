"""Tokenizers of folders that may come from anywhere: no file is read but those that lie there.

transformers takes what `tokenizer_config.json` and `special_tokens_map.json` say as arguments of the tokenizer, some of
which are paths: a vocabulary is read from one line by line, and written wherever the tokenizer is saved.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
READ = ("vocab", "merges", "init_inputs")  # arguments that may be paths
UNUSED = ("special_tokens_map_file", "tokenizer_file")  # where the tokenizer was made; the folder's own files are taken


def read_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a hub id or a folder. Raises ValueError where it names files of its own, and OSError."""
    for name in SETTINGS:
        # None where there is none
        found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
        if found is not None:
            try:
                settings = json.loads(Path(found).read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{name} is damaged: {error}") from error
            _refuse_paths(name, settings)
    tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return tokenizer


def _refuse_paths(name: str, settings: Any) -> None:
    if not isinstance(settings, dict):
        raise ValueError(f"{name} is no mapping")
    for key, value in settings.items():
        ignored = name == SETTINGS[0] and key in UNUSED
        if value and (key in READ or (key.endswith("_file") and not ignored)):
            raise ValueError(f"{name} has {key!r}, which may name any file: remove it; the folder's own files are read")
