"""A Hugging Face hub that knows what it is told."""

import threading
from pathlib import Path
from typing import Any

import pytest


class Hub:
    """A Hugging Face hub that knows what it is told."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], Any]] = {}  # by id: status, headers, content
        self.asked: list[str] = []
        self.silent = threading.Event()  # it takes connections and says nothing until the end of the test
        self.over = threading.Event()

    def has(self, model: str, *files: str) -> None:
        self.answers[model] = (200, {}, {"id": model, "siblings": [{"rfilename": name} for name in files]})


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
