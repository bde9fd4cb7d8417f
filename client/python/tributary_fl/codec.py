# SPDX-License-Identifier: Apache-2.0
"""The codecs of Tributary for vectors of numpy and torch: libfl-codec.so by ctypes.

The library is in the wheel; FL_CODEC_LIBRARY names another one."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from dataclasses import dataclass
from typing import Any, Mapping, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _programs
from ._trainer import Error

__all__ = ["Codec", "Coder", "codecs", "decode", "encode", "keeps", "names"]

VERSION = 2  # FLC_VERSION of the library's C header.
RESIDUAL, VELOCITY = 1, 2
LIBRARY = "libfl-codec.so"

Vector = npt.NDArray[np.float32]
Layout = Union[int, Mapping[str, Sequence[int]]]


@functools.lru_cache(maxsize=None)
def _library() -> Any:
    path = os.environ.get("FL_CODEC_LIBRARY") or _programs.in_folders(LIBRARY)
    if path is None:
        raise Error(
            f"{LIBRARY} is not installed: use a wheel of tributary-fl that has it, or let "
            "FL_CODEC_LIBRARY name the file, which ./dev build makes"
        )
    library = ctypes.CDLL(path)
    if library.flc_version() != VERSION:
        raise Error(f"{path} has version {library.flc_version()}, expected {VERSION}")
    u64, i32, text = ctypes.c_uint64, ctypes.c_int32, ctypes.c_char_p
    pointer: Any = ctypes.c_void_p
    library.flc_error.restype = library.flc_names.restype = text
    library.flc_keeps.argtypes = [text]
    library.flc_coder_new.restype, library.flc_coder_new.argtypes = pointer, [text]
    library.flc_coder_free.restype, library.flc_coder_free.argtypes = None, [pointer]
    library.flc_coder_encode.restype = pointer
    vectors, told = [pointer] * 3, [ctypes.POINTER(u64), ctypes.POINTER(ctypes.c_double)]
    library.flc_coder_encode.argtypes = [
        *(pointer, text, ctypes.c_uint32, u64, u64, *vectors, i32, *told)
    ]
    library.flc_coder_decode.argtypes = [pointer, pointer, u64, pointer, i32]
    library.flc_coder_take_back.argtypes = [pointer, pointer, u64, pointer, i32]
    return library


def _check(is_right: bool) -> None:
    if not is_right:
        raise ValueError(_library().flc_error().decode())


@dataclass(frozen=True)
class Codec:
    """A row of the table of codecs: how it is written, and what it does."""

    usage: str
    what: str


def codecs() -> list[Codec]:
    """The table of codecs, as `fl-server codecs` prints it."""
    said = subprocess.run(
        [_programs.find("fl-server"), "codecs"], stdout=subprocess.PIPE, check=True, timeout=60
    ).stdout.decode()
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in said.splitlines() if line]
    return [Codec(*row) for row in rows if len(row) == 2]


def names() -> list[str]:
    """The names of the codecs that encode() knows."""
    said: str = _library().flc_names().decode()
    return said.split()


def keeps(spec: str) -> tuple[bool, bool]:
    """Whether a codec keeps a residual (error feedback) and a velocity (momentum)."""
    kept = _library().flc_keeps(spec.encode())
    _check(kept >= 0)
    return bool(kept & RESIDUAL), bool(kept & VELOCITY)


class Coder:
    """Encodes and decodes vectors of one layout, one after another; what codecs learn from one for
    the next stays here, as do `residual` and `velocity` of error feedback (None until a codec needs
    them). One thread at a time may use it.

    layout: the number of values, or the tensors' shapes by their names, in the order of their
        values in the vector. Codecs go by tensor, and know running means by their names.
    threads: 0 means one per core."""

    def __init__(self, layout: Layout, threads: int = 0):
        self._handle = None
        shapes = {"vector": [layout]} if isinstance(layout, int) else layout
        lines = [" ".join([name, *map(str, shape)]) for name, shape in shapes.items()]
        self._handle = _library().flc_coder_new("\n".join(lines).encode())
        _check(self._handle is not None)
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()]
        self.elements = sum(sizes)
        self.threads = threads
        self.residual: Vector | None = None
        self.velocity: Vector | None = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _library().flc_coder_free(self._handle)

    def encode(
        self,
        spec: str,
        vector: Any,
        *,
        round: int = 1,
        seed: int = 0,
        shared_seed: int | None = None,
    ) -> tuple[bytes, float]:
        """Encodes a vector; returns the payload, and the squared error of what it decodes to,
        relative to the squared norm.

        spec: a codec, as `fl-server codecs` explains it; "delta+..." can't be encoded here.
        vector: `elements` finite numbers, of any shape: a numpy array, or a torch tensor.
        round: counted from 1, for the spec's warm-ups.
        seed, shared_seed: of the random choices; the second is what all senders of a round have in
            common, by default the first."""
        keeps_residual, keeps_velocity = keeps(spec)
        if keeps_residual and self.residual is None:
            self.residual = np.zeros(self.elements, np.float32)
        if keeps_velocity and self.velocity is None:
            self.velocity = np.zeros(self.elements, np.float32)
        values = self._values(vector)
        # A codec without error feedback leaves the residual as it is.
        kept = [
            self.residual if keeps_residual else None,
            self.velocity if keeps_velocity else None,
        ]
        size, error = ctypes.c_uint64(), ctypes.c_double()
        payload = _library().flc_coder_encode(
            self._handle, spec.encode(), round, seed, seed if shared_seed is None else shared_seed,
            values.ctypes.data, *(None if v is None else v.ctypes.data for v in kept),
            self.threads, ctypes.byref(size), ctypes.byref(error),
        )  # fmt: skip
        _check(payload is not None)
        # ctypes.string_at() ends at 2 GiB.
        return bytes((ctypes.c_char * size.value).from_address(payload)), error.value

    def decode(self, payload: bytes, out: Any = None) -> Any:
        """Decodes a payload, which need not be trusted, and returns the vector in float32.

        out: where to write it: a contiguous float32 array or torch tensor on the CPU with
            `elements` numbers; by default a new array."""
        result = np.empty(self.elements, np.float32) if out is None else out
        address, size, kind = _memory(result)
        if size != self.elements or kind != "float32":
            raise ValueError(
                f"out: expected {self.elements} numbers of float32, got {size} of {kind}"
            )
        decode = _library().flc_coder_decode
        _check(decode(self._handle, payload, len(payload), address, self.threads) == 0)
        return result

    def take_back(self, payload: bytes) -> None:
        """Adds a payload that has not counted back to the residual, if there is one."""
        if self.residual is not None:
            take, address = _library().flc_coder_take_back, self.residual.ctypes.data
            _check(take(self._handle, payload, len(payload), address, self.threads) == 0)

    def _values(self, vector: Any) -> Vector:
        if hasattr(vector, "detach"):
            vector = vector.detach().float().cpu().numpy()
        values = np.ascontiguousarray(vector, np.float32).reshape(-1)
        if values.size != self.elements:
            raise ValueError(f"the vector has {values.size} numbers, expected {self.elements}")
        return values


def _memory(values: Any) -> tuple[int, int, str]:
    """Address, number of values, and their type."""
    if hasattr(values, "data_ptr"):
        if values.device.type != "cpu" or not values.is_contiguous():
            raise ValueError("out: expected a contiguous tensor on the CPU")
        return values.data_ptr(), values.numel(), str(values.dtype).rpartition(".")[2]
    if not values.flags.c_contiguous or not values.flags.writeable:
        raise ValueError("out: expected a contiguous array that may be written to")
    return values.ctypes.data, values.size, values.dtype.name


def encode(spec: str, vector: Any, *, seed: int = 0, threads: int = 0) -> bytes:
    """Encodes one vector, a numpy array or a torch tensor. decode() needs its number of values."""
    size = vector.numel() if hasattr(vector, "numel") else np.asarray(vector).size
    return Coder(int(size), threads).encode(spec, vector, seed=seed)[0]


def decode(payload: bytes, elements: int, out: Any = None, *, threads: int = 0) -> Any:
    """Decodes what encode() has made of `elements` values: into `out`, or a new float32 array."""
    return Coder(elements, threads).decode(payload, out)
