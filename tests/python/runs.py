# SPDX-License-Identifier: Apache-2.0
"""Whole runs with fl-server, fl-client and models of the user's in Python. In each there are two
clients: one is a program that calls tributary_fl.run(), one is an fl-client that starts a trainer.
Either is killed once and started again."""

import os
import signal
import sys

import fake_agent

sys.path.insert(0, str(fake_agent.PACKAGE))
sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

from federation import FederationTest, wait_until


class Runs(FederationTest):
    names = ("a", "b")

    def setUp(self):
        # The environment in which the programs that are started here find the package and
        # fl-client.
        paths = [str(fake_agent.PACKAGE), os.environ.get("PYTHONPATH", "")]
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        if before is None:
            self.addCleanup(os.environ.pop, "PYTHONPATH")
        else:
            self.addCleanup(os.environ.__setitem__, "PYTHONPATH", before)

    def by_run(self, federation, script):
        """A program that calls run()."""
        command = [sys.executable, script, "1", federation.folder / "a"]
        return federation.start("run-a", command)

    def by_client(self, federation, script):
        """An fl-client that starts the same program."""
        trainer = f"{sys.executable} {script} 2 {federation.folder / 'b'}"
        return federation.client("b", "--trainer", trainer, "--threads", 1)

    def check(self, text, *flags, rounds=6):
        federation = self.make()
        script = federation.folder / "train.py"
        script.write_text(text)
        initial = federation.folder / "initial.safetensors"
        trainer = ("--trainer", f"{sys.executable} {script} 1 {federation.folder / 'b'}")
        maker = federation.client("b", *trainer, "initial-weights", initial, "--seed", 5)
        self.expect_exit(maker)
        server = federation.server(
            *("--new-run", "--model", "custom:mine", "--initial-weights", initial),
            *("--codec", "ecuq:1+ef", "--rounds", rounds, "--min-clients", 2, *flags),
        )
        first, second = self.by_run(federation, script), self.by_client(federation, script)
        for done, victim in (1, "a"), (3, "b"):
            wait_until("rounds are done", lambda: federation.rounds_done() >= done)
            if victim == "a":
                first.kill()
                first = self.by_run(federation, script)
            else:
                second.signal(signal.SIGKILL)
                second.wait()
                second = self.by_client(federation, script)
        self.expect_exit(server)
        self.expect_exit(first)
        self.expect_exit(second)
        self.assertEqual(federation.query("SELECT state FROM run ORDER BY id")[-1], ("finished",))
        losses = federation.query(
            "SELECT eval_loss FROM round_summary WHERE run_id = (SELECT max(id) FROM run)"
            " ORDER BY round"
        )
        self.assertEqual(len(losses), rounds)
        self.assertLess(losses[-1][0], losses[0][0] / 2)
        return federation
