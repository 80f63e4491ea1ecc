"""The exact difference between two versions of a tensor, as bytes.

A tensor is taken as the bits of its cells: unsigned integers, flat. They are encoded in blocks that fit a processor's
cache, each by the method that makes it smallest:

    same   nothing has changed
    gaps   the changed cells: distances between them, and how far each moved
    packed how far every cell moved: two bits for each, and in full those that moved further than two bits say
    ulp    how far every cell moved
    xor    the bits that differ
    full   the new bits, which need no old ones

How far a cell moved is the difference of its bits as integers, modulo their width, with the sign in the lowest bit
(zig-zag): a step of one unit in the last place is 1 or 2, whatever the number. Numbers of more than one byte are laid
out in byte planes, lowest first, without the planes that hold only zeros. Every stream is a zstd frame.

Distances are single bytes: 255 stands for 255 cells without a change and no cell.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger[Any]]  # [cells]: the bits of each, 1 to 8 bytes wide

Stream = NDArray[np.uint8]

BLOCK = 1 << 20  # cells
SAMPLED, SAMPLES = 2048, 4  # cells of a sample, and samples of a block, that choose the method;
LEAST = 256  # a short block's are shorter
SURE = 1 / 6  # below this share of changed cells gaps are the smallest
LEVEL = 1  # of zstd: a higher one costs more time than its bytes are worth
STORE = -50  # of zstd: copies what does not compress
SAME, GAPS, ULP, XOR, FULL, PACKED = range(6)
SKIP = 255
FAR = 3  # of two bits: the number is elsewhere
HEADER = struct.Struct("<BBI")  # method, number of frames, length of what follows
LENGTH = struct.Struct("<I")  # of each frame


class CodecError(ValueError):
    """Bytes that are no difference, or none of this tensor."""


def encode(new: Bits, old: Bits | None = None, untold: Collection[int] = ()) -> Iterator[bytes]:
    """The blocks of `new` [cells] as differences from `old` [cells]; without `old`, and those that begin at an `untold`
    cell, as they are."""
    assert old is None or (old.shape == new.shape and old.dtype == new.dtype)
    best, store = (zstandard.ZstdCompressor(level=level, write_content_size=True) for level in (LEVEL, STORE))
    for at in range(0, len(new), BLOCK):
        part = new[at : at + BLOCK]
        method, streams = _encode_block(part, None if old is None or at in untold else old[at : at + BLOCK])
        frames = [(best if _shrinks(stream, best) else store).compress(stream.data) for stream in streams]
        lengths = b"".join(LENGTH.pack(len(frame)) for frame in frames)
        yield b"".join([HEADER.pack(method, len(frames), len(lengths) + sum(map(len, frames))), lengths, *frames])


def decode(blocks: memoryview, bits: Bits, *, undo: bool = False) -> set[int]:
    """Turn `bits` [cells], the old ones, into the new ones, in place; with `undo` the new ones into the old. Returns
    the first cells of the blocks that an `undo` left as they were: told without the old bits.

    Raises `CodecError` for bytes that `encode` did not make of this many cells; `bits` is worthless then. No more
    memory is taken than for a few blocks, whatever the bytes say.
    """
    untold = set()
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 23)
    for at in range(0, len(bits), BLOCK):
        part = bits[at : at + BLOCK]
        if len(blocks) < HEADER.size:
            raise CodecError("ends too early")
        method, count, length = HEADER.unpack_from(blocks)
        body, blocks = blocks[HEADER.size : HEADER.size + length], blocks[HEADER.size + length :]
        if len(body) != length:
            raise CodecError("ends too early")
        frames = list(_frames(body, count))
        if undo and method == FULL:
            untold.add(at)
        else:
            _decode_block(method, frames, part, decompressor, undo)
    if len(blocks):
        raise CodecError("goes on after its end")
    return untold


def _encode_block(new: Bits, old: Bits | None) -> tuple[int, Sequence[Stream]]:
    if old is None:
        return FULL, _planes(new)
    is_changed = new != old
    count = int(np.count_nonzero(is_changed))
    if count == 0:
        return SAME, ()
    method = GAPS if count < SURE * len(new) else _smallest(new, old)
    if method == GAPS:
        at = np.flatnonzero(is_changed)
        return GAPS, (_distances(at), *_planes(_zigzag(new[at] - old[at])))
    if method == PACKED:
        return PACKED, _packed(_zigzag(new - old))
    if method == ULP:
        return ULP, _planes(_zigzag(new - old))
    if method == XOR:
        return XOR, _planes(new ^ old)
    return FULL, _planes(new)


def _smallest(new: Bits, old: Bits) -> int:
    """The method that makes the block smallest, by a few samples of a long one."""
    sampled = min(SAMPLED, max(LEAST, len(new) // 64))
    if len(new) > SAMPLES * sampled:
        starts = np.linspace(0, len(new) - sampled, SAMPLES, dtype=np.int64)
        new, old = (np.concatenate([bits[at : at + sampled] for at in starts]) for bits in (new, old))
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    changed = np.flatnonzero(new != old)
    tried: dict[int, Sequence[Stream]] = {
        GAPS: (_distances(changed), *_planes(_zigzag(new[changed] - old[changed]))),
        PACKED: _packed(_zigzag(new - old)),
        ULP: _planes(_zigzag(new - old)),
        XOR: _planes(new ^ old),
        FULL: _planes(new),
    }
    sizes = {
        method: sum(len(compressor.compress(stream.data)) for stream in streams) for method, streams in tried.items()
    }
    return min(sizes, key=sizes.__getitem__)


def _shrinks(stream: Stream, compressor: zstandard.ZstdCompressor) -> bool:
    """Whether a long stream can be compressed, by a byte here and there; random low bytes take most of the time."""
    apart = len(stream) // (SAMPLES * SAMPLED)
    sample = stream[::apart].copy() if apart > 8 else None
    return sample is None or len(compressor.compress(sample.data)) < len(sample)


def _decode_block(
    method: int, frames: list[memoryview], bits: Bits, decompressor: zstandard.ZstdDecompressor, undo: bool
) -> None:
    def planes(some: Sequence[memoryview], count: int) -> Bits:
        return _from_planes([_decompress(decompressor, frame, count) for frame in some], count, bits.dtype)

    if method == SAME and not frames:
        return
    if method == GAPS and frames:
        at = _positions(_decompress(decompressor, frames[0], None, most=len(bits)), len(bits))
        moved = _unzigzag(planes(frames[1:], len(at)))
        bits[at] += -moved if undo else moved
    elif method == PACKED and frames:
        numbers = _unpacked(_decompress(decompressor, frames[0], -(-len(bits) // 4)), bits)
        at = np.flatnonzero(numbers == FAR)
        numbers[at] = planes(frames[1:], len(at))
        moved = _unzigzag(numbers)
        bits += -moved if undo else moved
    elif method == ULP:
        moved = _unzigzag(planes(frames, len(bits)))
        bits += -moved if undo else moved
    elif method == XOR:
        bits ^= planes(frames, len(bits))
    elif method == FULL:
        bits[:] = planes(frames, len(bits))
    else:
        raise CodecError(f"has a block of the unknown kind {method} with {len(frames)} frames")


def _frames(body: memoryview, count: int) -> Iterator[memoryview]:
    at = count * LENGTH.size
    if len(body) < at:
        raise CodecError("ends too early")
    for (length,) in LENGTH.iter_unpack(body[:at]):
        if len(body) < at + length:
            raise CodecError("ends too early")
        yield body[at : at + length]
        at += length
    if at != len(body):
        raise CodecError("has a block that is longer than its frames")


def _decompress(
    decompressor: zstandard.ZstdDecompressor, frame: memoryview, count: int | None, most: int = 0
) -> Stream:
    """The bytes of a frame: `count` of them, or at most `most`; its stated size is checked before memory is taken."""
    try:
        size = zstandard.frame_content_size(frame)
        if size < 0 or (size > most if count is None else size != count):
            raise CodecError(
                f"has a frame of {size} bytes where {'at most ' if count is None else ''}{count or most} fit"
            )
        content = decompressor.decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CodecError(f"has a frame that zstd does not read: {error}") from None
    return np.frombuffer(content, dtype=np.uint8)


def _distances(at: NDArray[np.int64]) -> Stream:
    """Ascending positions as bytes."""
    gaps = np.diff(at, prepend=-1) - 1
    if gaps.max(initial=0) < SKIP:
        return gaps.astype(np.uint8)
    skips = gaps // SKIP
    ends = np.cumsum(skips + 1) - 1
    stream = np.full(int(ends[-1]) + 1, SKIP, dtype=np.uint8)
    stream[ends] = gaps - skips * SKIP
    return stream


def _positions(stream: Stream, cells: int) -> NDArray[np.int64]:
    """What `_distances` was given; all below `cells`."""
    is_cell = stream != SKIP
    passed = np.cumsum(stream, dtype=np.int64) + np.cumsum(is_cell, dtype=np.int64)
    at: NDArray[np.int64] = passed[is_cell] - 1
    if len(at) and at[-1] >= cells:
        raise CodecError("names a cell beyond the end of a block")
    return at


def _zigzag(moved: Bits) -> Bits:
    """Signed numbers, as unsigned ones of the same width: 0, -1, 1, -2, … become 0, 1, 2, 3, …; in place."""
    signed = moved.view(f"i{moved.itemsize}")
    signs = signed >> (8 * moved.itemsize - 1)
    signed <<= 1
    signed ^= signs
    return moved


def _unzigzag(numbers: Bits) -> Bits:
    signed = numbers.view(f"i{numbers.itemsize}")
    out: Bits = ((numbers >> 1).view(signed.dtype) ^ -(signed & 1)).view(numbers.dtype)
    return out


def _packed(numbers: Bits) -> tuple[Stream, ...]:
    """Two bits of each number, a byte having one of each quarter of the block, and the planes of those that are far."""
    is_far = numbers >= FAR
    codes = numbers.astype(np.uint8)
    codes |= is_far * np.uint8(255)
    codes &= 3
    a, b, c, d = np.pad(codes, (0, -len(codes) % 4)).reshape(4, -1)
    return a + b * 4 + c * 16 + d * 64, *_planes(numbers[np.flatnonzero(is_far)])


def _unpacked(stream: Stream, like: Bits) -> Bits:
    """The numbers that `_packed` was given, but `FAR` for those that are far."""
    codes = stream >> np.array([[0], [2], [4], [6]], dtype=np.uint8) & 3
    return codes.reshape(-1)[: len(like)].astype(like.dtype)


def _planes(numbers: Bits) -> tuple[Stream, ...]:
    """The bytes of the numbers by significance, lowest first, up to the last that is not all zeros."""
    width = numbers.itemsize
    most = int(numbers.max(initial=0))
    used = (most.bit_length() + 7) // 8
    if width == 1:
        return (numbers.view(np.uint8),)[:used]
    return tuple(
        (numbers >> (8 * plane)).astype(np.uint8) if plane else numbers.astype(np.uint8) for plane in range(used)
    )


def _from_planes(planes: Sequence[Stream], count: int, dtype: np.dtype[Any]) -> Bits:
    if len(planes) > dtype.itemsize:
        raise CodecError(f"has {len(planes)} bytes for a number of {dtype.itemsize}")
    numbers = np.zeros(count, dtype=dtype) if not planes else planes[0].astype(dtype)
    for place, plane in enumerate(planes[1:], start=1):
        numbers |= plane.astype(dtype) << (8 * place)
    return numbers
