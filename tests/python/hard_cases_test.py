# SPDX-License-Identifier: Apache-2.0
"""Models and programs that trip other software, through the package and the real programs."""

import json
import signal
import sys
import time
import unittest

import numpy as np

from runs import Runs, wait_until
from slow_line import SlowLine

import tributary_fl as fl

# A trainer whose weights go halfway to `goal` in each round. argv: state folder, what it does.
PROGRAM = """
import ctypes, sys, time
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

state, habit, *rest = sys.argv[1:]
if habit == "loads-slowly":
    time.sleep(float(rest[0]))
if habit == "has-no-data":
    open("/nonexistent/train.npz")
start = {
    "scalar": np.full((), 2.0, np.float32),
    "none": np.zeros((0, 4), np.float32),
    "nothing": np.zeros((3, 0), np.float32),
    "one": np.ones(1, np.float32),
    "bump": np.ones((1, 1, 1, 1), np.float32),
    "matrix": np.ones((30, 20), np.float32),
}


class Halfway(Trainer):
    def train(self, weights, task):
        if habit == "holds-the-interpreter":
            ctypes.PyDLL(None).sleep(int(rest[0]))
        if habit == "sleeps" and task.round > 1:
            print("sleeping", flush=True)
            time.sleep(60)
        for name in weights:
            weights[name] = weights[name] + (8 - weights[name]) / 2
        return fl.TrainReport(1, 0.5)


fl.run(Halfway(start, 10), state=state, threads=1)
"""

# Prices of some 300,000, from weights of zero: the first gradients are of the order of 10^5.
PRICES = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

x = np.random.default_rng(1).standard_normal((200, 3))
x = np.concatenate([x, np.ones((200, 1))], axis=1).astype(np.float32)
y = 300_000 * (1 + 0.1 * x[:, :3].sum(1))


class Linear(Trainer):
    def train(self, weights, task):
        error = x[:180] @ weights["w"] - y[:180]
        weights["w"] -= 0.9 * x[:180].T @ error / 180
        return fl.TrainReport(1, np.square(error).mean())

    def evaluate(self, weights, task):
        error = x[180:] @ weights["w"] - y[180:]
        return fl.EvalReport(20, np.square(error).mean(), {"mae": np.abs(error).mean()})


