"""The kernels of a decoding step, by Triton's interpreter where there is no GPU: each row's attention is that to the
keys of its prompt and its own, computed one row at a time in float64."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl.model.attention import Grid, columns_of, laid_out
from rl.model.lean import Kernels
from rl.sampling.cache import DecodePass, SlotCache

INTERPRETED = Path(sys.prefix, "interpreted")  # where `make system-tests-packages` puts Triton
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None and not INTERPRETED.is_dir(), reason="needs Triton: run make system-tests-packages"
)
CUDA = torch.cuda.is_available()
HERE = torch.device("cuda" if CUDA else "cpu")
ROOM, LONGEST = 40, 37  # own positions, and those of a prompt
LENGTHS = [37, 1]
FEW = [0, 1, 0, 1, 1]  # places of rows: one has fewer than there are columns
MANY = [1] * 33  # 66 queries of two heads, more than a program takes
EPSILON, SCALING = 1e-6, 0.3


@pytest.mark.parametrize(
    ("places", "size", "heads", "keys"), [("FEW", 16, 4, 2), ("FEW", 24, 7, 1), ("MANY", 16, 2, 1)]
)
def test_attention_is_that_of_each_row_alone(
    places: str, size: int, heads: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if CUDA:
        from rl.model import kernels

        monkeypatch.setattr(kernels, "TILE", 1)
        check(kernels, {"FEW": FEW, "MANY": MANY}[places], size, heads, keys)
        return
    alone(
        [
            "from rl.model import kernels",
            f"from {__spec__.name} import check, {places}",
            "kernels.TILE = 1",  # the fewest keys at a time, so that there are several times
            f"check(kernels, {places}, {size}, {heads}, {keys})",
        ]
    )


def test_they_are_tried_in_all_sizes_and_what_is_wrong_is_said() -> None:
    lines = [
        "import torch",
        "from rl.model import kernels",
        "from rl.sampling.kernel_trial import kernel_refusal",
        f"here = torch.device({HERE.type!r})",
        "def why(dtype): return kernel_refusal(kernels, 4, 2, 16, dtype, here)",
        "assert not why(torch.float32), why(torch.float32)",
        "assert 'not for torch.float64' in why(torch.float64)",
        "right = kernels.attend",
        "kernels.attend = lambda query, key, value, *others: right(query, key, key, *others)",
        "assert 'their results are others' in why(torch.float32)",
    ]
    alone(lines)


def alone(lines: Sequence[str]) -> None:
    """In a process that interprets kernels where there is no GPU: Triton is to know it when it is imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not CUDA:
        environment |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(INTERPRETED)}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=Path(__file__).parents[3], env=environment, check=True)


def check(kernels: Kernels, places: Sequence[int], size: int, heads: int, keys: int) -> None:
    """With weights for the norms of heads, and without, where memory that is taken holds what it likes."""
    take = torch.Tensor.new_empty

    def taken(*given: Any, **named: Any) -> Tensor:
        found = take(*given, **named)
        return found.fill_(torch.nan) if found.is_floating_point() else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", taken)
        for normed in (True, False):
            check_one(kernels, places, size, heads, keys, normed=normed)


def check_one(kernels: Kernels, places: Sequence[int], size: int, heads: int, keys: int, *, normed: bool) -> None:
    torch.manual_seed(0)
    there, rows = len(places), len(places) + 3
    cache = SlotCache(rows, 4, ROOM, LONGEST, share=True, grows=False)
    drawn = [torch.randn(count, keys, length, size, device=HERE) for count, length in ((4, LONGEST), (rows, ROOM))]
    cache.prompts_kept.layers[0] = drawn[0], drawn[0].flip(2).clone()
    cache.rows.layers[0] = drawn[1], drawn[1].flip(2).clone()
    before = [each.clone() for each in cache.rows.layers[0]]
    # as in a step of a fixed shape: more rows, places and columns than there are
    columns = columns_of(places) + 1
    at = torch.tensor([(0, 15, 16, ROOM - 1, 3)[row % 5] for row in range(there + 2)], device=HERE)
    at_points, points = laid_out(places, 4, columns)
    grid = Grid(4, columns, *(torch.tensor(each, device=HERE) for each in (at_points, [*points, points[0], 0])))
    step = DecodePass(cache, at, ROOM, grid, torch.tensor([*LENGTHS, 5, 0], device=HERE), LONGEST)

    widths = [count * size for count in (heads, keys, keys)]
    query, key, value = torch.randn(there + 2, sum(widths), device=HERE).split(widths, -1)  # of one matrix
    norms = torch.rand(heads + keys, size, device=HERE) + 0.5 if normed else None
    angle = torch.rand(there + 2, 1, size // 2, device=HERE).repeat(1, 1, 2)
    sin = torch.cat([-angle.sin()[..., : size // 2], angle.sin()[..., size // 2 :]], -1)
    found = kernels.attend(query, key, value, norms, EPSILON, angle.cos(), sin, SCALING, step, 0)
    assert found.isfinite().all()

    for row, place in enumerate(places):
        turned = turned_heads(query[row], key[row], norms, angle[row, 0], size)
        own = [each[row, :, : at[row]].double() for each in before]
        own_keys = torch.cat([own[0], turned[heads:, None]], 1)
        own_values = torch.cat([own[1], value[row].double().view(keys, 1, size)], 1)
        prompt = [each[place, :, : LENGTHS[place]].double() for each in cache.prompts_kept.layers[0]]
        scores = (turned[:heads] * SCALING).view(keys, -1, size) @ torch.cat([prompt[0], own_keys], 1).transpose(1, 2)
        expected = scores.softmax(-1) @ torch.cat([prompt[1], own_values], 1)
        torch.testing.assert_close(found[row].double(), expected.flatten(), atol=1e-5, rtol=1e-5)
        for kept, new in zip(cache.rows.layers[0], (own_keys, own_values), strict=True):
            torch.testing.assert_close(kept[row, :, at[row]].double(), new[:, -1], atol=1e-5, rtol=1e-5)
    for kept, was in zip(cache.rows.layers[0], before, strict=True):  # nothing else was written to
        for row, index in enumerate(at.tolist()):
            kept[row, :, index] = was[row, :, index] = 0
        assert kept.equal(was)


def turned_heads(query: Tensor, key: Tensor, norms: Tensor | None, angle: Tensor, size: int) -> Tensor:
    """[Q + K, size] normalised and rotated, as transformers' Qwen3 does it."""
    both = torch.cat([query, key]).double().view(-1, size)
    if norms is not None:
        both = both * (both.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt() * norms
    half = size // 2
    return both * angle.cos() + torch.cat([-both[:, half:], both[:, :half]], -1) * angle.sin()
