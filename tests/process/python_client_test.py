# SPDX-License-Identifier: Apache-2.0
"""The wire example in Python, examples/python-client, as a program and in this process; and a run's
files as a Python user reads them."""

import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from federation import SOURCE, AsyncFederationTest, FederationTest, forge, wait_until
from python_peer import PROGRAM, Ended, Noise, example, wire

sys.path.insert(0, str(SOURCE / "tests" / "python"))
from slow_line import SlowLine  # noqa: E402

WEIGHTS = np.array([4, 1, -2, 3], np.float32)  # The weights that the data of write_data() follow.
LINES_MAX = 250
RUN = ("--new-run", "--model", "synthetic:3000", "--min-clients", 1)


def write_data(path, seed, columns=3):
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((300, columns)).astype(np.float32)
    np.savez(path, x=x, y=x @ np.resize(WEIGHTS[1:], columns) + WEIGHTS[0])
    return path


class Examples(FederationTest):
    names = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.schema = cls.root / "schema"
        cls.schema.mkdir()
        proto = SOURCE / "proto"
        command = ["protoc", f"-I{proto}", f"--python_out={cls.schema}", "wire.proto"]
        subprocess.run(command, check=True)

    def setUp(self):
        os.environ["PYTHONPATH"] = str(self.schema)
        self.addCleanup(os.environ.pop, "PYTHONPATH")

    def begin(self, federation, *flags, rounds=30, clients=1, columns=3):
        file = federation.folder / "line.safetensors"
        safetensors.numpy.save_file({"weight": np.zeros(columns + 1, np.float32)}, file)
        return federation.server(
            *("--new-run", "--model", "custom:line", "--initial-weights", file, "--lr", 0.2),
            *("--rounds", rounds, "--min-clients", clients, *flags),
        )

    def client(self, federation, name, *token, data=None):
        data = data or write_data(federation.folder / f"{name}.npz", len(name))
        folder = federation.folder / name
        command = [sys.executable, "-u", PROGRAM, folder, data, *token]
        return federation.start(f"python-{name}", command)

    def last(self, federation):
        """The newest version's tensors, and what the file says of itself."""
        path = sorted(federation.checkpoints.glob("*.safetensors"))[-1]
        with safetensors.safe_open(path, "numpy") as opened:
            facts = opened.metadata()
        return safetensors.numpy.load_file(path), facts


