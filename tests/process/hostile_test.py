# SPDX-License-Identifier: Apache-2.0
"""A client with a valid certificate breaks the protocol. Each time the server tells it what was
wrong, and the run of the other clients goes on."""

import asyncio
import contextlib
import shutil
import struct
import unittest

import numpy as np
import websockets

from federation import AsyncFederationTest
from python_peer import Ended, Peer, frame, identity, join, parse, wire

SIZE = 100000
RUN = ("--new-run", "--model", f"synthetic:{SIZE}", "--min-clients", 2, "--deadline", 2)


class Hostile(AsyncFederationTest):
    # One that breaks the protocol must wait before it comes back, so that each tries one thing.
    evils = tuple(f"evil-{number}" for number in range(18))
    names = ("a", "b", "evil", *evils)

    def begin_run(self, rounds):
        """Starts the server. finish_run() starts the two honest clients."""
        self.federation = self.make()
        self.next_evil = iter(self.evils)
        self.server = self.federation.server(*RUN, "--rounds", rounds)
        self.rounds = rounds

    async def finish_run(self):
        async with Peer(self.federation, "evil") as peer:
            await peer.shake_hands()  # At the end of the block it leaves in good order.
        await self.run_to_its_end()

    async def run_to_its_end(self):
        clients = [self.federation.client(name) for name in ("a", "b")]
        for program in [*clients, self.server]:
            code = await asyncio.to_thread(program.wait)
            self.assertEqual(code, 0, str(program))
        self.assertEqual(self.federation.rounds_done(), self.rounds)

    async def farewell(self, what, messages, reason, hands=True, name=None):
        """Sends raw messages on a new session, by default of another member each time; a Bye that
        says `reason` must answer them."""
        with self.subTest(what):
            async with Peer(self.federation, name or next(self.next_evil)) as peer:
                if hands:
                    await peer.shake_hands()
                for message in messages:
                    await peer.ws.send(message)
                while True:
                    header, _ = parse(await asyncio.wait_for(peer.ws.recv(), 20))
                    if header.HasField("bye"):
                        break
                self.assertIn(reason, header.bye.reason)
                with self.assertRaises(websockets.exceptions.ConnectionClosed):
                    while True:
                        await asyncio.wait_for(peer.ws.recv(), 20)

    async def test_an_old_key_that_waits_in_its_handshake_comes_no_further(self):
        self.begin_run(1)
        async with Peer(self.federation, "evil") as peer:
            await peer.send(hello=wire.Hello(protocol=5, codecs=["none"]))
            await peer.receive("welcome")
            other = self.federation.folder / "another key"
            await asyncio.to_thread(join, self.federation.token("evil"), other)
            await peer.send(ready=wire.Ready(train_examples=10))
            with self.assertRaisesRegex(Ended, "has a newer certificate"):
                await peer.receive("offer")
        await self.run_to_its_end()

    async def test_a_token_fixes_what_its_client_may_do(self):
        """A client that says it is something else than its token says is refused, and told what to
        do. A new token for the name keeps the role, or changes it."""
        self.begin_run(1)

        async def refused(reason, evaluator, **counts):
            hello = frame(hello=wire.Hello(protocol=5, codecs=["none"], evaluator=evaluator))
            ready = frame(ready=wire.Ready(**counts))
            await self.farewell(reason, [hello, ready], reason, hands=False, name="evil")

        async def join_again(*flags):
            token = self.federation.token("evil", *flags)
            folder = identity(self.federation, "evil")
            await asyncio.to_thread(shutil.rmtree, folder)
            await asyncio.to_thread(join, token, folder)

        await refused("enroll --name evil --role evaluator", True, holdout_examples=10)
        await join_again("--role", "evaluator", "--max-examples", 50)
        await refused("enroll --name evil --role trainer", False, train_examples=10)
        await join_again("--expires", 60)
        await refused("enroll --name evil --role trainer", False, train_examples=10)
        await refused("enroll --name evil --max-examples 51", True, holdout_examples=51)
        await join_again("--role", "trainer")
        await refused("enroll --name evil --max-examples 51", False, train_examples=51)
        await join_again("--max-examples", 0)
        await self.finish_run()
        _, table, _ = self.federation.server_command("clients")
        self.assertRegex(table, r"evil .* trainer")

    async def test_broken_messages(self):
        self.begin_run(2)
        hello = frame(hello=wire.Hello(protocol=5, codecs=["none"]))
        chunk = wire.Chunk(transfer=77)
        await self.farewell(
            "a string that is not UTF-8",
            [hello.replace(b"none", b"\xff\xfe\xff\xfe")],
            "not valid protobuf",
            hands=False,
        )
        await self.farewell(
            "another protocol",
            [frame(hello=wire.Hello(protocol=99, codecs=["none"]))],
            "protocol 99, this server 5",
            hands=False,
        )
        await self.farewell(
            "Ready before Hello",
            [frame(ready=wire.Ready(train_examples=1))],
            "the first message is Ready",
            hands=False,
        )
        await self.farewell(
            "Hello twice", [hello, hello], "the second message is Hello", hands=False
        )
        await self.farewell(
            "no examples", [hello, frame(ready=wire.Ready())], "no training examples", hands=False
        )
        await self.farewell(
            "too many examples",
            [hello, frame(ready=wire.Ready(train_examples=1 << 62))],
            "the limit is",
            hands=False,
        )
        await self.farewell(
            "no codec",
            [frame(hello=wire.Hello(protocol=5, codecs=["zip"]))],
            "codec 'none'",
            hands=False,
        )
        await self.farewell("a third Hello", [hello], "a client may not send Hello")
        await self.farewell(
            "a server's message", [frame(welcome=wire.Welcome())], "a client may not send Welcome"
        )
        await self.farewell("text", ["hello"], "a text message")
        await self.farewell("an empty message", [b""], "a message of 0 bytes")
        await self.farewell(
            "a header bomb",
            [struct.pack("<I", 0xFFFFFFFF) + b"x"],
            "a message header of 4294967295 bytes",
        )
        await self.farewell(
            "a cut header", [struct.pack("<I", 100) + b"x"], "ends within its header"
        )
        await self.farewell(
            "no protobuf", [struct.pack("<I", 4) + b"\xff\xff\xff\xff"], "not valid protobuf"
        )
        await self.farewell(
            "no kind", [struct.pack("<I", 0)], "a message of an unknown kind"
        )
        await self.farewell(
            "a payload without a chunk",
            [frame(b"x", fetch=wire.Fetch())],
            "payload bytes after Fetch",
        )
        await self.farewell(
            "a chunk without an upload",
            [frame(b"x", chunk=chunk)],
            "a chunk of transfer 77 without an upload",
        )
        await self.farewell(
            "no signing request", [frame(renew=wire.Renew(csr_pem="nonsense"))], "not a valid signing request"
        )
        await self.finish_run()
        self.assertNotIn("libprotobuf", self.server.stderr())

    async def test_impossible_summaries_of_values(self):
        """The server of a model that scales two inputs and a target."""
        self.federation = self.make()
        server = self.federation.server("--new-run", "--model", "linear:2-1", "--min-clients", 2)
        hello = frame(hello=wire.Hello(protocol=5, codecs=["none"]))

        def ready(counts, means, squares):
            told = {"value_counts": counts, "value_means": means, "value_squares": squares}
            return [hello, frame(ready=wire.Ready(train_examples=10, **told))]

        wrong = {
            "none at all": (ready([], [], []), "0 values are told, and the model has 3"),
            "too few": (ready([1], [1], [0]), "1 values are told, and the model has 3"),
            "of unlike number": (ready([1, 1, 1], [1], [0]), "3 counts, 1 means and 1 squares"),
            "of more examples": (ready([10, 11, 10], [0] * 3, [1] * 3), "value 2 has count 11"),
            "an infinite mean": (ready([1] * 3, [0, 0, 1e39], [0] * 3), "value 3 has count 1"),
            "no number": (ready([1] * 3, [0] * 3, [0, float("nan"), 0]), "value 2 has count 1"),
        }
        for what, (messages, reason) in wrong.items():
            await self.farewell(what, messages, reason, hands=False, name="evil")
        # One alone does not begin the run, whatever it tells.
        async with Peer(self.federation, "evil") as peer:
            for message in ready([10] * 3, [1e30] * 3, [0] * 3):
                await peer.ws.send(message)
            header, _ = parse(await asyncio.wait_for(peer.ws.recv(), 20))
            self.assertTrue(header.HasField("welcome"))
            self.assertEqual(self.federation.digests(), [])
        server.signal(2)
        self.assertEqual(await asyncio.to_thread(server.wait), 0)

    async def test_an_oversized_message_closes_with_its_own_code(self):
        self.begin_run(1)
        name = next(self.next_evil)
        async with Peer(self.federation, name) as peer:
            await peer.shake_hands()
            with self.assertRaises(websockets.exceptions.ConnectionClosed) as closed:
                await peer.ws.send(bytes(2 << 20))
                while True:
                    await asyncio.wait_for(peer.ws.recv(), 20)
            # The rest of the message may reach a closed socket, and the reset may arrive before the
            # close reason.
            if closed.exception.rcvd:
                self.assertEqual(
                    closed.exception.rcvd.code, websockets.frames.CloseCode.MESSAGE_TOO_BIG
                )
        await asyncio.to_thread(self.server.wait_for, "sent a message of more than", 10)
        await asyncio.to_thread(self.server.wait_for, f"{name} left", 10)
        await self.finish_run()

    async def refused(self, peer, what, reason, values=None, without="", **changes):
        """Answers one round's task with a wrong update, which must be refused with this reason."""
        begin, _ = await peer.make_update(values, **changes)
        if without:  # MergeFrom() can't set a field to 0, which is protobuf's default.
            begin.ClearField(without)
        with self.subTest(what):
            await peer.send(begin=begin)
            if values is not None:
                await peer.send_chunks(await peer.resume())
            verdict = await peer.verdict()
            self.assertEqual(verdict.outcome, wire.Verdict.REFUSED, verdict)
            self.assertIn(reason, verdict.reason)
            row = self.federation.query(
                "SELECT reason FROM task WHERE id = ? AND state = 'refused'", begin.task
            )
            self.assertEqual(row, [(verdict.reason,)])

    async def test_wrong_updates(self):
        """Sends one wrong update in each round. The honest clients complete the round without
        it. After every second a right one follows: a client whose updates never count is not asked
        any more."""
        nan = np.zeros(SIZE, np.float32)
        nan[77777] = np.nan
        huge = np.full(SIZE, 3e38, np.float32)
        wrong = [
            ("another round", "it says that its task was offered in round 4711", dict(round=4711)),
            ("another version", "trained from model version 4711", dict(version=4711)),
            ("a short digest", "its digest does not have 16 bytes", dict(digest=b"short")),
            ("another codec", "it is coded as 'fp16'; the task asked for 'none'", dict(codec="fp16")),
            ("too many bytes", "it has 1099511627776 bytes", dict(bytes=1 << 40)),
            ("too heavy", "the client has 1000", dict(examples=1 << 50)),
            ("no weight", "its weight is 0 examples", dict(without="examples")),
            ("a loss that is none", "loss is not finite", dict(loss=float("inf"))),
            ("NaN", "weight[77777]", dict(values=nan)),
            ("values much larger than others'", "times the median", dict(values=huge)),
        ]
        right = len(wrong) // 2
        self.begin_run(len(wrong) + right + 2)
        async with Peer(self.federation, "evil") as peer:
            await peer.shake_hands()
            # Start the honest clients only now, so that the first round asks evil, too.
            honest = [self.federation.client(name) for name in ("a", "b")]
            for number, (what, reason, changes) in enumerate(wrong):
                await self.refused(peer, what, reason, **changes)
                if number % 2 == 0:
                    continue
                begin, _ = await peer.make_update()
                await peer.send(begin=begin)
                await peer.send_chunks(await peer.resume())
                self.assertEqual((await peer.verdict()).outcome, wire.Verdict.ACCEPTED)
        for program in [self.server, *honest]:
            code = await asyncio.to_thread(program.wait)
            self.assertEqual(code, 0, str(program))
        self.assertEqual(self.federation.rounds_done(), self.rounds)
        counted = self.federation.query(
            "SELECT count(*) FROM task WHERE client = 'evil' AND state = 'accepted'"
        )
        self.assertEqual(counted, [(right,)])

    async def broken_upload(self, what, reason, send):
        """Sends an upload with a mistake, which must end the session with this reason, and the
        task with it: another member is asked."""
        name = next(self.next_evil)
        async with Peer(self.federation, name) as peer:
            await peer.shake_hands()
            begin, payload = await peer.make_update()
            await peer.send(begin=begin)
            await peer.resume()
            await send(peer, begin, payload)
            with self.subTest(what):
                while True:
                    header, _ = parse(await asyncio.wait_for(peer.ws.recv(), 20))
                    if header.HasField("bye"):
                        break
                self.assertIn(reason, header.bye.reason)
        await asyncio.to_thread(self.server.wait_for, f"{name} left", 10)

    async def test_broken_uploads(self):
        self.federation = self.make()
        self.next_evil = iter(self.evils)
        # Three are needed, so the round stays open until one of them sends a correct update.
        self.server = self.federation.server(
            "--new-run", "--model", f"synthetic:{SIZE}", "--min-clients", 3, "--rounds", 1
        )
        honest = [self.federation.client(name) for name in ("a", "b")]
        self.server.wait_for("initial model")
        step = 65536

        async def chunk(peer, begin, payload, at, size=step, transfer=None):
            await peer.send(
                payload[at : at + size],
                chunk=wire.Chunk(transfer=transfer or begin.task, offset=at),
            )

        async def duplicated(peer, begin, payload):
            await chunk(peer, begin, payload, 0)
            await chunk(peer, begin, payload, 0)

        async def missing(peer, begin, payload):
            await chunk(peer, begin, payload, 2 * step)

        async def of_another(peer, begin, payload):
            await chunk(peer, begin, payload, 0, transfer=begin.task + 1)

        async def empty(peer, begin, payload):
            await chunk(peer, begin, payload, 0, size=0)

        async def begun_twice(peer, begin, payload):
            await peer.send(begin=begin)

        async def too_long(peer, begin, payload):
            for at in range(0, len(payload) + 1, step):
                await chunk(peer, begin, payload + b"x", at)

        await self.broken_upload("duplicated", "a duplicated chunk", duplicated)
        await self.broken_upload("missing", "reordered or missing", missing)
        await self.broken_upload("of another", ", expected transfer", of_another)
        await self.broken_upload("empty", "an empty chunk", empty)
        await self.broken_upload("begun twice", "under way", begun_twice)
        await self.broken_upload("too long", "exceeds the announced", too_long)

        # If the bytes do not have the announced digest, the client is asked to send them again.
        async with Peer(self.federation, "evil") as peer:
            await peer.shake_hands()
            begin, payload = await peer.make_update()
            await peer.send(begin=begin)
            resume = await peer.resume()
            damaged = bytearray(payload)
            damaged[-1] ^= 1
            peer.pending = begin, bytes(damaged)
            await peer.send_chunks(resume)
            verdict = await peer.verdict()
            self.assertEqual(verdict.outcome, wire.Verdict.LATER)
            self.assertIn("announced was", verdict.reason)
            peer.pending = begin, payload
            await peer.send(begin=begin)
            resume = await peer.resume()
            self.assertEqual(resume.offset, 0)
            await peer.send_chunks(resume)
            self.assertEqual((await peer.verdict()).outcome, wire.Verdict.ACCEPTED)
            # Announced once more, the update is accepted but not counted again. The run may be
            # over.
            with contextlib.suppress(Ended):
                await peer.send(begin=begin)
                self.assertEqual((await peer.verdict()).outcome, wire.Verdict.ACCEPTED)
        for program in [self.server, *honest]:
            code = await asyncio.to_thread(program.wait)
            self.assertEqual(code, 0, str(program))
        self.assertEqual(
            self.federation.query("SELECT count(*) FROM task WHERE state = 'accepted'"), [(3,)]
        )


if __name__ == "__main__":
    unittest.main()
