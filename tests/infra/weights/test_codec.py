"""Blocks of cells: every bit pattern comes back, and blocks that do not fit are refused."""

from unittest.mock import patch

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.weights import codec
from infra.weights.codec import BLOCK, CodecError, decode, encode


def round_trip(new: np.ndarray, old: np.ndarray | None) -> int:
    """The bytes that it took."""
    blocks = b"".join(encode(new, old))
    bits = np.zeros_like(new) if old is None else old.copy()
    decode(memoryview(blocks), bits)
    assert (bits == new).all()
    return len(blocks)


@pytest.mark.slow
@given(
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]).flatmap(
        lambda dtype: st.integers(0, 300).flatmap(
            lambda count: st.tuples(arrays.arrays(dtype, count), st.none() | arrays.arrays(dtype, count))
        )
    )
)
def test_any_bits_come_back(pair: tuple[np.ndarray, np.ndarray | None]) -> None:
    round_trip(*pair)


@pytest.mark.slow
@given(
    st.sampled_from([codec.GAPS, codec.PACKED, codec.ULP, codec.XOR, codec.FULL]),
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]),
    st.integers(1, 33),  # cells of a block
    st.integers(0, 2**64 - 1),
    st.data(),
)
def test_each_method_brings_back_any_bits(
    method: int, dtype: type, cells: int, around: int, draw: st.DataObject
) -> None:
    old = draw.draw(arrays.arrays(dtype, st.integers(0, 70), elements=st.just(around & np.iinfo(dtype).max)))
    near = st.integers(-4, 4).map(lambda move: (around + move) & np.iinfo(dtype).max)
    new = draw.draw(arrays.arrays(dtype, len(old), elements=near | st.integers(0, np.iinfo(dtype).max)))
    with (
        patch.object(codec, "BLOCK", cells),
        patch.object(codec, "SURE", 0),
        patch.object(codec, "_smallest", lambda _new, _old: method),
    ):
        round_trip(new, old)
        bits = new.copy()
        untold = decode(memoryview(b"".join(encode(new, old))), bits, undo=True)
        for at in range(0, len(new), cells):
            whole = method == codec.FULL and bool((new != old)[at : at + cells].any())
            assert (at in untold) == whole
            assert (bits[at : at + cells] == (new if whole else old)[at : at + cells]).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("share", [0.0, 1e-6, 0.001, 0.01, 0.2, 0.5, 1.0])
def test_every_density_comes_back_and_is_no_larger_than_the_whole(dtype: type, share: float) -> None:
    draws = np.random.default_rng(0)
    cells = BLOCK + 12_345  # of two blocks, the second a short one
    old = draws.integers(0, np.iinfo(dtype).max, cells, dtype=dtype, endpoint=True)
    new = np.where(draws.random(cells) < share, draws.integers(0, np.iinfo(dtype).max, cells, dtype=dtype), old)
    size = round_trip(new.astype(dtype), old)
    assert size <= 1.01 * round_trip(new.astype(dtype), None) <= 1.01**2 * old.nbytes
    assert size < 100 or share > 0


def test_cells_that_are_far_apart_come_back() -> None:
    old = np.zeros(BLOCK, dtype=np.uint16)
    for at in ([0], [BLOCK - 1], [0, 255, 510, 511], [254, 255, 256], list(range(0, BLOCK, 256)), [0, BLOCK - 1]):
        new = old.copy()
        new[at] = 1
        round_trip(new, old)


def block(method: int, *streams: bytes) -> memoryview:
    frames = [zstandard.compress(stream) for stream in streams]
    body = b"".join([*(codec.LENGTH.pack(len(frame)) for frame in frames), *frames])
    return memoryview(codec.HEADER.pack(method, len(frames), len(body)) + body)


def test_packed_blocks_that_do_not_fit_are_refused() -> None:
    """Six cells: a byte has those at 0, 2, 4, the next those at 1, 3, 5; the highest bits are of no cell."""
    codes = bytes([0b00_00_11_01, 0b11_11_00_10])
    bits = np.zeros(6, dtype=np.uint16)
    decode(block(codec.PACKED, codes, bytes([4, 6]), bytes([0, 1])), bits)
    assert bits.tolist() == [65535, 1, 2, 0, 0, 131]
    for streams in (
        [],
        [b""],
        [codes[:1], b"4", b"0"],
        [codes + b"0", b"46", b"01"],
        [codes, b"4"],
        [codes, b"467"],
        [codes, b"46", b"0"],
        [codes, b"46", b"01", b"01"],
        [bytes(1 << 20)],
    ):
        with pytest.raises(CodecError):
            decode(block(codec.PACKED, *streams), np.zeros(6, dtype=np.uint16))


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_refused_as_blocks(blocks: bytes, cells: int) -> None:
    bits = np.zeros(cells, dtype=np.uint16)
    try:
        decode(memoryview(blocks), bits)
    except CodecError:
        return
    assert len(blocks) >= codec.HEADER.size * (cells > 0)


@given(st.lists(st.integers(0, 2**16 - 1), min_size=3, max_size=60), st.integers(0, 2**32 - 1))
def test_a_difference_tells_the_old_bits_too(values: list[int], seed: int) -> None:
    old = np.array(values, dtype=np.uint16)
    draws = np.random.default_rng(seed)
    new = np.where(draws.random(len(old)) < draws.random(), draws.integers(0, 2**16, len(old)), old).astype(np.uint16)
    blocks = b"".join(encode(new, old))
    bits = new.copy()
    untold = decode(memoryview(blocks), bits, undo=True)
    assert (bits == (new if untold else old)).all()
    assert untold == ({0} if blocks[0] == codec.FULL else set())