class PythonClient(Examples):
    def test_it_is_one_file_of_few_lines(self):
        files = {path.name for path in PROGRAM.parent.glob("*.py")} - {"wire_pb2.py"}
        self.assertEqual(files, {PROGRAM.name})
        self.assertLessEqual(len(PROGRAM.read_text().splitlines()), LINES_MAX)

    def test_a_run_through_a_restart_of_the_server(self):
        federation = self.make()
        server = self.begin(federation, clients=2)
        tokens = {name: federation.token(name) for name in ("a", "bb")}
        programs = [self.client(federation, *both) for both in tokens.items()]
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        server.kill()
        server = federation.server()
        for program in [server, *programs]:
            self.expect_exit(program)
        for program in programs:
            for number in range(1, 31):
                self.assertEqual(program.stdout().count(f"round {number}: ACCEPTED"), 1)
        accepted = federation.query(
            "SELECT client, count(*) FROM task WHERE state = 'accepted' GROUP BY client"
        )
        self.assertEqual(accepted, [("a", 30), ("bb", 30)])
        tensors, facts = self.last(federation)
        np.testing.assert_allclose(tensors["weight"], WEIGHTS, atol=0.1)
        self.assertEqual((facts["model"], facts["clients"]), ("custom:line", "2"))
        self.assertEqual(facts["run"], server.ready["run"])
        self.assertEqual(
            xxhash.xxh3_128_hexdigest(tensors["weight"].tobytes()), federation.digests()[30]
        )

    def test_a_killed_client_goes_on_and_trains_the_same_again(self):
        digests = []
        for name in "whole", "killed":
            federation = self.make(name)
            server = self.begin(federation, rounds=300)
            token = federation.token("a")
            program = self.client(federation, "a", token)
            if name == "killed":
                for rounds in 5, 40, 80:
                    wait_until("rounds", lambda: federation.rounds_done() >= rounds)  # noqa: B023
                    program.kill()
                    program = self.client(federation, "a", token)  # The token is used up.
            for ends in server, program:
                self.expect_exit(ends)
            digests.append(federation.digests()[-1])
        self.assertEqual(digests[0], digests[1])

    def test_own_errors_end_it_at_once(self):
        federation = self.make()
        self.begin(federation)
        missing = self.client(federation, "a", federation.token("a"), data="none.npz")
        self.assertEqual(missing.wait(), 1)
        self.assertIn("No such file or directory: 'none.npz'", missing.stderr())
        stranger = self.client(federation, "stranger")
        self.assertEqual(stranger.wait(), 1)
        self.assertIn("this client has not joined", stranger.stderr())
        wide = write_data(federation.folder / "wide.npz", 1, columns=5)
        other = self.client(federation, "b", federation.token("b"), data=wide)
        self.assertEqual(other.wait(), 1)
        self.assertIn("not one tensor 'weight' [6]", other.stderr())
        said = "SELECT count(*) FROM event WHERE text LIKE 'b can''t take part: %''weight'' [6]'"
        wait_until("the history says so", lambda: federation.query(said) == [(1,)])
        federation.server_command("revoke", "b")
        revoked = self.client(federation, "b")
        self.assertEqual(revoked.wait(), 1)
        self.assertIn("was revoked", revoked.stderr())
        for program in missing, stranger, other, revoked:
            self.assertNotIn("trying again", program.stdout())
            self.assertNotIn("Traceback", program.stderr())

    def test_training_that_raises_is_told_and_ends_it(self):
        federation = self.make()
        self.begin(federation, "--optimizer", "adam")
        program = self.client(federation, "a", federation.token("a"))
        self.assertEqual(program.wait(), 1)
        self.assertIn("this client knows --optimizer sgd only", program.stderr())
        said = "SELECT count(*) FROM event WHERE text LIKE 'a says: %knows --optimizer sgd only%'"
        wait_until("the history says so", lambda: federation.query(said) == [(1,)])

    def test_a_method_that_it_does_not_know(self):
        federation = self.make()
        self.begin(federation, "--strategy", "fednova")
        program = self.client(federation, "a", federation.token("a"))
        self.assertEqual(program.wait(), 1)
        self.assertIn("does not know the run's method 'fednova'", program.stderr())
        said = "SELECT count(*) FROM event WHERE text LIKE 'a can''t take part: %method ''fednova'''"
        wait_until("the history says so", lambda: federation.query(said) == [(1,)])

    def test_wrong_tokens_are_refused_and_told_why(self):
        federation = self.make()
        self.begin(federation, clients=2)
        token = federation.token("a")
        other = "B" if token[20] == "A" else "A"
        wrong = {
            "nonsense": "not a complete join token",
            "flj1.": "not a complete join token",
            token[:-5]: "not a complete join token",
            token[:20] + other + token[21:]: "not a complete join token",
            forge(token, fingerprint=bytes(32)): "is not the server that this token was made for",
            forge(token, secret=bytes(16)): "does not know this join token",
        }
        for text, reason in wrong.items():
            with self.subTest(text):
                program = self.client(federation, "a", text)
                self.assertEqual(program.wait(), 1)
                self.assertIn(reason, program.stderr())
                self.assertNotIn("Traceback", program.stderr())
        # The client has not sent the secret to a wrong server, so the token still works once.
        self.client(federation, "a", token)
        kept = federation.folder / "a" / "identity.json"
        wait_until("it has joined", lambda: kept.exists() and "certificate" in kept.read_text())
        self.assertEqual(kept.stat().st_mode & 0o777, 0o600)
        again = self.client(federation, "twice", token)
        self.assertEqual(again.wait(), 1)
        self.assertIn("already used", again.stderr())

    def test_a_newer_token_is_used(self):
        federation = self.make()
        self.begin(federation, rounds=100_000)
        first, second = federation.token("a"), federation.token("a")
        program = self.client(federation, "a", first)
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        program.kill()
        kept = federation.folder / "a" / "identity.json"
        before = kept.read_text()
        program = self.client(federation, "a", second)
        wait_until("it has joined again", lambda: kept.read_text() != before)
        rounds = federation.rounds_done()
        wait_until("a round more", lambda: federation.rounds_done() > rounds + 1)
        self.assertTrue(program.running(), str(program))

    def test_it_follows_the_server_into_another_run(self):
        federation = self.make()
        endless = self.begin(federation, rounds=100_000)
        program = self.client(federation, "a", federation.token("a"))
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        endless.kill()
        server = self.begin(federation, rounds=2)
        for ends in (server, program):
            self.expect_exit(ends)
        self.assertEqual(federation.rounds_done(), 2)

    def test_a_slow_line_that_breaks(self):
        """At 20 kB/s the answers to the client's pings wait behind what is under way, for longer
        than a WebSocket library is used to wait, which is twenty seconds. After the cuts both ways
        go on where they were."""
        federation = self.make()
        columns = 300_000
        server = self.begin(federation, rounds=1, columns=columns)
        data = federation.folder / "wide.npz"
        x = np.random.default_rng(1).standard_normal((2, columns)).astype(np.float32)
        np.savez(data, x=x, y=np.ones(2, np.float32))
        line = SlowLine(federation.port, 20_000)
        self.addCleanup(line.close)
        folder = federation.folder / "a"
        example.Client(folder, None).join(federation.token("a"))
        kept = folder / "identity.json"
        kept.write_text(kept.read_text().replace(f":{federation.port}", f":{line.port}"))
        program = self.client(federation, "a", data=data)
        wait_until("half of it went down", lambda: line.passed["down"] > 600_000)
        line.bytes_per_s = 200_000
        line.cut()
        wait_until("half of it went up", lambda: line.passed["up"] > 600_000)
        line.cut()
        for ends in (server, program):
            self.expect_exit(ends)
        self.assertEqual(program.stdout().count("trying again"), 2, program.stdout())
        for way in "down", "up":
            self.assertLess(line.passed[way], 1_700_000, line.passed)
        self.assertEqual(federation.query("SELECT state FROM task"), [("accepted",)])


