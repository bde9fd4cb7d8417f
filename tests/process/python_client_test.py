"""The Python example beside fl-client, and the files of a run as a Python user reads them."""

import sys
import unittest

import numpy as np
import safetensors
import safetensors.numpy
import xxhash

from federation import FederationTest, wait_until
from python_peer import PROGRAM


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
        federation = self.make()
        flags = "--new-run --model logistic --seed 3 --min-clients 2 --rounds 5 --lr 0.05"
        server = federation.server(*flags.split())
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
        self.assertEqual(len(losses), 5)
        self.assertLess(losses[-1], losses[0] / 5, losses)
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
        federation.server_command("revoke", "b")
        revoked = self.python(federation, "b")
        self.assertGreater(revoked.wait(), 0)
        self.assertIn("was revoked", revoked.stderr())


if __name__ == "__main__":
    unittest.main()
