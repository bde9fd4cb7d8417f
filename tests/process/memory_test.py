# SPDX-License-Identifier: Apache-2.0
"""64 clients download and upload a model of 1,000,000 parameters at the same time. The server's
memory stays a small multiple of the model."""

import asyncio
import os
import time
import unittest

from federation import AsyncFederationTest
from process_table import memory_of
from python_peer import Client, identity, join_many

CLIENTS = 64
PARAMETERS = 1_000_000
MEMORY_MAX = 3 * 4 * PARAMETERS + (128 << 20)


class Together(Client):
    """Starts its upload when all clients are ready to upload."""

    barrier = None

    async def receive(self, *kinds):
        header, payload = await super().receive(*kinds)
        if header.HasField("resume") and self.pending[0].round == 1:
            await self.barrier.wait()
        return header, payload


class Memory(AsyncFederationTest):
    names = ()

    async def test_sixty_four_uploads_at_once(self):
        if os.environ.get("FL_SANITIZE"):
            self.skipTest("NO MEMORY WAS MEASURED: a sanitizer needs most of its build's memory")
        federation = self.make()
        flags = f"--new-run --model synthetic:{PARAMETERS} --min-clients {CLIENTS} --rounds 1"
        server = federation.server(*flags.split())
        names = [f"client-{number:02}" for number in range(CLIENTS)]
        await asyncio.to_thread(join_many, federation, names)
        Together.barrier = asyncio.Barrier(CLIENTS)
        began = time.monotonic()
        run = asyncio.gather(*(Together(identity(federation, name)).run() for name in names))
        peak = 0
        while server.running():
            peak = max(peak, memory_of(server.pid, "VmHWM"))
            await asyncio.sleep(0.02)
        await run
        self.expect_exit(server)
        took = time.monotonic() - began
        megabytes = 2 * CLIENTS * 4 * PARAMETERS / 1e6
        print(f"{CLIENTS} clients, {megabytes:.0f} MB in {took:.1f} s, peak {peak >> 20} MiB")
        self.assertEqual(
            federation.query("SELECT clients_accepted FROM round_summary"), [(CLIENTS,)]
        )
        self.assertLess(peak, MEMORY_MAX)


if __name__ == "__main__":
    unittest.main()
