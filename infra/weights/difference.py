"""A file that turns one version of a model's weights into the next: for every tensor what has changed, exactly.

A file is the length of a header, the header as JSON with spaces after it, and the blocks of each tensor one after
another (`infra.weights.codec`). The header names every tensor of the new version with its type and shape and where its
blocks are; tensors that it does not name are gone. A tensor that is new, or has another type or shape than before,
needs no old one.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from infra.errors import first_fault
from infra.weights.codec import BLOCK, Bits, CodecError, decode, encode

DIFFERENCE = "difference"  # the file's name in a published folder
LENGTH = struct.Struct("<Q")  # of the header
MOST_HEADER = 1 << 26  # bytes
Weights = Mapping[str, Tensor]  # on the CPU, contiguous
Old = tuple[Bits, Collection[int]]  # a tensor's old bits, and where the blocks begin of which nobody knows them
WIDTHS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class DifferenceError(ValueError):
    """A file that is no difference, is damaged, or starts from other weights than these."""


class TensorPart(BaseModel):
    """What a file says of one tensor."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(max_length=1024)
    dtype: str
    shape: list[int] = Field(max_length=16)
    based: bool  # on the old tensor of that name
    bytes: int = Field(ge=0)  # of its blocks


class Header(BaseModel):
    """What a file says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    tensors: list[TensorPart]


def weights_digest(weights: Weights) -> str:
    """blake3 over names, types, shapes and bits, in the order of the names."""
    digest = blake3()
    for name in sorted(weights):
        tensor = weights[name]
        digest.update(json.dumps([name, _type(tensor), list(tensor.shape)]).encode())
        digest.update(_bits(tensor).view(np.uint8).data)
    return digest.hexdigest()


def write_difference(path: Path, new: Weights, old: Weights) -> tuple[int, int]:
    """Write the file that makes `new` of `old`; returns (cells, cells that have changed).

    With no `old` tensor at all the file holds `new` itself, compressed.
    """

    def old_bits(name: str, tensor: Tensor) -> Old | None:
        base = old.get(name)
        is_like = base is not None and (base.dtype, base.shape) == (tensor.dtype, tensor.shape)
        return (_bits(base), ()) if base is not None and is_like else None

    return _write(path, new, old_bits)


def merge_differences(path: Path, new: Weights, newer: Path, older: Path) -> tuple[int, int]:
    """Write the one file for two that follow each other, `newer` the one that makes `new`; returns as
    `write_difference` does, with all cells of a block whose old bits nobody knows as changed.

    The old weights are computed from the new ones, a tensor at a time. What either file tells as it is, and not as a
    difference, the one file does too: it needs no old bits. Raises `DifferenceError`.
    """
    steps = [(each.name, _read(each)) for each in (newer, older)]
    if set(steps[0][1]) != set(new):
        raise DifferenceError(f"{newer.name}: has other tensors than the weights")

    def old_bits(name: str, tensor: Tensor) -> Old | None:
        bits = _bits(tensor).copy()
        untold: set[int] = set()
        for file, parts in steps:
            if name not in parts:
                raise DifferenceError(f"{file}: has no {name!r} for the next to start from")
            part, blocks = parts[name]
            if (TYPES[part.dtype], part.shape) != (tensor.dtype, list(tensor.shape)):
                raise DifferenceError(f"{file}: has {name!r} as a {part.dtype} of shape {part.shape}")
            if not part.based:
                return None
            try:
                untold |= decode(blocks, bits, undo=True)
            except CodecError as error:
                raise DifferenceError(f"{file}: {name!r} {error}") from None
        return bits, untold

    return _write(path, new, old_bits)


def _write(path: Path, new: Weights, old_bits: Callable[[str, Tensor], Old | None]) -> tuple[int, int]:
    def part(name: str, based: bool, size: int) -> TensorPart:
        return TensorPart(name=name, dtype=_type(new[name]), shape=list(new[name].shape), based=based, bytes=size)

    room = len(_json([part(name, False, (1 << 64) - 1) for name in new]))  # what the header takes at most
    parts, cells, changed = [], 0, 0
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            file.seek(LENGTH.size + room)
            for name, tensor in new.items():
                bits, old = _bits(tensor), old_bits(name, tensor)
                began = file.tell()
                file.writelines(encode(bits, *(old or ())))
                parts.append(part(name, old is not None, file.tell() - began))
                cells += bits.size
                changed += bits.size if old is None else _changed(bits, *old)
            file.seek(0)
            file.write(LENGTH.pack(room) + _json(parts).ljust(room))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return cells, changed


def apply_difference(path: Path, weights: dict[str, Tensor], digest: str, most: int) -> None:
    """Turn `weights`, the old version, into the new one, tensor by tensor in place, and see that it has this digest.

    `most` is how many bytes the new version may have at most. Raises `DifferenceError`; the weights are neither version
    then.
    """
    parts = _read(path)
    if (asked := sum(math.prod(part.shape) * TYPES[part.dtype].itemsize for part, _ in parts.values())) > most:
        raise DifferenceError(f"{path.name}: would make weights of {asked} bytes where at most {most} are expected")
    made = {name: _apply(part, blocks, weights.pop(name, None), path) for name, (part, blocks) in parts.items()}
    weights.clear()  # what the file does not name is gone
    weights.update(made)
    if weights_digest(weights) != digest:
        raise DifferenceError(f"{path.name}: makes other weights than it was made for")


def _apply(part: TensorPart, blocks: memoryview, old: Tensor | None, path: Path) -> Tensor:
    dtype = TYPES[part.dtype]
    if part.based:
        if old is None or (old.dtype, list(old.shape)) != (dtype, part.shape):
            raise DifferenceError(f"{path.name}: starts from a tensor {part.name!r} that is not here as it expects it")
        tensor = old
    else:
        tensor = torch.zeros(part.shape, dtype=dtype)
    try:
        decode(blocks, _bits(tensor))
    except CodecError as error:
        raise DifferenceError(f"{path.name}: {part.name!r} {error}") from None
    return tensor


def _read(path: Path) -> dict[str, tuple[TensorPart, memoryview]]:
    """What the file says of each tensor, and its blocks, by name."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < LENGTH.size:
            raise DifferenceError(f"{path.name}: ends too early")
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    (length,) = LENGTH.unpack_from(content)
    at = LENGTH.size + length
    if length > MOST_HEADER or at > len(content):
        raise DifferenceError(f"{path.name}: ends too early")
    try:
        header = Header.model_validate_json(bytes(content[LENGTH.size : at]))
    except ValidationError as error:
        raise DifferenceError(f"{path.name}: its header cannot be read: {first_fault(error)[1]}") from None
    if at + sum(part.bytes for part in header.tensors) != len(content):
        raise DifferenceError(f"{path.name}: its header speaks of another length")
    parts = {}
    for part in header.tensors:
        if part.name in parts:
            raise DifferenceError(f"{path.name}: names a tensor twice")
        if part.dtype not in TYPES or any(size < 0 for size in part.shape):
            raise DifferenceError(f"{path.name}: {part.name!r} cannot be a {part.dtype} of shape {part.shape}")
        parts[part.name] = part, content[at : at + part.bytes]
        at += part.bytes
    return parts


def _json(parts: list[TensorPart]) -> bytes:
    return Header(tensors=parts).model_dump_json().encode()


def _changed(new: Bits, old: Bits, untold: Collection[int]) -> int:
    """How many cells are not the same, a block at a time; all of an `untold` one."""
    count = 0
    for at in range(0, len(new), BLOCK):
        part = new[at : at + BLOCK]
        count += len(part) if at in untold else int(np.count_nonzero(part != old[at : at + BLOCK]))
    return count


def _type(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    assert name in TYPES, name
    return name


def _bits(tensor: Tensor) -> Bits:
    """[cells]: a view of the tensor's memory."""
    flat = tensor.reshape(-1)
    assert flat.data_ptr() == tensor.data_ptr()
    bits: Bits = flat.view(WIDTHS[tensor.element_size()]).numpy()
    return bits
