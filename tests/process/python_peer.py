# SPDX-License-Identifier: Apache-2.0
"""The client of examples/python-client for tests: many clients, or one that breaks the protocol."""

import asyncio
import concurrent.futures
import contextlib
import os
import sys

from websockets.exceptions import WebSocketException

from federation import BIN, SOURCE

EXAMPLE = SOURCE / "examples" / "python-client"
PROGRAM = EXAMPLE / "client.py"
sys.path.insert(0, str(EXAMPLE))
if (BIN / "libfl-codec.so").exists():  # Sanitizer builds do not have it.
    os.environ["FL_CODEC_LIBRARY"] = str(BIN / "libfl-codec.so")
import codec  # noqa: E402,F401
import enrol  # noqa: E402
import kept  # noqa: E402,F401
from client import Client, Finished  # noqa: E402,F401
from messages import encode_plain, frame, make_upload, parse, wire  # noqa: E402,F401


def identity(federation, name):
    """The folder of an fl-client's key and certificate. The example uses the same file names."""
    return federation.folder / name / "identity"


def join_many(federation, names):
    """Joins these clients with the example's own code, in the folders that identity() names."""

    def join(name):
        enrol.join(federation.token(name), identity(federation, name))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(join, names))


class Peer(Client):
    """A client that sends exactly what a test says. Use `async with Peer(...) as peer`."""

    def __init__(self, federation, name):
        super().__init__(identity(federation, name))

    async def __aenter__(self):
        self.ws = await self.connect()
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

    async def resume(self):
        return (await self.receive("resume"))[0].resume

    async def verdict(self):
        return (await self.receive("verdict"))[0].verdict

    async def make_update(self, values=None, **changes):
        """Waits for an offer and makes a pending update for it, with `changes` to its
        UploadBegin."""
        offer = await self.next_offer()
        self.pending = make_upload(
            encode_plain(self.initial + 1 if values is None else values, self.model.layout),
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
