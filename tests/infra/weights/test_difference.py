"""Differences between versions of weights: exact for every bit pattern, small, and safe to read from anybody."""

import random
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from infra.weights import codec
from infra.weights.codec import BLOCK, encode
from infra.weights.difference import (
    DifferenceError,
    apply_difference,
    merge_differences,
    weights_digest,
    write_difference,
)

MOST = 1 << 26


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_steps_that_move_many_cells_a_little_are_packed(dtype: torch.dtype) -> None:
    old, new = adam_like(1 << 16, 5e-5 if dtype == torch.bfloat16 else 1e-9, dtype=dtype)
    wide = torch.uint16 if dtype == torch.bfloat16 else torch.uint32
    assert next(encode(new.view(wide).numpy(), old.view(wide).numpy()))[0] == codec.PACKED


def adam_like(cells: int, lr: float, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """(old, new), rounded from float32 weights N(0, 0.03) that a step of this size moved."""
    draws = torch.Generator().manual_seed(seed)
    master = torch.randn(cells, generator=draws) * 0.03
    moved = master + lr * torch.randn(cells, generator=draws).clamp(-2, 2)
    return master.to(dtype), moved.to(dtype)


@pytest.mark.parametrize(
    ("lr", "changed", "ratio"), [(3.2e-7, 0.009, 120), (8.2e-7, 0.02, 60), (3.1e-6, 0.06, 25), (5.1e-5, 0.43, 5)]
)
def test_the_ratios_that_we_promise(tmp_path: Path, lr: float, changed: float, ratio: float) -> None:
    old, new = adam_like(1 << 20, lr)
    cells, moved = write_difference(tmp_path / "d", {"w": new}, {"w": old})
    assert moved / cells == pytest.approx(changed, rel=0.05)
    assert new.nbytes / (tmp_path / "d").stat().st_size > ratio


SPECIAL = {
    "bfloat16": [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3.0],
    "float16": [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 6e-8, 3.0],
    "float32": [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 3.0],
}


@pytest.mark.parametrize("dtype", SPECIAL)
def test_special_numbers_and_every_payload_of_nan_come_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    wide = torch.int32 if kind == torch.float32 else torch.int16
    nans = torch.tensor([0x7FC1, 0x7F81, -1, 0x7FFF], dtype=wide).view(kind)
    old = torch.cat([torch.tensor(SPECIAL[dtype], dtype=kind), nans])
    for new in (old.flip(0).contiguous(), -old, old.clone()):
        write_difference(tmp_path / "d", {"w": new}, {"w": old})
        weights = {"w": old.clone()}
        apply_difference(tmp_path / "d", weights, weights_digest({"w": new}), MOST)
        assert torch.equal(weights["w"].view(wide), new.view(wide))


def test_tensors_may_come_go_and_change_their_shape_or_type(tmp_path: Path) -> None:
    old = {
        "kept": torch.randn(4, 5),
        "gone": torch.randn(3),
        "reshaped": torch.randn(6),
        "retyped": torch.randn(4),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(1.5),
        "mask": torch.tensor([True, False]),
        "count": torch.tensor([1, -(2**62)]),
    }
    new = {
        "kept": old["kept"] + 1,
        "added": torch.randn(2, 2),
        "reshaped": old["reshaped"].reshape(2, 3),
        "retyped": old["retyped"].half(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(-1.5),
        "mask": torch.tensor([False, False]),
        "count": torch.tensor([2, 2**62]),
    }
    write_difference(tmp_path / "d", new, old)
    weights = {name: tensor.clone() for name, tensor in old.items()}
    apply_difference(tmp_path / "d", weights, weights_digest(new), MOST)
    assert weights.keys() == new.keys()
    assert all(torch.equal(weights[name], new[name]) for name in new)
    write_difference(tmp_path / "all", new, {})
    alone: dict[str, Tensor] = {}
    apply_difference(tmp_path / "all", alone, weights_digest(new), MOST)
    assert all(torch.equal(alone[name], new[name]) for name in new)


def test_other_weights_than_it_starts_from_are_refused(tmp_path: Path) -> None:
    old, new = adam_like(5000, 1e-5)
    write_difference(tmp_path / "d", {"w": new}, {"w": old})
    digest = weights_digest({"w": new})
    for weights in ({"w": old + 1}, {"w": old[:-1]}, {"w": old.float()}, {}):
        with pytest.raises(DifferenceError):
            apply_difference(tmp_path / "d", dict(weights), digest, MOST)


def test_a_file_cannot_ask_for_more_memory_than_expected(tmp_path: Path) -> None:
    write_difference(tmp_path / "d", {"w": torch.zeros(1 << 20)}, {})
    assert (tmp_path / "d").stat().st_size < 300
    with pytest.raises(
        DifferenceError, match=r"would make weights of 4194304 bytes where at most 4194303 are expected"
    ):
        apply_difference(tmp_path / "d", {}, "", (1 << 22) - 1)


@pytest.mark.slow
def test_no_mutation_of_a_file_is_accepted_or_crashes(tmp_path: Path) -> None:
    draws = random.Random(0)
    old, new = adam_like(500, 1e-5)
    dense, moved = adam_like(200, 5e-5)  # packed
    extra = {"a": torch.randn(7, 3), "b": torch.randn(40).half()}
    before = {"w": old, "d": dense, "a": extra["a"], "b": extra["b"]}
    after = {"w": new, "d": moved, "a": extra["a"] * 2, "c": torch.randn(5)}
    write_difference(tmp_path / "d", after, before)
    whole = (tmp_path / "d").read_bytes()
    digest = weights_digest(after)
    mutant = tmp_path / "mutant"
    for _ in range(10_000):
        content = bytearray(whole)
        kind = draws.randrange(5)
        if kind == 0:
            content = content[: draws.randrange(len(content))]
        elif kind == 1:
            content += draws.randbytes(draws.randrange(1, 20))
        elif kind == 2:
            at = draws.randrange(len(content))
            content[at : at + draws.randrange(1, 30)] = draws.randbytes(draws.randrange(30))
        else:
            for _ in range(draws.randrange(1, 4)):
                content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        if bytes(content) == whole:
            continue
        mutant.unlink(missing_ok=True)  # some file systems flush what replaces the content of a file
        mutant.write_bytes(content)
        weights = {name: tensor.clone() for name, tensor in before.items()}
        try:
            apply_difference(mutant, weights, digest, MOST)
        except DifferenceError:
            continue
        # what was hit does not count: another name for the same thing, such as a space in the header
        assert weights_digest(weights) == digest
        assert weights.keys() == after.keys()


@pytest.mark.slow
def test_no_more_memory_is_taken_than_for_a_few_blocks(tmp_path: Path) -> None:
    old, new = adam_like(12 * BLOCK, 5.1e-5)
    weights, digest = {"w": old.clone()}, weights_digest({"w": new})
    tracemalloc.start()
    write_difference(tmp_path / "d", {"w": new}, {"w": old})
    apply_difference(tmp_path / "d", weights, digest, new.nbytes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * BLOCK * old.itemsize


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_two_differences_merge_into_one(tmp_path: Path, dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(1)
    master = torch.randn(3, BLOCK // 2 + 7, generator=draws)
    versions = [{"a": ((master + 0.002 * i) * 30).to(dtype), "b": torch.arange(7)} for i in range(3)]
    for i in (1, 2):
        write_difference(tmp_path / str(i), versions[i], versions[i - 1])
    cells, changed = merge_differences(tmp_path / "both", versions[2], tmp_path / "2", tmp_path / "1")
    assert cells == 3 * (BLOCK // 2 + 7) + 7
    assert changed == int((versions[2]["a"] != versions[0]["a"]).sum())
    weights = {name: tensor.clone() for name, tensor in versions[0].items()}
    apply_difference(tmp_path / "both", weights, weights_digest(versions[2]), MOST)
    write_difference(tmp_path / "directly", versions[2], versions[0])
    assert (tmp_path / "both").read_bytes() == (tmp_path / "directly").read_bytes()


@pytest.mark.parametrize("replaced", [1, 2, 3], ids=["by the older", "by the newer", "by both"])
def test_a_block_that_either_tells_as_it_is_is_merged_as_it_is(tmp_path: Path, replaced: int) -> None:
    draws = torch.Generator().manual_seed(1)
    versions = [{"a": torch.randint(-128, 128, (3 * BLOCK + 7,), dtype=torch.int8, generator=draws)}]
    for i in (1, 2):
        bits = versions[-1]["a"].clone()
        bits[i * BLOCK - 3 : i * BLOCK + 5] += 1
        if replaced & i:
            bits[:BLOCK] = torch.randint(0, 4, (BLOCK,), dtype=torch.int8, generator=draws)
        versions.append({"a": bits})
        write_difference(tmp_path / str(i), versions[i], versions[i - 1])
    _, changed = merge_differences(tmp_path / "both", versions[2], tmp_path / "2", tmp_path / "1")
    assert changed == BLOCK + 5 + 8
    assert (tmp_path / "both").stat().st_size < 0.4 * BLOCK
    weights = {"a": versions[0]["a"].clone()}
    apply_difference(tmp_path / "both", weights, weights_digest(versions[2]), MOST)
    assert torch.equal(weights["a"], versions[2]["a"])


def test_tensors_that_come_go_and_change_their_type_in_either_are_merged(tmp_path: Path) -> None:
    kept, other = torch.arange(9), torch.arange(5)
    versions = [
        {"kept": kept, "gone": other, "at last": other, "retyped": other, "later": other},
        {"kept": kept + 1, "new": other, "at last": other, "retyped": other.half(), "later": other + 1},
        {"kept": kept + 3, "new": other + 1, "retyped": other.half() + 1, "later": other.bool(), "newest": other},
    ]
    for i in (1, 2):
        write_difference(tmp_path / str(i), versions[i], versions[i - 1])
    merge_differences(tmp_path / "both", versions[2], tmp_path / "2", tmp_path / "1")
    weights = {name: tensor.clone() for name, tensor in versions[0].items()}
    apply_difference(tmp_path / "both", weights, weights_digest(versions[2]), MOST)
    assert weights.keys() == versions[2].keys()


def test_what_does_not_follow_each_other_is_not_merged(tmp_path: Path) -> None:
    one, two = {"a": torch.arange(9)}, {"a": torch.arange(9) + 1}
    write_difference(tmp_path / "step", two, one)
    write_difference(tmp_path / "other", {"b": torch.arange(9)}, {})
    write_difference(tmp_path / "retyped", {"a": torch.arange(9).half()}, {})
    for newer, older, why in (
        ("step", "other", "other: has no 'a' for the next to start from"),
        ("step", "retyped", r"retyped: has 'a' as a float16 of shape \[9\]"),
        ("other", "step", "other: has other tensors than the weights"),
    ):
        with pytest.raises(DifferenceError, match=why):
            merge_differences(tmp_path / "made", two, tmp_path / newer, tmp_path / older)
    assert {file.name for file in tmp_path.iterdir()} == {"step", "other", "retyped"}
