# SPDX-License-Identifier: Apache-2.0
"""Digits of 8 x 8 pixels, a third of them on each of three machines:

    python digits_torch.py 0 TOKEN      and on the others, with tokens of their own, 1 and 2

Without a token it writes digits.safetensors, for
`fl-server --model custom:digits --initial-weights digits.safetensors`."""

import sys

import torch
import tributary_fl as fl
from sklearn.datasets import load_digits
from torch import nn
from tributary_fl.metrics import accuracy
from tributary_fl.torch import Trainer, save

part, *token = sys.argv[1:]
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x[int(part) :: 3] / 16).float().view(-1, 1, 8, 8), torch.tensor(
    y[int(part) :: 3]
)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
)
if token:
    held_out, rest = (x[:60], y[:60]), (x[60:], y[60:])
    trainer = Trainer(model, rest, eval_data=held_out, metrics={"accuracy": accuracy})
    fl.run(trainer, join=token[0], state=f"digits-{part}")
else:
    save(model, "digits.safetensors")
