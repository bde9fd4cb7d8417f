# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch: which examples come in which batch, and in which order."""

import contextlib
import os
import sys
import unittest

import needs_torch
import numpy as np

import fake_agent
from fake_agent import agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tributary_fl.torch import Trainer

torch.set_num_threads(1)


class Bags(Dataset):
    """Examples of unlike sizes, as slides with more or fewer patches, which no batch of two takes."""

    def __init__(self, bags):
        draw = torch.Generator().manual_seed(bags)
        self.bags = [torch.randn(3 + number % 5, 4, generator=draw) for number in range(bags)]

    def __len__(self):
        return len(self.bags)

    def __getitem__(self, number):
        return self.bags[number], (self.bags[number].mean() > 0).long()


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh().mean(1))


def values_of(module):
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}


class BatchesOfOne(unittest.TestCase):
    def sizes(self, examples, batch_size, **options):
        """The sizes of the batches of a pass."""
        seen = []

        class Watched(Trainer):
            def train_step(self, batch):
                seen.append(len(batch[1]))
                return super().train_step(batch)

        x = torch.zeros(examples, 4)
        trainer = Watched(nn.Linear(4, 2), (x, x[:, 0].long()), device="cpu", **options)
        with agent_for(trainer) as agent:
            agent.hello()
            _, done = agent.train(values_of(trainer.model), batch_size=batch_size)
        self.assertEqual(done["steps"], len(seen))
        return seen

    def test_a_single_example_that_is_left_is_a_batch_only_where_all_are(self):
        self.assertEqual(self.sizes(5, 1), [1] * 5)
        self.assertEqual(self.sizes(1, 1), [1])
        self.assertEqual(self.sizes(5, 2), [2, 3])
        self.assertEqual(self.sizes(6, 4), [4, 2])
        self.assertEqual(self.sizes(9, 4), [4, 5])

    def test_examples_of_unlike_sizes_are_trained_and_measured(self):
        trainer = Trainer(
            Pooled(), Bags(20), eval_data=Bags(9), eval_batch_size=1, device="cpu"
        )  # fmt: skip
        with agent_for(trainer) as agent:
            agent.hello()
            start = values_of(Pooled())
            out, done = agent.train(start, epochs=2, batch_size=1, lr=0.1)
            measured = agent.ask("evaluate", out)
            gradient = agent.ask("gradient", start, settings={})
        self.assertEqual(done["steps"], 40)
        self.assertEqual(measured["examples"], 9)
        self.assertEqual(gradient["type"], "done", gradient)
        with torch.no_grad():
            trainer.model.load_state_dict({n: torch.tensor(v) for n, v in out.items()})
            losses = [F.cross_entropy(trainer.model(x[None]), y[None]) for x, y in Bags(9)]
        self.assertAlmostEqual(measured["loss"], float(sum(losses)) / 9, places=5)

    def test_a_batch_norm_says_that_it_needs_more(self):
        def answer(train_data, kind="train", batch_size=1, norm=nn.BatchNorm1d(8), **options):
            model = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2))
            trainer = Trainer(model, train_data, device="cpu", **options)
            with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
                with agent_for(trainer) as agent:
                    agent.hello()
                    start = values_of(model)
                    start.pop("1.num_batches_tracked", None)
                    return agent.ask(kind, start, settings={"batch_size": batch_size})

        x, y = torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)
        wanted = r"(?s)a BatchNorm can't train on a batch of one example.*more than 1 value"
        self.assertRegex(answer((x, y))["reason"], wanted)
        self.assertRegex(answer((x, y), "gradient", eval_batch_size=1)["reason"], "eval_batch_size")
        pairs = DataLoader(list(zip(x, y)), batch_size=2)
        self.assertRegex(answer(pairs)["reason"], wanted + ".*drop_last")
        self.assertEqual(answer((x, y), batch_size=2)["type"], "done")
        # These can: one in evaluation mode, and a norm over an example's own values.
        self.assertEqual(answer((x, y), norm=nn.BatchNorm1d(8).eval())["type"], "done")
        self.assertEqual(answer((x, y), norm=nn.LayerNorm(8))["type"], "done")
        # Another error of a batch of one is told as it is.
        wrong = answer((x[:1, :3], y[:1]))
        self.assertEqual(wrong["type"], "error")
        self.assertNotIn("BatchNorm", wrong["reason"])


if __name__ == "__main__":
    unittest.main()
