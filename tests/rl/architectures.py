"""Which architectures are tried while one waits: one of each kind. All of them are with the slow tests."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.bench.architectures import ARCHITECTURES, Architecture

QUICK = {
    "GPT-2",
    "Phi-3, Phi-4",
    "Qwen3",
    "Qwen3-MoE",
    "Gemma 2",
    "Gemma 3, with vision",
    "DeepSeek-V3",
    "gpt-oss",
    "Mamba 2",  # refused
}
assert {one.name for one in ARCHITECTURES} >= QUICK

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
REFUSED = set(re.findall(r"^\| ([^|]+) \| `\w+` \| refused: ", MODELS.read_text(), re.MULTILINE))
assert {one.name for one in ARCHITECTURES} >= REFUSED >= {"Mamba 2"}


def each_of(architectures: Iterable[Architecture] = ARCHITECTURES) -> pytest.MarkDecorator:
    """Parametrises `architecture`."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return pytest.mark.parametrize(
        "architecture", [pytest.param(one, id=one.name, marks=marks[one.name in QUICK]) for one in architectures]
    )
