# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, mapped into memory: reading and writing copy nothing.

A tensor of bfloat16, which numpy does not know, is an array of uint16 with the same bits."""

from __future__ import annotations

import json
import math
import mmap
import os
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence, Union

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Path = Union[str, "os.PathLike[str]"]

HEADER_BYTES_MAX = 64 << 20
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")


class TensorFileError(ValueError):
    """A file is no safetensors file, or is cut, or lacks a tensor. The message names the file."""


@dataclass(frozen=True)
class Tensor:
    """The name, shape and number format ("F32", "BF16", ...) of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    def __post_init__(self) -> None:
        is_surrogate = any("\ud800" <= character <= "\udfff" for character in self.name)
        if is_surrogate or "\0" in self.name:
            raise ValueError(
                f"a tensor can't have the name {ascii(self.name)}, with a zero byte or a half of a "
                "character (a surrogate): rename it"
            )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


class TensorFile(Mapping[str, Array]):
    """The tensors of a mapped file by their names.

    The arrays of a file that is read may be written to; such writes stay in this process. They are
    valid until the file is written anew: copy what must last longer. Writes to the arrays of a
    file from `create` go to the file."""

    def __init__(
        self,
        path: Path,
        tensors: Sequence[Tensor],
        offsets: Sequence[int],
        mapped: mmap.mmap,
        metadata: Mapping[str, str] | None = None,
    ):
        self.path = os.fspath(path)
        self.metadata = metadata or {}
        self.mapped = mapped
        self._places = {tensor.name: (tensor, at) for tensor, at in zip(tensors, offsets)}

    def spec(self, name: str) -> Tensor:
        """The tensor's shape and number format."""
        return self._place(name)[0]

    def offset(self, name: str) -> int:
        """Where the tensor begins in the file, in bytes."""
        return self._place(name)[1]

    def _place(self, name: str) -> tuple[Tensor, int]:
        try:
            return self._places[name]
        except KeyError:
            raise KeyError(f"{self.path} has no tensor '{name}'") from None

    def __getitem__(self, name: str) -> Array:
        tensor, at = self._place(name)
        flat = np.frombuffer(self.mapped, NUMPY[tensor.dtype], tensor.elements, at)
        return flat.reshape(tensor.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read(path: Path) -> TensorFile:
    """Maps a file for reading."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, HEADER_BYTES_MAX):
            raise TensorFileError(f"{os.fspath(path)} is no safetensors file, or is cut")
        header = file.read(length)
        # Private: writes are this process's own.
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    try:
        said = json.loads(header)
        tensors, offsets = _parse(said, 8 + length, size)
        metadata = {str(key): str(text) for key, text in said.get("__metadata__", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorFileError(f"{os.fspath(path)}: {error}") from None
    return TensorFile(path, tensors, offsets, mapped, metadata)


def _parse(header: dict[str, Any], data: int, size: int) -> tuple[list[Tensor], list[int]]:
    tensors, offsets = [], []
    for name, said in header.items():
        if name == "__metadata__":
            continue
        if said["dtype"] not in ITEM_BYTES:
            raise ValueError(f"tensor '{name}' has the unknown number format {said['dtype']}")
        tensor = Tensor(name, tuple(int(n) for n in said["shape"]), said["dtype"])
        begin, end = said["data_offsets"]
        if min(tensor.shape, default=0) < 0 or begin < 0 or end - begin != tensor.bytes:
            raise ValueError(f"tensor '{name}' has a wrong size")
        if data + end > size:
            raise ValueError(f"the file is cut in tensor '{name}'")
        tensors.append(tensor)
        offsets.append(data + begin)
    return tensors, offsets


def create(path: Path, tensors: Sequence[Tensor]) -> TensorFile:
    """Makes a file with these tensors, or takes an existing one of the same size, whose pages are
    used again. Writes to its arrays go to the file. Numbers are not set: set them all."""
    header: dict[str, Any] = {}
    at = 0
    offsets = []
    # The largest numbers first, so that each tensor begins at a multiple of its numbers' size.
    for tensor in sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype]):
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.bytes],
        }
        at += tensor.bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    size = len(start) + at
    offsets = [len(start) + int(header[tensor.name]["data_offsets"][0]) for tensor in tensors]
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size != size:
            os.ftruncate(file, size)
        # Takes the space now: a full disk is an error here, and would be a crash (SIGBUS) later.
        os.posix_fallocate(file, 0, size)
        mapped = mmap.mmap(file, size)
    finally:
        os.close(file)
    mapped[: len(start)] = start
    return TensorFile(path, tensors, offsets, mapped)


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes float64, float32 and float16 arrays to a file."""
    names = {"f8": "F64", "f4": "F32", "f2": "F16"}
    tensors = []
    for name, array in arrays.items():
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        if kind not in names:
            raise TypeError(f"tensor '{name}' is of {array.dtype}: use float32, float16 or float64")
        tensors.append(Tensor(name, array.shape, names[kind]))
    file = create(path, tensors)
    for name, array in arrays.items():
        file[name][...] = array


def as_float32(file: TensorFile, name: str) -> npt.NDArray[np.float32]:
    """A tensor of floating-point numbers as float32: without a copy where it is that already."""
    tensor, array = file.spec(name), file[name]
    if tensor.dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if tensor.dtype not in FLOATS:
        raise TensorFileError(f"{file.path}: tensor '{name}' is of {tensor.dtype}, not of floats")
    return array.astype(np.float32, copy=False)
