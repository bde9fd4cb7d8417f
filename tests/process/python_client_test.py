"""The Python example beside fl-client, and the files of a run as a Python user reads them."""

import asyncio
import contextlib
import sys
import unittest

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from federation import AsyncFederationTest, FederationTest, forge, wait_until
from python_peer import PROGRAM, Client, identity, wire


class PythonClient(FederationTest):
    def python(self, federation, name, *flags):
        return federation.start(
            f"python-{name}",
            [sys.executable, PROGRAM, "--state", federation.folder / name / "identity", *flags],
        )

    def test_one_run_of_both_kinds_of_clients(self):
        federation = self.make()
        server = federation.server(
            "--new-run", "--model", "synthetic:70000", "--min-clients", 3, "--rounds", 4
        )
        token = federation.token("python")
        programs = [
            federation.client("a"),
            federation.client("b"),
            self.python(federation, "python", "--join", token),
        ]
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        server.kill()
        server = federation.server()
        for program in [server, *programs]:
            self.expect_exit(program)
        said = programs[2].stdout()
        for number in range(1, 5):
            self.assertEqual(said.count(f"round {number}: ACCEPTED"), 1, said)
        accepted = federation.query(
            "SELECT client, count(*) FROM task WHERE state = 'accepted' GROUP BY client"
        )
        self.assertEqual(accepted, [("a", 4), ("b", 4), ("python", 4)])

        digests = federation.digests()
        for (version,) in federation.query(
            "SELECT version FROM checkpoint WHERE dropped_at IS NULL AND version > 0"
        ):
            (file,) = federation.query(
                "SELECT file FROM checkpoint WHERE version = ?"
                " AND run_id = (SELECT max(id) FROM run)",
                version,
            )[0]
            path = federation.checkpoints / file
            tensors = safetensors.numpy.load_file(path)
            self.assertEqual(
                [(name, t.dtype, t.shape) for name, t in tensors.items()],
                [("weight", np.float32, (70000,))],
            )
            self.assertEqual(
                xxhash.xxh3_128_hexdigest(tensors["weight"].tobytes()), digests[version]
            )
            with safetensors.safe_open(path, "numpy") as opened:
                facts = opened.metadata()
            self.assertEqual((facts["model"], facts["clients"]), ("synthetic:70000", "3"))
            self.assertEqual(facts["run"], server.ready["run"])

    def test_logistic_regression_learns(self):
        """Two Python clients make a model that tells apart what can be told apart."""
        for codec in ("none", "ecuq:1+ef", "topk:0.2+kbit:4+dgc:0.3", "powersgd:2+ef"):
            with self.subTest(codec):
                self.learn(codec)

    def learn(self, codec):
        federation = self.make(codec.replace(":", "-"))
        flags = "--new-run --model logistic --seed 3 --min-clients 2 --rounds 8 --lr 0.05"
        server = federation.server(*flags.split(), "--codec", codec)
        clients = []
        centres = np.random.default_rng(1).standard_normal((10, 784))
        for number, name in enumerate(("a", "b")):
            draw = np.random.default_rng(number)
            y = draw.integers(0, 10, 400)
            np.savez(
                federation.folder / f"{name}.npz",
                x=centres[y] + draw.standard_normal((400, 784)),
                y=y,
            )
            clients.append(
                self.python(federation, name, "--data", federation.folder / f"{name}.npz")
            )
        for program in [server, *clients]:
            self.expect_exit(program)
        losses = [
            loss
            for (loss,) in federation.query(
                "SELECT train_loss FROM round_summary WHERE run_id = (SELECT max(id) FROM run)"
            )
        ]
        self.assertEqual(len(losses), 8)
        self.assertLess(losses[-1], losses[0] / 5, losses)
        tasks = federation.query("SELECT codec, update_bytes, nmse, state FROM task")
        self.assertEqual({(task[0], task[3]) for task in tasks}, {(codec, "accepted")})
        most = 7850 * 4 * (1.1 if codec == "none" else 0.25)
        self.assertLess(max(task[1] for task in tasks), most)
        self.assertEqual({task[2] > 0 for task in tasks}, {codec != "none"})
        path = sorted((federation.checkpoints).glob("*.safetensors"))[-1]
        model = safetensors.numpy.load_file(path)
        guesses = (centres @ model["fc.weight"].T + model["fc.bias"]).argmax(axis=1)
        self.assertEqual(list(guesses), list(range(10)))

    def test_refusals_end_it_with_their_reason(self):
        federation = self.make()
        federation.server("--new-run", "--model", "mlp", "--min-clients", 2)
        wrong = self.python(federation, "a")
        self.assertGreater(wrong.wait(), 0)
        self.assertIn("the run trains mlp", wrong.stderr())
        stranger = self.python(federation, "stranger")
        self.assertGreater(stranger.wait(), 0)
        self.assertIn("holds no identity: join first", stranger.stderr())
        federation.server_command("revoke", "b")
        revoked = self.python(federation, "b")
        self.assertGreater(revoked.wait(), 0)
        self.assertIn("was revoked", revoked.stderr())

    def test_a_method_with_a_client_s_half_is_not_for_it_and_the_history_says_so(self):
        federation = self.make()
        federation.server(
            "--new-run", "--model", "synthetic:70", "--min-clients", 2, "--strategy", "fednova"
        )
        unable = self.python(federation, "a")
        self.assertGreater(unable.wait(), 0)
        self.assertIn("strategy 'fednova' has a client's half", unable.stderr())
        said = "SELECT count(*) FROM event WHERE text LIKE 'a takes no part: strategy ''fednova''%'"
        wait_until("the history says so", lambda: federation.query(said) == [(1,)])

    def test_logistic_without_its_data_says_so(self):
        federation = self.make()
        federation.server("--new-run", "--model", "logistic", "--min-clients", 2)
        program = self.python(federation, "a", "--data", federation.folder / "nonesuch.npz")
        self.assertGreater(program.wait(), 0)
        self.assertIn("needs --data FILE.npz, and", program.stderr())

    def test_wrong_tokens_are_refused_and_told_why(self):
        federation = self.make()
        federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 3)
        token = federation.token("python")
        other = "B" if token[20] == "A" else "A"
        wrong = {
            "nonsense": "not a join token",
            "flj1.": "not a join token",
            token[:-5]: "not the whole of one",
            token[:20] + other + token[21:]: "not the whole of one",
            forge(token, fingerprint=bytes(32)): "is not the server that this token was made for",
            forge(token, secret=bytes(16)): "does not know this join token",
        }
        for text, reason in wrong.items():
            with self.subTest(text):
                program = self.python(federation, "python", "--join", text)
                self.assertGreater(program.wait(), 0)
                self.assertIn(reason, program.stderr())
                self.assertNotIn("Traceback", program.stderr())
        # The secret was told to nobody who is not the token's server, so it is good still; once.
        self.python(federation, "python", "--join", token)
        certificate = identity(federation, "python") / "cert.pem"
        wait_until("it has joined", certificate.exists)
        again = self.python(federation, "twice", "--join", token)
        self.assertGreater(again.wait(), 0)
        self.assertIn("already used", again.stderr())

    def test_it_follows_the_server_into_another_run(self):
        federation = self.make()
        endless = federation.server("--new-run", "--model", "synthetic:9", "--min-clients", 1)
        program = self.python(federation, "a")
        wait_until("a round is done", lambda: federation.rounds_done() >= 1)
        endless.kill()
        flags = "--new-run --model synthetic:70000 --min-clients 1 --rounds 2"
        server = federation.server(*flags.split())
        for ends in (server, program):
            self.expect_exit(ends)
        self.assertEqual(federation.rounds_done(), 2)


