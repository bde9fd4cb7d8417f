# SPDX-License-Identifier: Apache-2.0
"""Batches that are dicts, as the models of Hugging Face take them, against a fake fl-client. The
models here follow the rules of theirs; hf_test.py has real ones."""

import contextlib
import os
import sys
import unittest

import needs_torch  # noqa: F401
import numpy as np

import fake_agent
from fake_agent import agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
from torch import nn
from torch.nn import functional as F

from tributary_fl import metrics
from tributary_fl.torch import Trainer

torch.set_num_threads(1)
EXAMPLES, WIDTH, LENGTH, WORDS = 50, 8, 6, 11
SETTINGS = {"batch_size": 16, "lr": 0.1}


def rows():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, WIDTH, generator=draw)
    return x, x[:, :3].argmax(1)


def texts(seed=0):
    """Tokens, and labels of which many are masked, in each text as many as it likes."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(WORDS, (EXAMPLES, LENGTH), generator=draw)
    shown = torch.rand(EXAMPLES, LENGTH, generator=draw) < torch.linspace(0.1, 0.9, EXAMPLES)[:, None]
    return tokens, torch.where(shown, tokens, torch.tensor(-100))


class Plain(nn.Module):
    """Knows of no loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, features):
        return self.layer(features)


class Classifier(Plain):
    """Returns its loss where it is given labels."""

    def forward(self, features, labels=None, **more):
        assert not more, more
        logits = self.layer(features)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class TokenClassifier(nn.Module):
    """The loss is a mean over the tokens that are not masked; classes stand in the last dimension."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, labels=None):
        logits = self.layer(self.words(input_ids))
        return self.loss(logits, labels), logits  # A tuple, as with return_dict=False.

    @staticmethod
    def loss(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class TinyForCausalLM(TokenClassifier):
    """Each token predicts the next one, so the labels are shifted by one."""

    @staticmethod
    def loss(logits, labels):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def weights_of(module):
    return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}


def trained(make, data, trainer=Trainer, settings=SETTINGS, **options):
    """Hello, the trained weights, and what the trainer says of the training."""
    with agent_for(trainer(make(), data, device="cpu", **options)) as agent:
        said = agent.hello()
        out, done = agent.train(weights_of(make()), **settings)
    return said, out, done


def measured(make, data, **options):
    trainer = Trainer(make(), eval_data=data, device="cpu", eval_batch_size=7, **options)
    with agent_for(trainer) as agent:
        agent.hello()
        return agent.ask("evaluate", weights_of(make()))


def reason(make, data, **options):
    """Why a training fails."""
    with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
        with agent_for(Trainer(make(), data, device="cpu", **options)) as agent:
            agent.hello()
            return agent.ask("train", weights_of(make()), settings=SETTINGS)["reason"]


class Batches(unittest.TestCase):
    def check_same(self, one, other):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])

    def test_every_kind_of_data_with_names_trains_as_a_tuple_does(self):
        x, y = rows()

        class Records(torch.utils.data.Dataset):
            def __len__(self):
                return EXAMPLES

            def __getitem__(self, at):
                return {"id": at, "text": f"row {at}", "features": x[at], "label": y[at]}

        class Positional(Plain):
            def forward(self, values):
                return self.layer(values)

        _, expected, _ = trained(Positional, (x, y))
        records = [{"features": row.tolist(), "labels": int(of)} for row, of in zip(x, y)]
        for data in (
            {"features": x, "labels": y},
            {"features": x.numpy(), "labels": y.numpy()},
            records,
            Records(),
            torch.utils.data.ConcatDataset([Records()]),
        ):
            for make in Plain, Classifier:
                if isinstance(data, torch.utils.data.Dataset) and make is Classifier:
                    continue  # It takes any argument, and would get the column `id`.
                said, out, done = trained(make, data)
                self.assertEqual((said["train_examples"], done["steps"]), (EXAMPLES, 4))
                self.check_same(expected, out)
        loader = torch.utils.data.DataLoader(Records(), batch_size=10)
        self.assertEqual(trained(Plain, loader)[2]["steps"], 5)
        collate = lambda some: {"features": x[: len(some)], "labels": y[: len(some)]}  # noqa: E731
        self.assertEqual(trained(Plain, records, collate=collate)[2]["steps"], 4)

    def test_a_loss_that_is_given_comes_before_the_models_own(self):
        x, y = rows()
        data = {"features": x, "labels": y.double()}
        half = lambda outputs, targets: F.cross_entropy(outputs, targets.long()) / 2  # noqa: E731
        _, out, _ = trained(Classifier, data, loss=half)
        settings = {**SETTINGS, "lr": SETTINGS["lr"] / 2}
        _, expected, _ = trained(Classifier, {"features": x, "labels": y}, settings=settings)
        for name, values in expected.items():
            np.testing.assert_allclose(out[name], values, rtol=1e-5, atol=1e-7)

    def test_a_model_measures_by_its_own_loss_and_metrics_get_its_logits(self):
        x, y = rows()
        named = {"accuracy": metrics.accuracy}
        done = measured(Classifier, {"features": x, "labels": y}, metrics=named)
        logits = Classifier()(x)["logits"]
        self.assertAlmostEqual(done["loss"], F.cross_entropy(logits, y).item(), places=5)
        right = (logits.argmax(1) == y).float().mean().item()
        self.assertAlmostEqual(done["metrics"]["accuracy"], right, places=6)

    def test_masked_labels_weigh_nothing_in_batches_of_any_size(self):
        tokens, labels = texts()
        data = {"input_ids": tokens, "labels": labels}
        named = {"perplexity": metrics.perplexity(), "accuracy": metrics.accuracy}
        for make, counted in (TokenClassifier, labels), (TinyForCausalLM, labels[:, 1:]):
            with self.subTest(make.__name__):
                loss, logits = make()(tokens, labels)
                done = measured(make, data, metrics=named)
                self.assertAlmostEqual(done["loss"], loss.item(), places=5)
                self.assertEqual(done["predictions"], (counted != -100).sum().item())
                perplexity = done["metrics"]["perplexity"]
                self.assertAlmostEqual(perplexity["value"], np.exp(loss.item()), places=3)
                self.assertEqual(perplexity["weight"], done["predictions"])
                said = logits.argmax(2)[:, : counted.shape[1]]
                right = (said == counted)[counted != -100].float().mean().item()
                self.assertAlmostEqual(done["metrics"]["accuracy"]["value"], right, places=6)
                _, out, _ = trained(make, data, settings={"batch_size": 5, "lr": 0.1}, accumulate=10)
                model = make()
                model(tokens, labels)[0].backward()
                for name, parameter in model.named_parameters():
                    expected = (parameter - 0.1 * parameter.grad).detach().numpy()
                    np.testing.assert_allclose(out[name], expected, rtol=1e-5, atol=1e-6)

    def test_a_wrapped_model_gets_what_the_model_itself_takes(self):
        tokens, labels = texts()
        data = {"number": torch.arange(EXAMPLES), "input_ids": tokens, "labels": labels}
        _, expected, plain = trained(TinyForCausalLM, data)
        wrapped = nn.DataParallel(TinyForCausalLM())
        with agent_for(Trainer(wrapped, data, device="cpu")) as agent:
            agent.hello()
            out, done = agent.train(weights_of(TinyForCausalLM()), **SETTINGS)
        self.check_same(expected, out)
        self.assertEqual(done["predictions"], plain["predictions"])

    def test_a_train_step_of_ones_own_weighs_batches_as_it_says(self):
        tokens, labels = texts()

        class Own(Trainer):
            def train_step(self, batch):
                return self.model(**batch)[0]

        data = {"input_ids": tokens, "labels": labels}
        _, _, done = trained(TokenClassifier, data, Own)
        self.assertNotIn("predictions", done)  # By examples, unless it is told.
        count = lambda targets: (targets != -100).sum()  # noqa: E731
        _, _, done = trained(TokenClassifier, data, Own, predictions=count)
        self.assertEqual(done["predictions"], (labels != -100).sum().item())


class Errors(unittest.TestCase):
    def test_what_does_not_fit_is_told_with_a_remedy(self):
        x, y = rows()
        remedy = ".*override inputs_and_targets, .* eval_step .*that loss, the outputs and the targets"
        for data, said in (
            ({"features": x, "y": y}, f"a dict of features, y, and none of these is 'labels'{remedy}"),
            ({"values": x, "labels": y}, r"no argument of a name in the batch \(values, labels\)" + remedy),
            ([{"features": [0.0] * (8 - at), "labels": 0} for at in range(2)],
             "'features'.*pad what has unlike lengths.*DataCollatorWithPadding"),
            ([{"features": None, "labels": 0}] * 2, "'features'.*leave the column out"),
        ):  # fmt: skip
            with self.subTest(said=said):
                self.assertRegex(reason(Plain, data), f"(?s){said}")
        for data, said in (
            ([(x[0], 1), (x[1], 2)], "part 0 of the data, a tuple, is no tensor.*a list of dicts"),
            ({"features": x, "labels": "yes"}, "'labels' of the data, a str, is no tensor"),
        ):
            with self.subTest(said=said), self.assertRaisesRegex(TypeError, said):
                Trainer(Plain(), data)
        with self.assertRaisesRegex(ValueError, "unlike numbers of examples.*'labels': 49"):
            Trainer(Plain(), {"features": x, "labels": y[1:]})

    def test_an_eval_step_that_returns_something_else_is_told_what_it_must_return(self):
        class Own(Trainer):
            def eval_step(self, batch):
                return super().eval_step(batch)[0]

        with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
            with agent_for(Own(Plain(), eval_data=dict(zip(("features", "labels"), rows())))) as agent:
                agent.hello()
                said = agent.ask("evaluate", weights_of(Plain()))["reason"]
        self.assertIn("it must return three things, the mean loss over the batch, and the outputs", said)


if __name__ == "__main__":
    unittest.main()
