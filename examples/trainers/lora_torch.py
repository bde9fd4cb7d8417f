# SPDX-License-Identifier: Apache-2.0
"""Adapters only: a small transformer on text, whose weights are frozen and never travel. Every site
has the same ones (here from a seed; in earnest from a file of pretrained weights), and fl-client
checks that by their digest. What is trained and sent is LoRA's B and A, W + B A for each matrix W;
in FFA-LoRA it is B alone, and A stays as it was drawn, which also makes the mean of several sites'
adapters exact.

    python lora_torch.py ffa text.txt              writes ffa.safetensors, for
                                                   `fl-server --model custom:ffa --initial-weights …`
    python lora_torch.py ffa text.txt TOKEN SITE   takes part; SITE names its state folder

The first word is `ffa`, `lora`, or `whole` for training all weights. Bytes that one client sends (by
--codec) and gets in a round:

              values   up, none   up, ecuq:1+ef       down
    whole    466,432   1,866 kB           58 kB   1,866 kB
    lora      16,384      66 kB          2.1 kB      66 kB
    ffa        9,216      37 kB          1.2 kB      37 kB
"""

import math
import sys

import torch
import tributary_fl as fl
from torch import nn
from tributary_fl.metrics import perplexity
from tributary_fl.torch import Trainer, save

WIDTH, HEADS, LAYERS, CONTEXT, RANK = 128, 4, 2, 32, 4


class Adapted(nn.Module):
    """A frozen linear layer with an adapter beside it, which begins at zero."""

    def __init__(self, linear, trains_a):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        a = torch.randn(RANK, linear.in_features) / math.sqrt(linear.in_features)
        self.a = nn.Parameter(a, requires_grad=trains_a)
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x):
        return self.linear(x) + x @ self.a.t() @ self.b.t()


class Block(nn.Module):
    def __init__(self, adapt):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = adapt(nn.Linear(WIDTH, 3 * WIDTH))
        self.out = adapt(nn.Linear(WIDTH, WIDTH))
        self.up, self.down = adapt(nn.Linear(WIDTH, 4 * WIDTH)), adapt(nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(3) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        adapt = (lambda linear: linear) if kind == "whole" else (
            lambda linear: Adapted(linear, trains_a=kind == "lora"))  # fmt: skip
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(adapt) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, 256)
        for name, parameter in self.named_parameters():
            if kind != "whole" and name.rpartition(".")[2] not in ("a", "b"):
                parameter.requires_grad_(False)

    def forward(self, x):
        x = self.bytes(x) + self.places.weight[: x.shape[1]]
        return self.head(self.blocks(x)).transpose(1, 2)  # Classes stand in dimension 1.


kind, path, *join = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)  # The frozen weights and A are the same everywhere.
model = Transformer(kind)
if not join:
    save(model, f"{kind}.safetensors")
    sys.exit()
with open(path, "rb") as file:
    windows = torch.tensor(list(file.read())).unfold(0, CONTEXT + 1, CONTEXT)
inputs, targets = windows[:, :-1], windows[:, 1:]
held = max(1, len(windows) // 10)
trainer = Trainer(
    model,
    (inputs[held:], targets[held:]),
    eval_data=(inputs[:held], targets[:held]),
    metrics={"perplexity": perplexity()},
)
fl.run(trainer, join=join[0], state=join[1])
