# SPDX-License-Identifier: Apache-2.0
"""simulate() with models in PyTorch, by the real fl-sim; and the program in docs/guide/simulate.md."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import needs_torch

if needs_torch.importlib.util.find_spec("pandas") is None:
    print(f"SKIPPED: {sys.executable} has no pandas (the package python3-pandas)")
    sys.exit(77)

import torch
from torch import nn

import fake_agent
from runs import Runs

import tributary_fl as fl
from tributary_fl.metrics import accuracy
from tributary_fl.torch import Trainer

PAGE = fake_agent.SOURCE / "docs" / "guide" / "simulate.md"
CLIENTS = 20


def net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5),
    )  # fmt: skip


def data(seed, examples):
    patterns = torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(5, (examples,), generator=draw)
    return patterns[y] + 0.7 * torch.randn(examples, 1, 12, 12, generator=draw), y


class TorchSimulations(Runs):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def simulate(self, **how):
        frames = fl.simulate(
            lambda client: Trainer(
                net,
                data(client, 40 + client),
                optimizer=lambda parameters: torch.optim.Adam(parameters, 0.01),
                keep_optimizer=True,
                device="cpu",
            ),
            CLIENTS,
            rounds=4,
            evaluator=lambda: Trainer(
                net, eval_data=data(CLIENTS, 200), metrics={"accuracy": accuracy}, device="cpu"
            ),
            log=self.folder / "log",
            options=["--codec", "ecuq:2+ef", "--batch-size", "16"],
            **how,
        )
        return frames

    def test_a_cnn_whose_clients_keep_their_moments(self):
        # The threads of this process have worked before the workers are forked from it.
        before = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        torch.set_num_threads(4)
        nn.functional.cross_entropy(
            net()(torch.randn(500, 1, 12, 12)), torch.zeros(500).long()
        ).backward()
        digests = []
        for workers in (1, 2):
            state = self.folder / f"state-{workers}"
            frames = self.simulate(workers=workers, state=state)
            digests.append(list(frames.rounds["model_digest"]))
            for client in range(CLIENTS):
                kept = list((state / "clients" / f"client-{client + 1}").glob("optimizer-*"))
                self.assertEqual(len(kept), 2)
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(len(set(digests[0])), 4)
        measured = frames.evaluations[frames.evaluations["name"] == "accuracy"]
        self.assertEqual(list(measured["version"]), [0, 1, 2, 3, 4])
        self.assertGreater(measured["value"].iloc[-1], 0.9)
        self.assertEqual(set(measured["examples"]), {200})

    def test_the_program_of_the_guide(self):
        (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        (self.folder / "own.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "own.py"], cwd=self.folder, capture_output=True, text=True, timeout=250
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        accuracies = [float(line.split()[-1]) for line in done.stdout.splitlines()[1:]]
        self.assertEqual(len(accuracies), 11)
        self.assertGreater(accuracies[-1], 0.9)


if __name__ == "__main__":
    unittest.main()
