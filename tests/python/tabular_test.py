# SPDX-License-Identifier: Apache-2.0
"""examples/trainers/tabular_numpy.py in whole runs: three hospitals whose patients differ come within
1 % of a training on all data in one place."""

import importlib.util
import sys
import unittest

import numpy as np

import fake_agent
from runs import Runs

HAS_SKLEARN = importlib.util.find_spec("sklearn") is not None
SCRIPT = fake_agent.SOURCE / "examples" / "trainers" / "tabular_numpy.py"


@unittest.skipUnless(HAS_SKLEARN, "needs scikit-learn, for its data")
class Tabular(Runs):
    names = ("a", "b", "c")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        spec = importlib.util.spec_from_file_location("tabular_numpy", SCRIPT)
        cls.example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.example)

    def federated(self, name, rounds, lr, *flags):
        """The weights that the three hospitals end with."""
        from tributary_fl import _tensors

        federation = self.make()
        trainers = {
            site: ("--trainer", f"{sys.executable} {SCRIPT} {name} {number}", "--threads", 1)
            for number, site in enumerate("abc", 1)
        }
        initial = federation.folder / "initial.safetensors"
        self.expect_exit(federation.client("a", *trainers["a"], "initial-weights", initial))
        server = federation.server(
            *("--new-run", "--model", f"custom:{name}", "--initial-weights", initial),
            *("--min-clients", 3, "--rounds", rounds, "--local-steps", 5, "--lr", lr, *flags),
        )
        clients = [federation.client(site, *flags) for site, flags in trainers.items()]
        for program in [server, *clients]:
            self.expect_exit(program)
        (file,) = federation.query("SELECT file FROM checkpoint ORDER BY version DESC LIMIT 1")[0]
        return {key: np.array(v) for key, v in _tensors.read(federation.checkpoints / file).items()}

    def pooled(self, name, steps, lr):
        example = self.example
        net = example.Net(name, *example.read_data(name))
        weights = {key: value.copy() for key, value in net.initial(0).items()}
        for _ in range(steps):
            net.step(weights, *net.train_data, lr)
        return net, weights

    def compare(self, name, rounds, lr, least, *flags):
        net, weights = self.pooled(name, rounds * 5, lr)
        x, y = net.held_out
        found = {}
        for kind, model in ("pooled", weights), ("federated", self.federated(name, rounds, lr, *flags)):
            output = net.forward(model, x)[1]
            found[kind] = self.example.score(net.is_yes_or_no, output, y)
        print(f"{name}: {found}")
        self.assertGreater(found["pooled"], least)
        self.assertGreater(found["federated"], found["pooled"] - 0.01)

    def test_linear_regression(self):
        self.compare("diabetes", 60, 0.02, 0.3, "--codec", "ecuq:4+ef")

    def test_a_network(self):
        self.compare("breast-cancer", 60, 0.3, 0.98, "--codec", "ecuq:2+ef")


if __name__ == "__main__":
    unittest.main()
