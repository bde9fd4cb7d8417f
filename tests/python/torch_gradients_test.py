# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch with sparse and with complex gradients: with every method and optimizer they do
what dense and real ones do."""

import sys
import tempfile
import unittest
import warnings

import needs_torch
import numpy as np

import fake_agent
from fake_agent import agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
from torch import nn

from tributary_fl.torch import Trainer

torch.set_num_threads(1)


class Recommender(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(1)
        self.users = nn.Embedding(30, 4, sparse=sparse)
        self.items = nn.EmbeddingBag(40, 4, sparse=sparse, mode="sum")
        self.last = nn.Linear(4, 2)

    def forward(self, users, items):
        return self.last(self.users(users) * self.items(items))


def ratings():
    draw = torch.Generator().manual_seed(2)
    users, items = torch.randint(30, (64,), generator=draw), torch.randint(40, (64, 3), generator=draw)
    return users, items, (users + items[:, 0]) % 2


class Waves(nn.Module):
    """The parameter of a wave as complex numbers, or as pairs of real ones."""

    def __init__(self, is_complex):
        super().__init__()
        torch.manual_seed(1)
        pairs = torch.randn(8, 3, 2)
        self.wave = nn.Parameter(torch.view_as_complex(pairs) if is_complex else pairs)

    def forward(self, x):
        wave = self.wave if self.wave.is_complex() else torch.view_as_complex(self.wave)
        return (torch.complex(x, x.flip(1)) @ wave).abs()


def signals():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    return x, x[:, :3].argmax(1)


def values_of(model):
    return {
        name: (torch.view_as_real(p) if p.is_complex() else p).detach().numpy().copy()
        for name, p in model.named_parameters()
    }


METHODS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"optimizer": {"name": "nesterov"}, "momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "adam": {"optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-4}},
    "fedprox": {"proximal_mu": 0.5},
    "clipped": {"clip_norm": 0.1, "proximal_mu": 0.5},
    "accumulated": {"accumulate": 2, "proximal_mu": 0.5},
}
DENSE = "weight decay", "adam", "fedprox", "clipped", "accumulated"  # Those that need dense gradients.


class OddGradients(unittest.TestCase):
    def trained(self, model, data, correction=None, **settings):
        with agent_for(Trainer(model, data, device="cpu")) as agent:
            agent.hello()
            start = values_of(model)
            if correction is not None:
                correction = {name: np.full_like(value, correction) for name, value in start.items()}
            out, _ = agent.train(start, correction, epochs=2, batch_size=16, lr=0.1, **settings)
            done = agent.ask("gradient", start, settings={"weight_decay": 0.1})
            self.assertEqual(done["type"], "done", done)
            return out, agent.out()

    def check(self, found, expected):
        for some, others in zip(found, expected):
            self.assertEqual(list(some), list(others))
            for name in others:
                np.testing.assert_allclose(some[name], others[name], rtol=1e-5, atol=1e-6)

    def test_sparse_gradients_train_as_dense_ones(self):
        for name, settings in METHODS.items():
            with self.subTest(name), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = self.trained(Recommender(True), ratings(), **settings)
                self.check(found, self.trained(Recommender(False), ratings(), **settings))
            said = {str(one.message).partition(" and is")[0] for one in said}
            expected = {f"the gradient of '{n}.weight' is sparse," for n in ("users", "items")}
            self.assertEqual(said, expected if name in DENSE else set())
        with self.assertWarnsRegex(UserWarning, "'users.weight' is sparse.*method"):
            found = self.trained(Recommender(True), ratings(), correction=0.05)
        self.check(found, self.trained(Recommender(False), ratings(), correction=0.05))

    def test_complex_gradients_train_as_pairs(self):
        for name, settings in METHODS.items():
            with self.subTest(name):
                found = self.trained(Waves(True), signals(), **settings)
                self.check(found, self.trained(Waves(False), signals(), **settings))
        found = self.trained(Waves(True), signals(), correction=0.05)
        self.check(found, self.trained(Waves(False), signals(), correction=0.05))

    def test_an_optimizer_of_ones_own_gets_sparse_gradients(self):
        def make(parameters):  # SparseAdam refuses dense ones.
            return torch.optim.SparseAdam(parameters[:2], 0.1)

        trainer = Trainer(Recommender(True), ratings(), optimizer=make, device="cpu")
        with agent_for(trainer) as agent:
            agent.hello()
            start = values_of(trainer.model)
            out, _ = agent.train(start, weight_decay=0.1, batch_size=16)
        self.assertFalse(np.array_equal(out["users.weight"], start["users.weight"]))

    def test_moments_of_sparse_gradients_are_kept(self):
        ends = []
        for sparse in True, False:
            trainer = Trainer(Recommender(sparse), ratings(), keep_optimizer=True, device="cpu")
            with tempfile.TemporaryDirectory() as trainer.state_folder, agent_for(trainer) as agent:
                agent.hello()
                weights = values_of(trainer.model)
                for number in 1, 2, 3:
                    weights, _ = agent.train(
                        weights, round=number, momentum=0.9, lr=0.1, batch_size=16
                    )
            ends.append(weights)
        self.check(ends[:1], ends[1:])


if __name__ == "__main__":
    unittest.main()
