#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Linear regression by gradient descent on a CSV file whose last column is the target; every tenth row
is held out. It stands for a program of yours that once.sh calls, and says there how it is called."""

import json
import sys

import numpy as np
import safetensors.numpy

command, path, *rest = sys.argv[1:]
table = np.loadtxt(path, delimiter=",", skiprows=1)
held_out = np.arange(1, len(table) + 1) % 10 == 0
rows = table[held_out if command == "measure" else ~held_out]
x, y = rows[:, :-1], rows[:, -1]

if command == "describe":
    tensors = [{"name": "weight", "shape": [x.shape[1]]}, {"name": "bias", "shape": [1]}]
    counts = {"train_examples": len(x), "holdout_examples": int(held_out.sum())}
    print(json.dumps({"protocol": 1, "tensors": tensors, "metrics": ["mae"], **counts}))
    sys.exit()

model = safetensors.numpy.load_file(rest[0])
weight, bias = model["weight"].astype(float), model["bias"].astype(float)
if command == "measure":
    error = x @ weight + bias - y
    measured = {"mae": float(np.abs(error).mean())}
    print(json.dumps({"examples": len(x), "loss": float((error**2).mean()), "metrics": measured}))
else:
    steps = 10
    for _ in range(steps):
        error = x @ weight + bias - y
        weight -= float(rest[1]) * (x.T @ error) / len(x)
        bias -= float(rest[1]) * error.mean()
    trained = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
    safetensors.numpy.save_file(trained, rest[0])
    print(json.dumps({"steps": steps, "loss": float((error**2).mean())}))