class InThisProcess(AsyncFederationTest):
    names = ()

    def begin(self, *flags):
        federation = self.make()
        server = federation.server(*RUN, *flags)
        client = example.Client(federation.folder / "a", Noise(3000))
        client.join(federation.token("a"))
        return federation, server, client

    async def finish(self, client):
        with contextlib.redirect_stdout(None), self.assertRaises(Ended) as ended:
            await asyncio.wait_for(client.run(), 60)
        return str(ended.exception)

    async def test_a_certificate_that_is_due_is_renewed(self):
        federation, server, client = self.begin("--rounds", 3)
        before = dict(client.kept)
        real = example.time
        self.addCleanup(setattr, example, "time", real)
        example.time = types.SimpleNamespace(time=lambda: real.time() + 70 * 86400)
        self.assertEqual(await self.finish(client), "")
        self.expect_exit(server)
        for name in "key", "certificate":
            self.assertNotEqual(client.kept[name], before[name])
        self.assertNotIn("next", client.kept)
        # The state on the disk is complete, and lets the client in.
        again = federation.server(*RUN, "--rounds", 1)
        client = example.Client(federation.folder / "a", Noise(3000))
        self.assertEqual(await self.finish(client), "")
        self.expect_exit(again)

    async def test_an_error_of_ones_own_file_is_no_broken_line(self):
        federation, _, client = self.begin("--rounds", 3)
        client.model.train = lambda *_: pathlib.Path("no-such-file").read_text()
        said = await self.finish(client)
        self.assertIn("FileNotFoundError", said)
        self.assertIn("no-such-file", said)
        said = "SELECT count(*) FROM event WHERE text LIKE '%no-such-file%'"
        await asyncio.to_thread(wait_until, "it is told", lambda: federation.query(said) == [(1,)])

    async def test_values_that_can_not_be_sent_are_told(self):
        federation, _, client = self.begin("--rounds", 3)
        client.model.train = lambda *_: (np.full(3000, np.nan, np.float32), 1, 0.5)
        self.assertIn("not 3000 finite values", await self.finish(client))


class Downloads(unittest.IsolatedAsyncioTestCase):
    """Tests what a bad server can make the client keep."""

    async def fetch(self, announced, chunks):
        """Lets the server answer a fetch with these figures and bytes. Returns how many bytes the
        client took, and what it said."""
        client = example.Client(self.folder, Noise(1000))
        messages = [(wire.Header(model=wire.ModelHeader(transfer=1, bytes=announced)), b"")]
        messages += [(wire.Header(chunk=wire.Chunk(transfer=1)), bytes(size)) for size in chunks]
        taken = 0

        async def receive(*_):
            nonlocal taken
            header, payload = messages.pop(0)
            taken += len(payload)
            return header, payload

        async def send(**_):
            pass

        client.receive, client.send = receive, send
        with self.assertRaises(ConnectionError) as refused:
            await client.fetch(3)
        self.assertEqual(client.part[1], b"")
        return taken, str(refused.exception)

    async def test_a_download_has_the_size_of_the_model(self):
        with tempfile.TemporaryDirectory() as folder:
            self.folder = pathlib.Path(folder)
            for announced in 1 << 40, 4001, 3999, 0:
                taken, said = await self.fetch(announced, [2000] * 3)
                self.assertEqual((taken, "of 4000 bytes" in said), (0, True), said)
            # More than announced: nothing is read behind the piece with the last byte.
            taken, said = await self.fetch(4000, [2000, 3000, 3000])
            self.assertEqual((taken, "of 4000 bytes" in said), (5000, True), said)


if __name__ == "__main__":
    unittest.main()
