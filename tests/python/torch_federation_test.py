# SPDX-License-Identifier: Apache-2.0
"""Whole runs with the real programs and models of the user's in PyTorch (runs.py)."""

import unittest

import needs_torch
import torch
from torch import nn

from runs import Runs

import tributary_fl as fl

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


class TorchRuns(Runs):
    def test_a_cnn_in_pytorch(self):
        federation = self.check(TORCH, "--lr", 0.1, "--momentum", 0.9)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5),
        )  # fmt: skip
        fl.load(federation.checkpoints / "round-000006.safetensors", net).eval()
        patterns = torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(0))
        self.assertEqual(net(patterns).argmax(1).tolist(), [0, 1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
