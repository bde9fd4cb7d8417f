"""The parts of examples/python-client that the tests speak raw protocol with."""

import asyncio
import concurrent.futures
import sys

from federation import SOURCE

sys.path.insert(0, str(SOURCE / "examples" / "python-client"))
import client as example  # noqa: E402
from client import frame, parse, wire  # noqa: E402,F401

PROGRAM = SOURCE / "examples" / "python-client" / "client.py"


def identity(federation, name):
    """The folder of an fl-client's key and certificate: the example's files have the same names."""
    return federation.folder / name / "identity"


def join_many(federation, names):
    """Clients that joined by the example's own code, their folders as identity() names them."""

    def join(name):
        example.join(federation.token(name), identity(federation, name))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(join, names))


class Peer:
    """A client that does exactly what a test says. `async with Peer(...) as peer`."""

    def __init__(self, federation, name):
        self.client = example.Client(identity(federation, name))

    async def __aenter__(self):
        self.ws = await self.client.connect()
        return self

    async def __aexit__(self, *_):
        await self.ws.close()

    async def send(self, payload=b"", **kind):
        await self.ws.send(frame(payload, **kind))

    async def shake_hands(self):
        await self.client.shake_hands(self.ws)

    async def receive(self, kind, limit_s=60):
        """The next message of this kind. What concerns the initial model is answered as it should
        be on the way; other messages are passed over, but for a Bye that is not asked for."""
        while True:
            header, payload = parse(await asyncio.wait_for(self.ws.recv(), limit_s))
            found = getattr(header, header.WhichOneof("kind"))
            if (
                header.HasField("initialise")
                or getattr(found, "purpose", wire.UPDATE) == wire.INITIAL
            ):
                await self.client.handle(self.ws, header, payload)
            elif header.HasField(kind):
                return found
            elif header.HasField("bye"):
                raise AssertionError(f"instead of {kind}: {found}")

    async def update(self, values=None, **changes):
        """Waits for an offer, and returns (begin, payload) of an update for it with `changes`."""
        offer = await self.receive("offer")
        if values is None:
            values = self.client.model.initial(0) + 1
        self.client.keep(
            values,
            task=offer.task,
            round=offer.round,
            version=offer.version,
            examples=self.client.model.examples,
            steps=1,
            loss=1.0,
        )
        begin, payload = self.client.pending
        begin.MergeFrom(wire.Begin(**changes))
        return begin, payload
