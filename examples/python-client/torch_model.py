"""A torch.nn.Module as what this client trains. In a file of your own, for `client.py --models FILE`:

    def make_model(name, data):
        images = torch.load(data)
        return TorchModel(Retina(), images["x"], images["y"], held_out=0.1)

and before, where the run begins: save(Retina(), "retina.safetensors")."""

import math
import time

import numpy as np
import safetensors.numpy
import torch

STATISTICS = ("running_mean", "running_var")


def travelling(module):
    """[(name, tensor)] of what a federation shares, in the order of the server's layout."""
    parameters = sorted((name, p.data) for name, p in module.named_parameters())
    buffers = sorted((n, b) for n, b in module.named_buffers() if n.endswith(STATISTICS))
    return parameters + buffers


def save(module, path):
    """The file for the server's --initial-weights."""
    tensors = {name: tensor.cpu().numpy() for name, tensor in travelling(module)}
    safetensors.numpy.save_file(tensors, path)


class TorchModel:
    """Examples are x[i] with the label or target y[i]; `loss` is of (output, y). All of them lie on
    `device`. A part `held_out` of them is not trained on, and measured in each round."""

    def __init__(self, module, x, y, held_out=0.0, loss=None, device=None):
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.module, self.loss = module.to(device), loss or torch.nn.functional.cross_entropy
        self.tensors = travelling(self.module)
        self.layout = [(name, list(tensor.shape)) for name, tensor in self.tensors]
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        self.held_out = int(len(y) * held_out)
        self.examples = len(y) - self.held_out
        self.x, self.y = x[order].to(device), y[order].to(device)

    def load(self, weights):
        at = 0
        for name, tensor in self.tensors:
            values = torch.from_numpy(weights[at : at + tensor.numel()].copy())
            # Stale updates may have made less than nothing of a variance near 0.
            values = values.clamp(min=0) if name.endswith("running_var") else values
            tensor.copy_(values.view(tensor.shape))
            at += tensor.numel()

    def flat(self):
        return torch.cat([tensor.flatten() for _, tensor in self.tensors]).cpu().numpy()

    def train(self, weights, offer):
        with torch.no_grad():
            self.load(weights)
        self.module.train()
        parameters = list(self.module.parameters())
        start = [p.detach().clone() for p in parameters] if offer.proximal_mu else []
        sgd = torch.optim.SGD(parameters, offer.lr, offer.momentum, 0, offer.weight_decay)
        draw, size = np.random.default_rng(offer.seed), offer.batch_size * offer.accumulate
        most = offer.local_steps or offer.local_epochs * math.ceil(self.examples / size) or math.inf
        end = time.monotonic() + (offer.local_seconds or math.inf)
        steps, loss_sum, order = 0, 0.0, []
        while steps == 0 or (steps < most and time.monotonic() < end):
            order = order if len(order) else draw.permutation(self.examples)
            batch, order = torch.from_numpy(order[:size]), order[size:]
            sgd.zero_grad()
            for part in batch.split(offer.batch_size):
                loss = self.loss(self.module(self.x[part]), self.y[part]) * len(part) / len(batch)
                loss.backward()
                loss_sum += loss.item()
            for parameter, old in zip(parameters, start):
                parameter.grad.add_(parameter.detach() - old, alpha=offer.proximal_mu)
            sgd.step()
            steps += 1
        return self.flat() - weights, steps, loss_sum / steps

    @torch.no_grad()
    def evaluate(self, weights):
        self.load(weights)
        self.module.eval()
        x, y = self.x[self.examples :], self.y[self.examples :]
        output = torch.cat([self.module(part) for part in x.split(500)])
        right = (output.argmax(1) == y).float().mean().item() if output.dim() == 2 else 0.0
        return self.loss(output, y).item(), right
