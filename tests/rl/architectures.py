"""Which architectures are tried while one waits: one of each kind. All of them are with the slow tests."""

from collections.abc import Iterable

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


def each_of(architectures: Iterable[Architecture] = ARCHITECTURES) -> pytest.MarkDecorator:
    """Parametrises `architecture`."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return pytest.mark.parametrize(
        "architecture", [pytest.param(one, id=one.name, marks=marks[one.name in QUICK]) for one in architectures]
    )
