# SPDX-License-Identifier: Apache-2.0
"""Whole runs with the real programs and models of the user's in PyTorch (runs.py)."""

import random
import sys
import unittest

import needs_torch
import torch
from torch import nn

import fake_agent
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

    def test_only_adapters_travel(self):
        """examples/trainers/lora_torch.py, and that the table at its top is right."""
        script = fake_agent.SOURCE / "examples" / "trainers" / "lora_torch.py"
        federation = self.make()
        for seed, name in enumerate(self.names):
            text = random.Random(seed).choices(["one ", "two ", "three "], k=500)
            (federation.folder / f"{name}.txt").write_text("".join(text))
        for kind, values in ("whole", 466_432), ("lora", 16_384), ("ffa", 9_216):
            command = [sys.executable, script, kind]
            self.assertRegex(script.read_text(), rf"    {kind} +{values:,} ")
            save = ["env", "-C", federation.folder, *command, "-"]
            self.expect_exit(federation.start("save", save))
            initial = federation.folder / f"{kind}.safetensors"
            tensors = fl.load(initial)
            self.assertEqual(sum(tensor.size for tensor in tensors.values()), values)
            if kind == "whole":
                continue
            server = federation.server(
                *("--new-run", "--model", f"custom:{kind}", "--initial-weights", initial),
                *("--codec", "none", "--rounds", 2, "--min-clients", 2, "--lr", 0.2),
            )
            clients = []
            for name in self.names:
                text, state = federation.folder / f"{name}.txt", federation.folder / f"{kind}-{name}"
                token = federation.token(f"{kind}-{name}")
                clients.append(federation.start(name, [*command, text, token, state]))
            for program in server, *clients:
                self.expect_exit(program)
            sent = federation.query(
                "SELECT raw_bytes, update_bytes, bytes_up, loss FROM task"
                " WHERE run_id = (SELECT max(id) FROM run) ORDER BY round"
            )
            self.assertEqual(len(sent), 4)
            for raw, update, up, _ in sent:
                self.assertEqual(raw, 4 * values)
                self.assertLess(max(update, up), 1.02 * raw)
            self.assertLess(sent[-1][-1], sent[0][-1])
            names = fl.load(federation.checkpoints / "round-000002.safetensors").keys()
            digests = [name for name in names if name.startswith("frozen.")]
            self.assertEqual(len(digests), 1)
            kinds = {name.rpartition(".")[2] for name in names if name not in digests}
            self.assertEqual(kinds, {"a", "b"} if kind == "lora" else {"b"})


if __name__ == "__main__":
    unittest.main()
