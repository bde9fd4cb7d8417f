# SPDX-License-Identifier: Apache-2.0
"""The trainer of examples/trainers that needs no package, against a fake fl-client."""

import pathlib
import tempfile
import unittest

import numpy as np

import fake_agent
from fake_agent import SOURCE, AgentWithProcess


class PlainNumpy(unittest.TestCase):
    def test_it_learns(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "part-1.npz"
        x = np.random.default_rng(0).standard_normal((500, 6))
        np.savez(path, x=x, y=x[:, :3].argmax(axis=1))
        script = SOURCE / "examples" / "trainers" / "plain_numpy.py"
        agent = AgentWithProcess([script, path, 3], folder.name)
        self.addCleanup(agent.close)
        said = agent.hello()
        self.assertEqual((said["train_examples"], said["holdout_examples"]), (450, 50))
        agent.ask("initial", seed=1)
        start = agent.out()
        before = agent.ask("evaluate", start)
        settings = {"lr": 0.5, "epochs": 5, "steps": 0, "proximal_mu": 0.001}
        trained, done = agent.train(start, **settings)
        after = agent.ask("evaluate", trained)
        self.assertEqual(done["steps"], 40)
        self.assertGreater(after["metrics"]["accuracy"], 0.9)
        self.assertLess(after["loss"], before["loss"] / 2)
        self.assertEqual(agent.ask("gradient", start)["type"], "error")
        agent.bye()
        self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 0)


if __name__ == "__main__":
    unittest.main()
