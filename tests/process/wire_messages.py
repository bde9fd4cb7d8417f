# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes what is on the wire: the messages of proto/wire.proto, and the payload of codec
`none` for any layout. The example of examples/python-client finds the compiled schema here."""

import importlib
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import xxhash

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
BLOCK_ELEMENTS = 65536
BARE_ELEMENTS_MAX = 2


def load_schema():
    """Compiles proto/wire.proto with protoc and imports the result."""
    with tempfile.TemporaryDirectory() as folder:
        protoc = ["protoc", f"--proto_path={PROTO}", f"--python_out={folder}", "wire.proto"]
        subprocess.run(protoc, check=True)
        sys.path.insert(0, folder)
        return importlib.import_module("wire_pb2")


wire = load_schema()


def frame(payload=b"", **kind):
    """Encodes a message: frame(hello=...) or frame(data, chunk=...)."""
    header = wire.Header(**kind).SerializeToString()
    return struct.pack("<I", len(header)) + header + payload


def parse(message):
    """Decodes a message; returns (header, payload)."""
    end = 4 + struct.unpack_from("<I", message)[0]
    return wire.Header.FromString(message[4:end]), message[end:]


def digest(data):
    return xxhash.xxh3_128_digest(data)


def layout_digest(layout):
    """The digest of a layout, [(name, shape)]. Server and client compare it."""
    text = b""
    for name, shape in layout:
        text += struct.pack("<QQ", len(name), len(shape)) + name.encode()
        text += struct.pack(f"<{len(shape)}q", *shape)
    return digest(text)


def flat(values, size):
    """Returns `values` as a contiguous fp32 vector, which must have `size` elements."""
    vector = np.ascontiguousarray(values, np.float32).ravel()
    if vector.size != size:
        raise ValueError(f"the vector has {vector.size} values, expected {size}")
    return vector


def encode_plain(values, layout):
    """The payload of codec `none` (shared/codec/payload/reader.hpp). Each tensor is cut into blocks. A
    block is one byte that means fp32, then the values. A tensor of one or two values is bare: its
    block is the values alone, and its size is not in the table."""
    values = flat(values, sum(math.prod(shape) for _, shape in layout))
    blocks, sizes, begin = [], [], 0
    for _, shape in layout:
        end = begin + math.prod(shape)
        if 0 < end - begin <= BARE_ELEMENTS_MAX:
            blocks.append(values[begin:end].tobytes())
            begin = end
        while begin < end:
            size = min(BLOCK_ELEMENTS, end - begin)
            blocks.append(b"\0" + values[begin : begin + size].tobytes())
            sizes.append(len(blocks[-1]))
            begin += size
    form = b"FLP3" if len(sizes) == len(blocks) else b"FLP4"
    prefix = struct.pack("<4sI8s", form, BLOCK_ELEMENTS, layout_digest(layout)[:8])
    return b"".join([prefix, struct.pack(f"<{len(sizes)}I", *sizes), *blocks])


def make_upload(payload, **fields):
    """Returns (begin, payload): the message that announces an upload, and its bytes."""
    begin = wire.UploadBegin(**fields)
    begin.bytes, begin.digest = len(payload), digest(payload)
    return begin, payload
