# SPDX-License-Identifier: Apache-2.0
"""fl-client's side of the trainer protocol, for tests of trainers without a federation. It reads
and writes tensors by itself, so that it does not repeat the package's mistakes."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "client" / "python"
WAIT_MAX_S = 60
NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


def as_bits(values, dtype):
    """Values in a number format; of BF16, rounded to nearest, as uint16."""
    values = np.asarray(values)
    if dtype != "BF16":
        return values.astype(NUMPY[dtype])
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def from_bits(bits, dtype):
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits


def write_tensors(path, tensors):
    """tensors: {name: (dtype, values)}."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        bits = as_bits(values, dtype).tobytes()
        places = [len(data), len(data) + len(bits)]
        shape = list(np.shape(values))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": places}
        data += bits
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path):
    """{name: values}, each in its number format; BF16 as float32."""
    blob = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header, data = json.loads(blob[8 : 8 + length]), blob[8 + length :]
    tensors = {}
    for name, said in header.items():
        begin, end = said["data_offsets"]
        bits = np.frombuffer(data[begin:end], NUMPY[said["dtype"]]).reshape(said["shape"])
        tensors[name] = from_bits(bits, said["dtype"])
    return tensors


def all_settings(**some):
    """All settings of a request, as fl-client sends them: these, and a default for the others."""
    return {
        "epochs": 1,
        "steps": 0,
        "seconds": 0,
        "batch_size": 64,
        "accumulate": 1,
        "optimizer": {"name": "sgd"},
        "lr": 0.01,
        "momentum": 0,
        "weight_decay": 0,
        "clip_norm": 0,
        "proximal_mu": 0,
        "seed": 0,
        **some,
    }


class FakeAgent:
    """One end of a connection to a trainer. A test calls hello() first, then train() and so on,
    each of which waits for the answer."""

    def __init__(self, sock, folder):
        self.sock, self.folder = sock, pathlib.Path(folder)
        sock.settimeout(WAIT_MAX_S)
        self.file = sock.makefile("rb")
        self.number = 0
        self.progress = []
        self.formats = {}

    def send(self, message):
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self):
        line = self.file.readline()
        if not line:
            raise EOFError("the trainer has closed its socket")
        return json.loads(line)

    def hello(self):
        said = self.receive()
        assert said["type"] == "hello" and said["protocol"] == 1, said
        self.formats = {tensor["name"]: tensor.get("dtype", "F32") for tensor in said["tensors"]}
        self.shapes = {tensor["name"]: tensor["shape"] for tensor in said["tensors"]}
        return said

    def begin(self, kind, weights=None, correction=None, **members):
        """Sends a request and returns its id. `settings`: those that are no defaults."""
        self.number += 1
        if "settings" in members:
            members["settings"] = all_settings(**members["settings"])
        request = {"type": kind, "id": self.number, **members}
        if weights is not None:
            request["weights"] = str(self.folder / "weights.safetensors")
            formats = self.formats
            write_tensors(
                request["weights"], {name: (formats[name], v) for name, v in weights.items()}
            )
        if correction is not None:
            request["correction"] = str(self.folder / "correction.safetensors")
            write_tensors(request["correction"], {n: ("F32", v) for n, v in correction.items()})
        if kind != "evaluate":
            request["out"] = str(self.folder / "out.safetensors")
        self.send(request)
        return self.number

    def end(self, number):
        """Waits for the answer to a request: done or error."""
        while True:
            message = self.receive()
            assert message["id"] == number, message
            if message["type"] == "progress":
                self.progress.append(message)
            else:
                assert message["type"] in ("done", "error"), message
                return message

    def ask(self, kind, weights=None, correction=None, **members):
        return self.end(self.begin(kind, weights, correction, **members))

    def train(self, weights, correction=None, round=1, **settings):
        """Returns (trained weights, done). AssertionError: the trainer says error."""
        settings = {"seed": 2**63 + 1, **settings}
        members = {"run": "3f0c9a1b22d4e871", "round": round, "settings": settings}
        done = self.ask("train", weights, correction, **members)
        assert done["type"] == "done" and done["wrote"] == "weights", done
        return self.out(), done

    def out(self):
        return read_tensors(self.folder / "out.safetensors")

    def bye(self):
        self.send({"type": "bye"})


@contextlib.contextmanager
def agent_for(trainer):
    """An agent for a trainer in this process, which another thread serves."""
    from tributary_fl._channel import Channel

    ours, theirs = socket.socketpair()
    folder = tempfile.mkdtemp(prefix="tributary-")
    serving = threading.Thread(target=lambda: Channel(theirs).serve(trainer), daemon=True)
    serving.start()
    try:
        agent = FakeAgent(ours, folder)
        yield agent
        agent.bye()
        serving.join(WAIT_MAX_S)
        assert not serving.is_alive(), "the trainer goes on after bye"
    finally:
        ours.close()
        theirs.close()
        shutil.rmtree(folder)


class AgentWithProcess(FakeAgent):
    """An agent that has started a program as its trainer; `output` is for what that prints."""

    def __init__(
        self, command, folder, environment=None, program=(sys.executable,), output=None
    ):
        path = os.path.join(folder, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(0.1)
            paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
            self.log = pathlib.Path(folder) / "trainer.log"
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [*program, *map(str, command)],
                    env={
                        **os.environ,
                        "TRIBUTARY_SOCKET": path,
                        "PYTHONPATH": os.pathsep.join(paths),
                        **(environment or {}),
                    },
                    stdout=log if output is None else output,
                    stderr=subprocess.STDOUT,
                )
            sock = self._accept(listener)
        super().__init__(sock, folder)

    def _accept(self, listener):
        end = time.monotonic() + WAIT_MAX_S
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(TimeoutError, socket.timeout):
                return listener.accept()[0]
        self.process.kill()
        self.process.wait()
        raise AssertionError(f"the trainer did not connect:\n{self.log.read_text()}")

    def close(self):
        self.sock.close()
        self.file.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
