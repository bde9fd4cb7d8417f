# SPDX-License-Identifier: Apache-2.0
"""Tables from three hospitals: numbers in, a number or a yes or no out, in numpy. The data are two that
scikit-learn has with it; each hospital has the patients of its age or tumour size, so the three differ.

    python tabular_numpy.py diabetes 1           disease progression, linear regression
    python tabular_numpy.py breast-cancer 1      benign or not, a network with 16 hidden units

for the first of the hospitals 1 to 3. With `fl-client initial-weights` and the server this is

    fl-client --trainer 'python tabular_numpy.py diabetes 1' initial-weights diabetes.safetensors
    fl-server --model custom:diabetes --initial-weights diabetes.safetensors --lr 0.1 \\
      --min-clients 3 --rounds 100 --local-steps 5
    fl-client --join TOKEN --trainer 'python tabular_numpy.py diabetes 1'

Every fifth patient is held out. tests/python/tabular_test.py compares the results with a training on
all data in one place."""

import sys

import numpy as np
import tributary_fl as fl
from sklearn import datasets, metrics
from tributary_fl.numpy import Trainer

HOSPITALS = 3
HIDDEN = {"diabetes": [], "breast-cancer": [16]}


def read_data(name):
    """All inputs [n, d] and targets [n], from the smallest patient to the largest, and which are held
    out. A federation can't see all data to scale them: these bounds are known beforehand."""
    if name == "diabetes":
        x, y = datasets.load_diabetes(return_X_y=True)
        x, y, order = x * len(x) ** 0.5, y / 100, np.argsort(x[:, 0], kind="stable")
    else:
        x, y = datasets.load_breast_cancer(return_X_y=True)
        typical = np.median(np.abs(x[:100]), axis=0)
        x, order = np.log(x / typical + 0.1), np.argsort(x[:, 0], kind="stable")
    return x[order], y[order].astype(float), np.arange(len(x)) % 5 == 0


class Net(Trainer):
    """A network with tanh units; without hidden layers a linear model. The loss is the mean square for
    numbers, cross-entropy for yes or no."""

    def __init__(self, name, x, y, held_out):
        self.is_yes_or_no = name != "diabetes"
        self.train_data, self.held_out = (x[~held_out], y[~held_out]), (x[held_out], y[held_out])
        sizes = [x.shape[1], *HIDDEN[name], 1]
        draw, start = np.random.default_rng(0), {}
        for layer, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
            start[f"{layer}.weight"] = draw.normal(0, inputs**-0.5, (outputs, inputs))
            start[f"{layer}.bias"] = np.zeros(outputs)
        self.layers = len(sizes) - 1
        metric = fl.MetricInfo("auroc" if self.is_yes_or_no else "r2", combine="none")
        super().__init__(
            {name: value.astype(np.float32) for name, value in start.items()},
            int((~held_out).sum()),
            int(held_out.sum()),
            metrics=[metric],
            supports=["optimizer"],
        )

    def forward(self, weights, x):
        """The inputs of each layer, and the output [n]."""
        values = [x]
        for layer in range(self.layers):
            x = x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
            values.append(x if layer == self.layers - 1 else np.tanh(x))
            x = values[-1]
        return values, x[:, 0]

    def loss(self, output, y):
        if self.is_yes_or_no:
            return float(np.mean(np.logaddexp(0, output) - y * output))
        return float(np.mean((output - y) ** 2))

    def step(self, weights, x, y, lr):
        """One step of gradient descent; returns the loss before it."""
        values, output = self.forward(weights, x)
        slope = 1 / (1 + np.exp(-output)) - y if self.is_yes_or_no else 2 * (output - y)
        back = slope[:, None] / len(y)
        for layer in reversed(range(self.layers)):
            gradient, bias = back.T @ values[layer], back.sum(axis=0)
            back = (back @ weights[f"{layer}.weight"]) * (1 - values[layer] ** 2)
            weights[f"{layer}.weight"] -= (lr * gradient).astype(np.float32)
            weights[f"{layer}.bias"] -= (lr * bias).astype(np.float32)
        return self.loss(output, y)

    def train(self, weights, task):
        x, y = self.train_data
        step, losses = 0, []
        while task.may_begin(step, 1):  # A step takes all examples.
            task.progress(step)
            losses.append(self.step(weights, x, y, task.settings.lr))
            step += 1
        return fl.TrainReport(step, float(np.mean(losses)))

    def evaluate(self, weights, task):
        x, y = self.held_out
        output = self.forward(weights, x)[1]
        name = "auroc" if self.is_yes_or_no else "r2"
        measured = {name: score(self.is_yes_or_no, output, y)}
        return fl.EvalReport(len(y), self.loss(output, y), measured)


def score(is_yes_or_no, output, y):
    """AUROC, or R2; not a number where the examples can't tell (all of one class)."""
    if is_yes_or_no:
        return metrics.roc_auc_score(y, output) if len(set(y)) == 2 else float("nan")
    return metrics.r2_score(y, output)


def make(name, hospital):
    x, y, held_out = read_data(name)
    first, last = (len(x) * (hospital - 1) // HOSPITALS, len(x) * hospital // HOSPITALS)
    return Net(name, x[first:last], y[first:last], held_out[first:last])


if __name__ == "__main__":
    site = make(sys.argv[1], int(sys.argv[2]))
    fl.run(site, state=f"hospital-{sys.argv[2]}")
