# SPDX-License-Identifier: Apache-2.0
"""Clients in this process for tests: many of them, or one that breaks the protocol. They are the
client of examples/python-client with the model `synthetic:N`."""

import asyncio
import concurrent.futures
import contextlib
import json
import struct
import sys
import tempfile

import numpy as np
import websockets.asyncio.client as websocket
from websockets.exceptions import WebSocketException  # noqa: F401

from federation import SOURCE
from wire_messages import digest, encode_plain, frame, make_upload, parse, wire  # noqa: F401

EXAMPLE = SOURCE / "examples" / "python-client"
PROGRAM = EXAMPLE / "client.py"
sys.path.insert(0, str(EXAMPLE))
import client as example  # noqa: E402
from client import Ended, Line  # noqa: E402,F401


def identity(federation, name):
    """The folder of a client's key and certificate."""
    return federation.folder / name / "identity"


def join(token, folder):
    example.Client(folder, None).join(token)


def join_many(federation, names):
    """Joins these clients with the example's own code, in the folders that identity() names."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        tokens = {name: federation.token(name) for name in names}
        list(pool.map(lambda name: join(tokens[name], identity(federation, name)), names))


class Noise(Line):
    """`synthetic:N`: N weights whose updates are noise."""

    def __init__(self, size):
        self.size, self.examples = size, 1000
        self.layout = digest(struct.pack("<QQ6sq", 6, 1, b"weight", size))

    def train(self, start, offer):
        return np.random.default_rng(offer.seed).standard_normal(self.size, np.float32), 1, 0.0


class Client(example.Client):
    """It may have been joined by fl-client, whose files are in the folder then."""

    def __init__(self, folder):
        super().__init__(folder, None)
        if (folder / "cert.pem").exists():
            self.kept = json.loads((folder / "identity.json").read_text())
            for name, file in (("key", "key.pem"), ("certificate", "cert.pem"), ("ca", "ca.pem")):
                self.kept[name] = (folder / file).read_text()

    async def receive(self, *kinds):
        header, payload = await super().receive(*kinds)
        if header.HasField("welcome"):
            self.model = Noise(int(header.welcome.model.removeprefix("synthetic:")))
        return header, payload

    async def run(self):
        try:
            await super().run()
        except Ended as reason:
            if str(reason):
                raise


class Peer(Client):
    """A client that sends exactly what a test says. Use `async with Peer(...) as peer`."""

    def __init__(self, federation, name):
        super().__init__(identity(federation, name))

    async def __aenter__(self):
        address = f"wss://{self.kept['server']}/v1/session"
        context = example.trusting(self.kept["ca"])
        with tempfile.NamedTemporaryFile("w") as file:
            print(self.kept["key"] + self.kept["certificate"], file=file, flush=True)
            context.load_cert_chain(file.name)
        limits = {"max_size": example.MESSAGE_BYTES_MAX, "proxy": None}
        self.ws = await websocket.connect(address, ssl=context, **limits)
        return self

    async def __aexit__(self, *_):
        with contextlib.suppress(WebSocketException):  # The server may have ended the session.
            await self.leave()
        await self.ws.close()

    async def leave(self):
        """Says goodbye. At the run's end the server waits for a client that only lost its
        connection."""
        await self.send(bye=wire.Bye(cause=wire.Bye.LEAVING))

    async def receive(self, *kinds):
        return await asyncio.wait_for(super().receive(*kinds), 60)

    async def next_offer(self):
        while not self.offer:
            await self.receive("offer")
        offer, self.offer = self.offer, None
        return offer

    async def resume(self):
        return (await self.receive("resume"))[0].resume

    async def verdict(self):
        return (await self.receive("verdict"))[0].verdict

    async def send_chunks(self, resume):
        begin, payload = self.pending
        for at in range(resume.offset, len(payload), resume.chunk_bytes):
            part = payload[at : at + resume.chunk_bytes]
            await self.send(part, chunk=wire.Chunk(transfer=begin.task, offset=at))

    async def make_update(self, values=None, **changes):
        """Waits for an offer and makes a pending update for it, with `changes` to its
        UploadBegin."""
        offer = await self.next_offer()
        values = np.ones(self.model.size) if values is None else values
        self.pending = make_upload(
            encode_plain(values, [("weight", [self.model.size])]),
            codec="none",
            task=offer.task,
            round=offer.round,
            version=offer.version,
            examples=self.model.examples,
            steps=1,
            loss=1.0,
        )
        self.pending[0].MergeFrom(wire.UploadBegin(**changes))
        return self.pending
