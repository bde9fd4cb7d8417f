# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face's transformers, made from configurations, and adapters of peft: against a fake
fl-client, and the recipe examples/trainers/hf_lora.py in a federation. Where transformers or peft is
missing the test leaves itself out. To have both with Debian's PyTorch:

    python3 -m venv --system-site-packages build/hf-venv
    build/hf-venv/bin/pip install --no-deps 'transformers==4.38.2' 'peft==0.9.0' 'accelerate==0.27.2'
    build/hf-venv/bin/pip install 'tokenizers<0.19' 'huggingface-hub<1' psutil

(by --no-deps because pip would get another PyTorch, of gigabytes)."""

import importlib.util
import json
import os
import sys
import unittest

import needs_torch  # noqa: F401

for module in "transformers", "peft":
    if importlib.util.find_spec(module) is None:
        print(f"SKIPPED: {sys.executable} has no {module}: NO MODEL OF HUGGING FACE WAS TRAINED")
        sys.exit(77)
os.environ["HF_HUB_OFFLINE"] = "1"

import fake_agent
from fake_agent import agent_for
from runs import Runs

import numpy as np
import torch
from transformers import (
    BertConfig, BertForSequenceClassification, BertForTokenClassification, GPT2Config, GPT2LMHeadModel,
)  # fmt: skip

from tributary_fl import metrics
from tributary_fl.torch import Trainer

torch.set_num_threads(1)
RECIPE = fake_agent.SOURCE / "examples" / "trainers" / "hf_lora.py"


def weights_of(module):
    return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}


def gpt2():
    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, **none))


def bert(kind):
    torch.manual_seed(0)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return kind(BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=16, max_position_embeddings=16, num_labels=3, **none))  # fmt: skip


class Models(unittest.TestCase):
    def check(self, model, data, counted, named):
        """An evaluation in parts is that of all examples at once, and so is a step."""
        loss = model(**data).loss
        loss.backward()
        expected = {
            name: (p - 0.1 * p.grad if p.grad is not None else p).detach().numpy().copy()
            for name, p in model.named_parameters()
        }
        start, examples = weights_of(model), len(data["labels"])
        trainer = Trainer(model, data, eval_data=data, eval_batch_size=3, metrics=named, device="cpu",
                          accumulate=examples)  # fmt: skip
        with agent_for(trainer) as agent:
            agent.hello()
            done = agent.ask("evaluate", start)
            out, _ = agent.train(start, batch_size=2, lr=0.1)
        self.assertAlmostEqual(done["loss"], loss.item(), places=4)
        self.assertEqual(done.get("predictions", examples), counted)
        for name, values in expected.items():
            np.testing.assert_allclose(out[name], values, rtol=1e-3, atol=1e-5)
        return done["metrics"], loss.item()

    def test_the_next_token(self):
        tokens = torch.randint(32, (7, 12), generator=torch.Generator().manual_seed(1))
        labels = tokens.clone()
        labels[0, 3:], labels[3, :9] = -100, -100
        data = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
        counted = int((labels[:, 1:] != -100).sum())
        found, loss = self.check(gpt2(), data, counted, {"perplexity": metrics.perplexity()})
        self.assertAlmostEqual(found["perplexity"]["value"], np.exp(loss), places=2)

    def test_classes_of_texts_and_of_tokens(self):
        draw = torch.Generator().manual_seed(1)
        tokens = torch.randint(32, (7, 12), generator=draw)
        classes = torch.randint(3, (7,), generator=draw)
        named = {"accuracy": metrics.accuracy}
        data = {"input_ids": tokens, "labels": classes}
        self.check(bert(BertForSequenceClassification), data, 7, named)
        labels = torch.randint(3, (7, 12), generator=draw)
        labels[2, 1:] = -100
        data = {"input_ids": tokens, "labels": labels}
        found, _ = self.check(bert(BertForTokenClassification), data, 7 * 12 - 11, named)
        self.assertEqual(found["accuracy"]["weight"], 7 * 12 - 11)


class Recipe(Runs):
    def test_adapters_alone_travel_and_learn_and_peft_reads_them(self):
        federation = self.make()
        folder = federation.folder
        text = folder / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 120)
        recipe = [sys.executable, RECIPE, text]
        maker = federation.start("maker", ["env", "-C", folder, *recipe])
        self.expect_exit(maker)
        initial = folder / "hf-lora.safetensors"
        server = federation.server(
            *("--new-run", "--model", "custom:hf-lora", "--initial-weights", initial, "--min-clients", 2),
            *("--codec", "ecuq:2+ef", "--rounds", 4, "--optimizer", "adam", "--lr", 0.01, "--batch-size", 8),
        )
        clients = [
            federation.start(f"hf-{name}", [*recipe, federation.token(name), folder / f"site-{name}"])
            for name in ("x", "y")
        ]
        for program in [server, *clients]:
            self.expect_exit(program)
        rows = federation.query(
            "SELECT e.version, e.value FROM evaluation AS e WHERE e.name = 'perplexity' AND run_id ="
            " (SELECT max(id) FROM run) ORDER BY e.version"
        )
        self.assertEqual([version for version, _ in rows], [0, 1, 2, 3, 4])
        self.assertLess(rows[-1][1], 0.9 * rows[0][1])
        # As the recipe says at its top.
        sent = federation.query("SELECT DISTINCT raw_bytes FROM task WHERE state = 'accepted'")
        self.assertEqual(sent, [(4 * 1024,)])
        newest = sorted(federation.checkpoints.glob("*.safetensors"))[-1]
        saver = federation.start("saver", [*recipe[:2], "--save", newest, folder / "adapters"])
        self.expect_exit(saver)
        said = json.loads((folder / "adapters" / "adapter_config.json").read_text())
        self.assertEqual(said["target_modules"], ["c_attn"])


if __name__ == "__main__":
    unittest.main()