metrics = [fl.MetricInfo("mae", "lower")]
fl.run(Linear({"w": np.zeros(4, np.float32)}, 180, 20, metrics=metrics), state=sys.argv[1])
"""


class HardCases(Runs):
    runs = 0

    def begin(self, text, *flags, rounds=3):
        """A federation with a server. self.script is the program."""
        self.runs += 1
        federation = self.make(f"run-{self.runs}")
        self.script = federation.folder / "train.py"
        self.script.write_text(text)
        initial = federation.folder / "initial.safetensors"
        trainer = f"{sys.executable} {self.script} {federation.folder / 'a'} -"
        maker = federation.client("a", "--trainer", trainer, "initial-weights", initial)
        self.expect_exit(maker)
        self.server = federation.server(
            *("--new-run", "--model", "custom:mine", "--initial-weights", initial),
            *("--rounds", rounds, "--min-clients", 2, *flags),
        )
        return federation

    def client(self, federation, name, *habit):
        command = [sys.executable, self.script, federation.folder / name, *(habit or ["-"])]
        return federation.start(name, command)

    def last(self, federation):
        (file,) = federation.query(
            "SELECT file FROM checkpoint ORDER BY run_id DESC, version DESC LIMIT 1"
        )[0]
        return fl.load(federation.checkpoints / file)

    def test_scalars_and_tensors_without_elements_pass_the_codecs(self):
        codecs = "none", "ecuq:4", "powersgd:2+ef", "topk:0.5+kbit:4+ef", "eden:4", "sign+ef"
        for codec in codecs:
            with self.subTest(codec=codec):
                federation = self.begin(PROGRAM, "--codec", codec, "--downlink-codec", "ecuq:8")
                programs = [self.server, *(self.client(federation, name) for name in "ab")]
                for program in programs:
                    self.expect_exit(program)
                found = self.last(federation)
                shapes = {name: tensor.shape for name, tensor in found.items()}
                self.assertEqual(
                    shapes,
                    {"scalar": (), "none": (0, 4), "nothing": (3, 0), "one": (1,),
                     "bump": (1, 1, 1, 1), "matrix": (30, 20)},
                )  # fmt: skip
                self.assertTrue(all(np.isfinite(tensor).all() for tensor in found.values()))
                self.assertGreater(found["matrix"].mean(), 3)
                if codec == "none":
                    self.assertAlmostEqual(float(found["scalar"]), 7.25, delta=0.2)

    def test_large_targets_from_weights_of_zero(self):
        for flags in (), ("--codec", "none"), ("--strategy", "fedadam"):
            with self.subTest(flags=flags):
                federation = self.begin(PRICES, "--codec", "ecuq:4", *flags, rounds=8)
                programs = [self.server, *(self.client(federation, name) for name in "ab")]
                for program in programs:
                    self.expect_exit(program)
                states = federation.query("SELECT DISTINCT state FROM task")
                self.assertEqual(states, [("accepted",)])
                errors = federation.query(
                    "SELECT value FROM evaluation WHERE name = 'mae'"
                    " AND run_id = (SELECT max(id) FROM run) ORDER BY version"
                )
                self.assertLess(errors[-1], errors[1])
                if not flags or flags[0] == "--codec":
                    self.assertLess(errors[-1][0], 10_000)

    def test_slow_loading_and_training_that_holds_the_interpreter(self):
        federation = self.begin(PROGRAM, "--codec", "none", rounds=2)
        slow = self.client(federation, "a", "loads-slowly", "3")
        holds = self.client(federation, "b", "holds-the-interpreter", "3")
        for program in self.server, slow, holds:
            self.expect_exit(program)
        self.assertEqual(federation.query("SELECT DISTINCT state FROM task"), [("accepted",)])

    def test_a_line_of_50_kb_a_second_that_breaks(self):
        text = PROGRAM.replace("(30, 20)", "(300, 200)")
        federation = self.begin(text, "--codec", "ecuq:1+ef", rounds=2)
        line = SlowLine(federation.port, 50_000)
        self.addCleanup(line.close)
        (federation.folder / "a" / "identity" / "identity.json").write_text(
            json.dumps({"server": f"127.0.0.1:{line.port}"})
        )
        slow, fast = self.client(federation, "a"), self.client(federation, "b")
        wait_until("half the model has passed", lambda: line.passed["down"] > 120_000)
        line.cut()
        for program in self.server, slow, fast:
            self.expect_exit(program)
        # Two models of 240 kB: after the cut the first one went on where it was.
        self.assertGreater(line.passed["down"], 480_000)
        self.assertLess(line.passed["down"], 560_000)
        self.assertLess(line.passed["up"], 60_000)
        accepted = federation.query("SELECT count(*) FROM task WHERE state = 'accepted'")
        self.assertEqual(accepted, [(4,)])

    def test_more_members_than_the_server_has_places_for(self):
        """Clients with a place make the run. The others wait, and come in when one is free."""
        names = [f"site-{number}" for number in range(20)]
        run = ("--new-run", "--model", "synthetic:100", "--rounds", 1_000_000, "--min-clients", 4)
        federation = self.make()
        # 128 of 144 files are the server's own; the others are places for eight members.
        server = federation.server(*run, "--deadline", 3, files_max=144)
        tokens = {name: federation.token(name) for name in names}
        clients = {
            name: federation.client(name, "--join", token, "--threads", 1)
            for name, token in tokens.items()
        }
        asked = "SELECT DISTINCT client FROM task WHERE run_id = (SELECT max(id) FROM run)"
        wait_until("eight take part", lambda: len(federation.query(asked)) >= 8)
        server.wait_for("the server has 8 sessions, which is its limit")
        first = [name for (name,) in federation.query(asked)]
        self.assertLess(len(first), 20)
        for name in first:
            clients[name].kill()
        others = lambda: {name for (name,) in federation.query(asked)} - set(first)  # noqa: E731
        wait_until("others take part", lambda: len(others()) >= 4)
        rounds = federation.rounds_done()
        wait_until("more rounds are done", lambda: federation.rounds_done() > rounds + 1)
        self.assertTrue(server.running())
        turned_away = server.stderr().count("which is its limit")
        self.assertLess(turned_away, 200)

    def test_a_server_without_places_for_its_run_says_so(self):
        federation = self.make()
        run = ("--new-run", "--model", "synthetic:100", "--min-clients", 9)
        server = federation.server(*run, files_max=144)
        server.wait_for("the run needs 9 clients at a time")
        self.assertIn("are enough for 8: start the server with 'ulimit -n 146'", server.stderr())
        enough = self.make("enough").server(*run, files_max=146)
        self.assertNotIn("the run needs", enough.stderr())

    def test_a_program_without_its_data_ends_and_takes_no_part(self):
        federation = self.begin(PROGRAM, "--codec", "none")
        program = self.client(federation, "a", "has-no-data")
        self.assertEqual(program.wait(), 1)
        self.assertIn("FileNotFoundError", program.stderr())
        self.assertEqual(federation.query("SELECT * FROM task"), [])

    def test_three_interrupts_end_a_program_that_does_not_look(self):
        federation = self.begin(PROGRAM, "--codec", "none")
        self.client(federation, "a")
        stubborn = self.client(federation, "b", "sleeps")
        wait_until("it sleeps", lambda: "sleeping" in stubborn.stdout())
        begin = time.monotonic()
        for _ in range(3):
            stubborn.signal(signal.SIGINT)
            time.sleep(0.5)
        self.assertNotEqual(stubborn.wait(), 0)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn("KeyboardInterrupt", stubborn.stderr())
        again = self.client(federation, "b")
        for program in self.server, again:
            self.expect_exit(program)
        self.assertEqual(float(self.last(federation)["scalar"]), 7.25)


if __name__ == "__main__":
    unittest.main()
