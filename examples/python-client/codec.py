"""The codecs of fl-client in Python: libfl-codec.so by ctypes (shared/codec/c_api.h)."""

import ctypes
import os
import pathlib

import numpy as np

from messages import flat

VERSION = 1
RESIDUAL, VELOCITY = 1, 2
THREADS = 0  # As many as cores.
BUILT = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin" / "libfl-codec.so"


def load_library():
    """The library that FL_CODEC_LIBRARY names, or that ./dev build has made; None without one."""
    path = os.environ.get("FL_CODEC_LIBRARY") or (BUILT if BUILT.exists() else None)
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    if library.flc_version() != VERSION:
        raise OSError(f"{path} has version {library.flc_version()}, wanted is {VERSION}")
    u64, i32, text, pointer = ctypes.c_uint64, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p
    library.flc_error.restype = library.flc_names.restype = text
    library.flc_keeps.argtypes = [text]
    library.flc_coder_new.restype, library.flc_coder_new.argtypes = pointer, [text]
    library.flc_coder_free.restype, library.flc_coder_free.argtypes = None, [pointer]
    library.flc_coder_encode.restype = pointer
    count, share = ctypes.POINTER(u64), ctypes.POINTER(ctypes.c_double)
    vectors = [pointer] * 3
    library.flc_coder_encode.argtypes = [
        *(pointer, text, ctypes.c_uint32, u64, *vectors, i32, count, share)
    ]
    library.flc_coder_decode.argtypes = [pointer, text, u64, pointer, i32]
    library.flc_coder_take_back.argtypes = [pointer, text, u64, pointer, i32]
    return library


LIBRARY = load_library()


def names():
    """Of the codecs that this client can encode, for its Hello."""
    return LIBRARY.flc_names().decode().split() if LIBRARY else ["none"]


def check(is_right):
    if not is_right:
        raise ValueError(LIBRARY.flc_error().decode())


class Coder:
    """Codes vectors of one layout, [(name, shape)]. `residual` and `velocity` are what error
    feedback keeps from one to the next: None until a codec wants it."""

    def __init__(self, layout):
        lines = [" ".join([name, *map(str, shape)]) for name, shape in layout]
        self.handle = LIBRARY.flc_coder_new("\n".join(lines).encode())
        check(self.handle)
        self.size = sum(int(np.prod(shape)) for _, shape in layout)
        self.residual = self.velocity = None

    def __del__(self):
        if getattr(self, "handle", None):
            LIBRARY.flc_coder_free(self.handle)

    def encode(self, spec, number, seed, update):
        """(payload, NMSE) of the update of round `number`, by `spec` (see fl-server codecs)."""
        keeps = LIBRARY.flc_keeps(spec.encode())
        check(keeps >= 0)
        if keeps & RESIDUAL and self.residual is None:
            self.residual = np.zeros(self.size, np.float32)
        if keeps & VELOCITY and self.velocity is None:
            self.velocity = np.zeros(self.size, np.float32)
        # A residual waits for a codec that asks for it.
        residual = self.residual if keeps & RESIDUAL else None
        velocity = self.velocity if keeps & VELOCITY else None
        vectors = [flat(update, self.size), residual, velocity]
        addresses = [None if vector is None else vector.ctypes.data for vector in vectors]
        size, nmse = ctypes.c_uint64(), ctypes.c_double()
        told = ctypes.byref(size), ctypes.byref(nmse)
        payload = LIBRARY.flc_coder_encode(
            self.handle, spec.encode(), number, seed, *addresses, THREADS, *told
        )
        check(payload)
        return ctypes.string_at(payload, size.value), nmse.value

    def decode(self, payload):
        out = np.empty(self.size, np.float32)
        read = LIBRARY.flc_coder_decode
        check(read(self.handle, payload, len(payload), out.ctypes.data, THREADS) == 0)
        return out

    def take_back(self, payload):
        """A payload that did not count: with error feedback what was in it is sent again."""
        if self.residual is None:
            return
        take = LIBRARY.flc_coder_take_back
        address = self.residual.ctypes.data
        check(take(self.handle, payload, len(payload), address, THREADS) == 0)
