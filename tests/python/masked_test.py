# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch with masked targets: means weigh predictions, in parts of any size. Against a fake
fl-client and PyTorch's mean over everything at once."""

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

from tagger import Tagger
from tributary_fl import metrics
from tributary_fl.torch import Trainer

torch.set_num_threads(1)


def weights_of(module):
    return {name: p.detach().float().numpy().copy() for name, p in module.named_parameters()}


def sequences(seed=3):
    """Token sequences of 1 to 12 tokens, and two that are masked as a whole, as (N, 12)."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [12, 1, 12, 2, 0, 12, 3, 1, 12, 12, 1, 2, 0, 12, 5, 1]
    x = torch.randint(9, (len(lengths), 12), generator=draw)
    y = torch.randint(5, (len(lengths), 12), generator=draw)
    for row, length in enumerate(lengths):
        y[row, length:] = -100
    return x, y


def mean_of_unmasked(outputs, targets):
    return F.cross_entropy(outputs, targets)  # The package does not know it: it is our own function.


def divided_by_count(outputs, targets):
    """A mean too, but without any prediction its gradient is no number either."""
    mask = targets != -100
    losses = F.cross_entropy(outputs, targets.clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


def unmasked_of(targets):
    return (targets != -100).sum()


class MaskedTargets(unittest.TestCase):
    """Each prediction weighs the same, in whichever batch, step or evaluation it is."""

    def updates(self, epochs=2, **options):
        start = weights_of(Tagger())
        outs, said = [], []
        for batch_size, accumulate in ((16, 1), (4, 4), (1, 16)):
            with agent_for(Trainer(Tagger(), sequences(), device="cpu", **options)) as agent:
                agent.hello()
                out, done = agent.train(
                    start, batch_size=batch_size, accumulate=accumulate, epochs=epochs, lr=0.5, seed=1
                )
            outs.append(np.concatenate([(out[n] - start[n]).ravel() for n in start]))
            said.append(done)
        return outs, said

    def check_same(self, outs, said, predictions):
        for out, done in zip(outs[1:], said[1:]):
            self.assertLess(np.linalg.norm(out - outs[0]), 1e-6 * np.linalg.norm(outs[0]))
            self.assertAlmostEqual(done["loss"], said[0]["loss"], places=6)
        for done in said:
            self.assertAlmostEqual(done["predictions"], predictions, places=6)

    def test_accumulated_batches_make_one_large_batch(self):
        unmasked = int((sequences()[1] != -100).sum())
        self.check_same(*self.updates(), unmasked)
        weight = torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0])
        weighted = nn.CrossEntropyLoss(weight=weight)
        y = sequences()[1]
        self.check_same(*self.updates(loss=weighted), float(weight[y[y != -100]].double().sum()))
        self.check_same(*self.updates(loss=mean_of_unmasked, predictions=unmasked_of), unmasked)

    def test_a_step_without_predictions_leaves_the_weights(self):
        x, y = sequences()
        start = weights_of(Tagger())
        with agent_for(Trainer(Tagger(), (x, torch.full_like(y, -100)), device="cpu")) as agent:
            agent.hello()
            out, done = agent.train(start, batch_size=4, accumulate=2, lr=0.5)
        self.assertEqual((done["loss"], done["predictions"]), (0, 0))
        for name in start:
            np.testing.assert_array_equal(out[name], start[name])

    def test_a_loss_of_ones_own_may_be_0_by_0_without_predictions(self):
        x, y = sequences()
        start, results = weights_of(Tagger()), []
        for own in ({}, {"loss": divided_by_count, "predictions": unmasked_of}):
            trainer = Trainer(Tagger(), (x, y), device="cpu", eval_batch_size=1, **own)
            with agent_for(trainer) as agent:
                agent.hello()
                out, _ = agent.train(start, batch_size=1, epochs=2, lr=0.5, seed=1)
                agent.ask("gradient", start, settings={})
                results.append((out, agent.out()))
        for found, expected in zip(results[1], results[0]):
            for name in start:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)

    def test_the_training_loss_is_the_mean_over_all_predictions(self):
        x, y = sequences()
        expected = F.cross_entropy(Tagger()(x), y).item()
        for batch_size in (1, 3, 16):
            with agent_for(Trainer(Tagger(), (x, y), device="cpu")) as agent:
                agent.hello()
                _, done = agent.train(weights_of(Tagger()), batch_size=batch_size, epochs=3, lr=0)
            self.assertAlmostEqual(done["loss"], expected, places=6)
            self.assertAlmostEqual(done["predictions"], int((y != -100).sum()), places=9)

    def test_the_gradient_of_all_examples(self):
        x, y = sequences()
        module = Tagger()
        F.cross_entropy(module(x), y).backward()
        with agent_for(Trainer(Tagger(), (x, y), device="cpu", eval_batch_size=3)) as agent:
            agent.hello()
            agent.ask("gradient", weights_of(Tagger()), settings={})
            out = agent.out()
        for name, p in module.named_parameters():
            np.testing.assert_allclose(out[name], p.grad.numpy(), rtol=1e-5, atol=1e-7)

    def test_an_evaluation_in_parts_is_one_at_once(self):
        x, y = sequences()
        named = {"accuracy": metrics.accuracy, "own": self.own}
        found = []
        for size in (16, 5, 1):
            trainer = Trainer(
                Tagger(), eval_data=(x, y), metrics=named, device="cpu", eval_batch_size=size
            )
            with agent_for(trainer) as agent:
                agent.hello()
                found.append(agent.ask("evaluate", weights_of(Tagger())))
        outputs, is_counted = Tagger()(x), y != -100
        right = (outputs.argmax(1) == y)[is_counted].double().mean().item()
        for done in found:
            self.assertEqual((done["examples"], done["predictions"]), (16, int(is_counted.sum())))
            self.assertAlmostEqual(done["loss"], F.cross_entropy(outputs, y).item(), places=6)
            for name, value in ("accuracy", right), ("own", y[is_counted].double().mean().item()):
                self.assertAlmostEqual(done["metrics"][name]["value"], value, places=9)
                self.assertEqual(done["metrics"][name]["weight"], int(is_counted.sum()))

    @staticmethod
    def own(outputs, targets):
        chosen = targets[targets != -100].double()
        return chosen.mean(), len(chosen)

    def test_an_example_that_is_one_prediction_is_not_told_apart(self):
        x, y = torch.randn(50, 8, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 3
        model = nn.Linear(8, 3)
        with agent_for(Trainer(model, (x, y), eval_data=(x, y), device="cpu")) as agent:
            agent.hello()
            _, done = agent.train(weights_of(model), batch_size=16, lr=0.1)
            self.assertNotIn("predictions", done)
            self.assertNotIn("predictions", agent.ask("evaluate", weights_of(model)))


if __name__ == "__main__":
    unittest.main()
