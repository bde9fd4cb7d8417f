"""What is trained, in numpy: put your own here. A model has a `layout`, the [(name, shape)] of its
tensors, and a number of `examples`; weights are one flat fp32 vector in the layout's order.

    train(weights, offer)   (update, steps, mean loss), by the offer's settings
    initial(seed)           weights that are the same on every machine; without it a run begins with
                            the server's --initial-weights
    evaluate(weights)       (mean loss, accuracy) on examples that are held out, if there are such:
                            `held_out` is how many

`--model custom:NAME --initial-weights FILE.safetensors` on the server names a model that is yours:
its tensors are the file's, as safetensors.torch.save_file(module.state_dict(), FILE) writes them. Its
layout has the parameters first and then what a BatchNorm has counted (running_mean and running_var;
num_batches_tracked does not travel), both sorted by name. torch_model.py makes one of any
torch.nn.Module."""

import math
import pathlib
import time

import numpy as np

from enrol import Refused


def make_model(name, data):
    """The model that the run's server calls `name`."""
    if name.startswith("synthetic:"):
        return Synthetic(int(name.removeprefix("synthetic:")))
    if name == "logistic":
        return Logistic(data)
    raise Refused(f"this client trains logistic and synthetic:N, the run trains {name}")


class Synthetic:
    """`synthetic:N`: N weights whose updates are noise. It needs no data."""

    def __init__(self, size):
        self.layout, self.examples = [("weight", [size])], 1000

    def initial(self, _seed):
        return np.zeros(self.layout[0][1], np.float32)

    def train(self, weights, offer):
        return np.random.default_rng(offer.seed).standard_normal(weights.size, np.float32), 1, 0.0


class Logistic:
    """`logistic`: softmax regression, 784 pixels to 10 classes."""

    layout = [("fc.weight", [10, 784]), ("fc.bias", [10])]

    def __init__(self, path):
        if not pathlib.Path(path).is_file():
            raise Refused(f"'logistic' needs --data FILE.npz, and '{path}' is no file")
        data = np.load(path)
        self.x, self.y = data["x"].reshape(-1, 784).astype(np.float32), data["y"].astype(np.intp)
        self.examples = len(self.y)

    def initial(self, seed):
        """Uniform within 1 / sqrt(784), the same bits that shared/params/model_table.cpp draws."""
        tensors = enumerate(math.prod(shape) for _, shape in self.layout)
        words = np.concatenate([philox_words(seed, number, size) for number, size in tensors])
        steps = (words >> 8).astype(np.int32) - (1 << 23)
        return steps.astype(np.float32) * np.float32(2.0**-23) * np.float32(1 / 28)

    def train(self, weights, offer):
        """(update, steps, mean loss) of mini-batch SGD, as the offer sets it."""
        draw, size = np.random.default_rng(offer.seed), offer.batch_size * offer.accumulate
        most = offer.local_steps or offer.local_epochs * math.ceil(self.examples / size) or math.inf
        end = time.monotonic() + (offer.local_seconds or math.inf)
        local, velocity = weights.copy(), np.zeros_like(weights)
        w, b = local[:7840].reshape(10, 784), local[7840:]  # Views: they move with `local`.
        steps, loss, order = 0, 0.0, []
        while steps == 0 or (steps < most and time.monotonic() < end):
            order = order if len(order) else draw.permutation(self.examples)
            batch, order = order[:size], order[size:]
            x, y, row = self.x[batch], self.y[batch], np.arange(len(batch))
            logits = x @ w.T + b
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            loss -= np.log(np.maximum(p[row, y], 1e-12)).mean()
            p[row, y] -= 1
            gradient = np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)]) / len(batch)
            gradient += offer.weight_decay * local + offer.proximal_mu * (local - weights)
            velocity = offer.momentum * velocity + gradient
            local -= offer.lr * velocity
            steps += 1
        return local - weights, steps, float(loss / steps)


def philox_words(seed, stream, elements):
    """Random 32-bit words of elements 0, 1, ... of a stream, numbered as in kernels/philox.hpp.
    Philox4x32-7: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011."""
    element = np.arange(elements, dtype=np.uint64)
    index = element // 32 * 8 + element % 8
    x = [index & 0xFFFFFFFF, index >> 32, np.full_like(index, stream), np.zeros_like(index)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(b >> 32) ^ x[1] ^ keys[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ keys[1], a & 0xFFFFFFFF]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose((element // 8 % 4).astype(np.intp), x)
