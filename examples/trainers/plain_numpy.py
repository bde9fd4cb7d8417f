# SPDX-License-Identifier: Apache-2.0
"""A trainer that speaks the protocol of docs/design/trainer-protocol.md by itself, with numpy only:
softmax regression on an .npz file with x, [N, features], and y, [N], whole numbers from 0.

    fl-client --trainer 'python3 plain_numpy.py part-1.npz 10' --join TOKEN

The last number is that of the classes, which is the same for all clients. A tenth of the examples
is held out."""

import json
import os
import socket
import struct
import sys

import numpy as np


def read_tensors(path):
    """{name: array} of a safetensors file of float32: 8 bytes with the length of a JSON header, the
    header, then the numbers."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    tensors = {}
    for name, said in header.items():
        if name != "__metadata__":
            begin, end = said["data_offsets"]
            tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(said["shape"]).copy()
    return tensors


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, array in tensors.items():
        places = [at, at + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": places}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.astype("<f4").tobytes())


def forward(w, x, y):
    """(mean loss, accuracy, gradient of the loss with respect to the logits)"""
    logits = x @ w["fc.weight"].T + w["fc.bias"]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss, right = -np.log(np.maximum(p[rows, y], 1e-12)).mean(), (p.argmax(axis=1) == y).mean()
    p[rows, y] -= 1
    return float(loss), float(right), p / len(y)


def train(request, x, y, tell):
    """Plain SGD with the run's learning rate, and FedProx's pull."""
    s, w = request["settings"], read_tensors(request["weights"])
    start = {name: array.copy() for name, array in w.items()}
    draw, size, losses, order = np.random.default_rng(s["seed"]), s["batch_size"], [], []
    steps = s["steps"] or max(1, s["epochs"]) * -(-len(y) // size)
    for step in range(steps):
        order = order if len(order) else draw.permutation(len(y))
        batch, order = order[:size], order[size:]
        loss, _, error = forward(w, x[batch], y[batch])
        losses.append(loss)
        gradients = {"fc.weight": error.T @ x[batch], "fc.bias": error.sum(axis=0)}
        for name, gradient in gradients.items():
            w[name] -= s["lr"] * (gradient + s["proximal_mu"] * (w[name] - start[name]))
        if step % 100 == 0:
            tell({"type": "progress", "id": request["id"], "step": step, "steps": steps})
    write_tensors(request["out"], w)
    return {"wrote": "weights", "steps": steps, "loss": float(np.mean(losses))}


def main(path, classes):
    data = np.load(path)
    x, y = data["x"].astype(np.float32), data["y"].astype(np.intp)
    held = max(1, len(y) // 10)
    shapes = {"fc.weight": [int(classes), x.shape[1]], "fc.bias": [int(classes)]}

    def answer(request):
        if request["type"] == "train":
            return train(request, x[held:], y[held:], tell)
        if request["type"] == "evaluate":
            loss, right, _ = forward(read_tensors(request["weights"]), x[:held], y[:held])
            return {"examples": held, "loss": loss, "metrics": {"accuracy": right}}
        if request["type"] == "initial":  # Zeros do for a convex problem, whatever the seed.
            zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            write_tensors(request["out"], zeros)
            return {}
        raise ValueError(f"unknown request {request['type']}")

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["TRIBUTARY_SOCKET"])

    def tell(message):
        connection.sendall(json.dumps(message).encode() + b"\n")

    tensors = [{"name": name, "shape": shape} for name, shape in shapes.items()]
    tell({"type": "hello", "protocol": 1, "tensors": tensors, "train_examples": len(y) - held,
          "holdout_examples": held, "metrics": [{"name": "accuracy"}],
          "supports": ["proximal", "initial"]})  # fmt: skip
    # Requests come one at a time. This program does not look for `cancel` while it trains: its
    # training is short. The loop ends when the socket closes.
    for line in connection.makefile("rb"):
        request = json.loads(line)
        if request["type"] == "bye":
            return
        if request["type"] == "cancel":
            continue
        try:
            tell({"type": "done", "id": request["id"], **answer(request)})
        except (OSError, ValueError) as error:
            tell({"type": "error", "id": request["id"], "reason": str(error)})


if __name__ == "__main__":
    main(*sys.argv[1:])