class Torn(Client):
    """Loses its line once, when the server has the first part of its update."""

    def __init__(self, folder):
        super().__init__(folder)
        self.offsets = []

    async def send_chunks(self, resume):
        begin, payload = self.pending
        if begin.purpose == wire.UPDATE:
            self.offsets.append(resume.offset)
        if self.offsets == [0]:
            part = payload[: resume.chunk_bytes]
            await self.send(part, chunk=wire.Chunk(transfer=begin.task, offset=0))
            await self.ws.close()
        await super().send_chunks(resume)


class PythonClientCut(AsyncFederationTest):
    names = ("a",)

    async def test_a_broken_upload_goes_on_where_it_broke(self):
        federation = self.make()
        flags = "--new-run --model synthetic:1000000 --min-clients 1 --rounds 1"
        server = federation.server(*flags.split())
        client = Torn(identity(federation, "a"))
        with contextlib.redirect_stdout(None):
            await asyncio.wait_for(client.run(), 60)
        self.expect_exit(server)
        first, second = client.offsets
        self.assertEqual(first, 0)
        self.assertGreater(second, 0)
        row = federation.query("SELECT state, update_bytes FROM task")
        self.assertEqual([state for state, _ in row], ["accepted"])


if __name__ == "__main__":
    unittest.main()
