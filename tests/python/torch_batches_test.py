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
from torch.utils.data import (
    BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Subset,
)  # fmt: skip

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


class Counting(Dataset):
    """Examples whose numbers are their inputs. It notes the epochs that it hears of."""

    def __init__(self, examples=17):
        self.examples, self.epochs = examples, []

    def __len__(self):
        return self.examples

    def __getitem__(self, number):
        return torch.full((4,), float(number)), torch.tensor(number % 2)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class CountingStream(IterableDataset):
    def __init__(self):
        self.epochs = []

    def __iter__(self):
        return iter([Counting()[number] for number in range(17)])

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Epochs(unittest.TestCase):
    """What has a set_epoch() hears which pass begins, as PyTorch's users expect."""

    def orders(self, train_data, *rounds, evaluates=False, **settings):
        """The examples that each round has seen, in their order."""
        seen, orders = [], []

        class Watched(Trainer):
            def train_step(self, batch):
                seen.extend(batch[0][:, 0].int().tolist())
                return super().train_step(batch)

        held_out = train_data if evaluates else None
        with agent_for(
            Watched(nn.Linear(4, 2), train_data, eval_data=held_out, examples=17,
                    eval_examples=17, device="cpu")
        ) as agent:  # fmt: skip
            agent.hello()
            for number in rounds:
                seen.clear()
                agent.train(values_of(nn.Linear(4, 2)), round=number, batch_size=4, **settings)
                orders.append(list(seen))
            if evaluates:
                agent.ask("evaluate", values_of(nn.Linear(4, 2)))
        return orders

    def loader(self, rank, make=lambda data, sampler: DataLoader(data, 4, sampler=sampler)):
        data = Counting()
        return make(data, DistributedSampler(data, 2, rank, shuffle=True))

    def test_a_distributed_sampler_shares_the_examples_anew_in_each_pass(self):
        first, second = (self.orders(self.loader(rank), 1, 2, 3, epochs=2) for rank in (0, 1))
        passes = [one[at : at + 9] for one in first for at in (0, 9)]
        self.assertEqual(len(set(map(tuple, passes))), 6)  # No order comes twice.
        self.assertGreater(len(set(map(frozenset, passes))), 1)  # Nor is it one half for ever.
        for one, other in zip(first, second):
            for at in 0, 9:
                self.assertEqual(set(one[at : at + 9]) | set(other[at : at + 9]), set(range(17)))

    def test_a_round_that_is_trained_again_has_the_same_order(self):
        for settings in {"epochs": 2}, {"steps": 8}:
            first, again = self.orders(self.loader(0), 1, 2, **settings), []
            again = self.orders(self.loader(0), 2, **settings)
            self.assertEqual(first[1], again[0])
            self.assertNotEqual(first[0], first[1])

    def test_epochs_count_on_from_round_to_round(self):
        for settings, expected in (
            ({"epochs": 2}, [0, 1, 2, 3, 6, 7]),
            ({"steps": 4}, [0, 1, 3]),  # A pass has so many.
            ({"steps": 5}, [0, 1, 2, 3, 6, 7]),
        ):
            data = Counting()
            self.orders(data, 1, 2, 4, **settings)
            self.assertEqual(data.epochs, expected)

    def test_every_place_of_a_set_epoch_is_found(self):
        stream, nested, batched = CountingStream(), Counting(), Counting()
        sampler = DistributedSampler(batched, 2, 0, shuffle=True)
        in_batches = BatchSampler(sampler, 4, drop_last=False)
        for data, told in (
            (stream, stream),
            (DataLoader(CountingStream(), 4), None),
            (DataLoader(Subset(nested, range(17)), 4, shuffle=True), nested),
            (DataLoader(batched, batch_sampler=in_batches), batched),
        ):
            self.orders(data, 1, 2, epochs=1)
            found = told or data.dataset
            self.assertEqual(found.epochs, [0, 1])
        self.assertEqual(sampler.epoch, 1)

    def test_an_evaluation_is_always_of_epoch_0(self):
        data = Counting()
        self.orders(data, 5, epochs=1, evaluates=True)
        self.assertEqual(data.epochs, [4, 0])


if __name__ == "__main__":
    unittest.main()
