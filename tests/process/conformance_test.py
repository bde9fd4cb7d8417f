# SPDX-License-Identifier: Apache-2.0
"""Checks RFC 6455: kosoku runs Autobahn's cases against ws_echo, which uses fl-server's streams.

kosoku does not trust the test's authority, so a relay removes the TLS. Groups 12 and 13 test
compression, which Tributary does not have.
"""

import asyncio
import contextlib
import os
import pathlib
import ssl
import subprocess
import tempfile
import unittest

import kosoku

CASES_MIN = 300  # A filter that matches no case must not count as success.


async def pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    writer.close()


class Conformance(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)  # It would report most steps as slow.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        echo = subprocess.Popen(
            [pathlib.Path(os.environ["FL_BIN"]) / "ws_echo", folder.name],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(echo.stdout.close)
        self.addCleanup(echo.wait)
        self.addCleanup(echo.kill)
        self.port = int(echo.stdout.readline())
        self.context = ssl.create_default_context(cafile=pathlib.Path(folder.name) / "ca.crt")
        relay = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        self.addAsyncCleanup(relay.wait_closed)
        self.addCleanup(relay.close)
        self.address = "ws://127.0.0.1:%d" % relay.sockets[0].getsockname()[1]

    async def relay(self, reader, writer):
        inner, outer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.context, server_hostname="127.0.0.1"
        )
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    async def test_autobahn(self):
        try:
            results = await kosoku.run_fuzzingclient(
                self.address, None, ["12.*", "13.*"], concurrency=4
            )
        except kosoku.FailureError as failure:
            results = failure.results
        for result in results:
            with self.subTest(case=result.case_id):
                self.assertTrue(
                    result.passed, f"{result.description}: {result.result} {result.result_close}"
                )
        print(f"{sum(result.passed for result in results)} of {len(results)} Autobahn cases passed")
        self.assertGreaterEqual(len(results), CASES_MIN)


if __name__ == "__main__":
    unittest.main()
