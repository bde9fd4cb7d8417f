# SPDX-License-Identifier: Apache-2.0
"""Whole runs with fl-server, fl-client and models of the user's in Python. In each there are two
clients: one is a program that calls tributary_fl.run(), one is an fl-client that starts a trainer.
Either is killed once and started again."""

import importlib.util
import os
import pathlib
import signal
import sys
import unittest

import numpy as np

import fake_agent

sys.path.insert(0, str(fake_agent.PACKAGE))
sys.path.insert(0, str(fake_agent.SOURCE / "tests" / "process"))

import tributary_fl as fl
from federation import FederationTest, wait_until

NUMPY = """
import sys
import numpy as np
import tributary_fl as fl
from tributary_fl.numpy import Trainer

draw = np.random.default_rng(int(sys.argv[1]))
x = draw.standard_normal((300, 40)).astype(np.float32)
y = x @ np.linspace(-1, 1, 40, dtype=np.float32)


class Linear(Trainer):
    def train(self, weights, task):
        step, losses = 0, []
        while task.may_begin(step, 5):
            task.progress(step)
            part = np.arange(step * 50 % 250, step * 50 % 250 + 50)
            error = x[part] @ weights["w"] - y[part]
            losses.append(np.square(error).mean())
            weights["w"] -= 0.1 / 50 * x[part].T @ error
            step += 1
        return fl.TrainReport(step, np.mean(losses))

    def evaluate(self, weights, task):
        error = x[250:] @ weights["w"] - y[250:]
        return fl.EvalReport(50, np.square(error).mean(), {"mae": np.abs(error).mean()})


start = {"w": np.zeros(40, np.float32)}
metrics = [fl.MetricInfo("mae", "lower")]
fl.run(Linear(start, 250, 50, metrics=metrics), state=sys.argv[2], threads=1)
"""

TORCH = """
import sys
import torch
from torch import nn
import tributary_fl as fl
from tributary_fl.metrics import accuracy
from tributary_fl.torch import Trainer

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[1]))
patterns = torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(0))
y = torch.randint(5, (400,))
x = patterns[y] + 0.7 * torch.randn(400, 1, 12, 12)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5),
    )


fl.run(
    Trainer(
        net, (x[:350], y[:350]), eval_data=(x[350:], y[350:]), metrics={"accuracy": accuracy},
        device="cpu",
    ),
    state=sys.argv[2],
    threads=1,
)
"""


class Sink:
    """An experiment tracker that remembers."""

    def __init__(self):
        self.told, self.figures, self.is_closed = {}, {}, False

    def settings(self, settings):
        self.told = settings

    def log(self, values, round):
        self.figures.setdefault(round, {}).update(values)

    def close(self):
        self.is_closed = True


class Runs(FederationTest):
    names = ("a", "b")

    def setUp(self):
        # What the programs that are started here find the package and fl-client by.
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

    def test_a_model_in_numpy_and_what_the_server_has_recorded_of_it(self):
        federation = self.check(NUMPY)
        frames = fl.history(federation.state)
        run = frames.runs["id"].max()
        rounds = frames.rounds[frames.rounds["run_id"] == run]
        self.assertEqual(list(rounds["round"]), [1, 2, 3, 4, 5, 6])
        self.assertEqual(str(rounds["started_at"].dt.tz), "UTC")
        tasks = frames.tasks[frames.tasks["run_id"] == run]
        self.assertGreaterEqual(len(tasks), 12)
        self.assertEqual(set(tasks["client"]), {"a", "b"})
        measured = frames.evaluations[frames.evaluations["run_id"] == run]
        self.assertEqual(set(measured["name"]), {"loss", "mae"})
        self.assertGreater(len(frames.events), 0)
        sink = Sink()
        fl.track(federation.state, sink, pause_s=0.01)
        self.assertTrue(sink.is_closed)
        self.assertEqual(sink.told["model"], "custom:mine")
        self.assertEqual([r for r in sink.figures if r > 0], [1, 2, 3, 4, 5, 6])
        self.assertEqual(
            sink.figures[6]["eval_loss"],
            measured[(measured["version"] == 6) & (measured["name"] == "loss")]["value"].item(),
        )
        (weights,) = fl.load(federation.checkpoints / "round-000006.safetensors").values()
        self.assertGreater(np.corrcoef(weights, np.linspace(-1, 1, 40))[0, 1], 0.5)

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch is not installed")
    def test_a_cnn_in_pytorch(self):
        federation = self.check(TORCH, "--lr", 0.1, "--momentum", 0.9)
        import torch
        from torch import nn

        net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5),
        )  # fmt: skip
        fl.load(federation.checkpoints / "round-000006.safetensors", net).eval()
        patterns = torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(0))
        self.assertEqual(net(patterns).argmax(1).tolist(), [0, 1, 2, 3, 4])

    def test_the_example_that_needs_no_package(self):
        federation = self.make()
        script = fake_agent.SOURCE / "examples" / "trainers" / "plain_numpy.py"
        trainers = {}
        for seed, name in enumerate(self.names):
            path = federation.folder / f"{name}.npz"
            x = np.random.default_rng(seed).standard_normal((400, 6))
            np.savez(path, x=x, y=x[:, :3].argmax(axis=1))
            trainers[name] = ("--trainer", f"{sys.executable} {script} {path} 3")
        initial = federation.folder / "initial.safetensors"
        maker = federation.client("a", *trainers["a"], "initial-weights", initial, "--seed", 5)
        self.expect_exit(maker)
        server = federation.server(
            *("--new-run", "--model", "custom:mine", "--initial-weights", initial),
            *("--codec", "ecuq:2+ef", "--rounds", 4, "--min-clients", 2, "--lr", 0.5),
        )
        clients = [federation.client(name, *trainers[name]) for name in self.names]
        for program in server, *clients:
            self.expect_exit(program)
        ((accuracy,),) = federation.query(
            "SELECT eval_accuracy FROM round_summary"
            " WHERE run_id = (SELECT max(id) FROM run) AND round = 4"
        )
        self.assertGreater(accuracy, 0.9)

    def test_an_error_of_fl_client_is_raised(self):
        federation = self.make()
        script = federation.folder / "train.py"
        script.write_text(NUMPY)
        program = federation.start("x", [sys.executable, script, "1", federation.folder / "none"])
        self.assertEqual(program.wait(), 1)
        self.assertRegex(program.stderr(), r"tributary_fl.*Error: .*none holds no identity")


if __name__ == "__main__":
    unittest.main()
