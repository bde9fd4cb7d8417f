# SPDX-License-Identifier: Apache-2.0
"""The built-in models of fl-client as modules of PyTorch, for fl.load_builtin(). Their tensors have the
names, shapes and meaning that they have in client/learn/torch; a test compares what both predict."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as functional
from torch import nn

from . import _tables, _tensors
from ._builtin_spec import Spec, parse

CONTROL = "control."  # Before the names of what a method keeps beside the model, in a checkpoint.
VARIANCE_MIN = float(np.finfo(np.float32).tiny)
AT_ONCE = 500  # Examples that are predicted at once, as fl-client does.


class BuiltinModel(nn.Sequential):  # type: ignore[misc]
    """A built-in model with its weights, in evaluation mode. It maps prepared inputs to logits, or to
    values with mean 0 and variance 1.

    spec: what the server's --model said. task: "classification", "regression" or "language".
    input_shape: of one example; of a transformer its context, in tokens. outputs: classes, values
    or tokens."""

    def __init__(self, spec: Spec):
        super().__init__(OrderedDict(_layers(spec)))
        self.spec, self.task = spec.text, spec.task
        self.input_shape, self.outputs = spec.input, spec.outputs
        self._spec = spec

    def prepare(self, examples: Any, schema: _tables.Schema | None = None) -> torch.Tensor:
        """The inputs of examples as the clients have prepared theirs.

        examples: a table with the columns that were inputs (a pandas data frame, a dict of columns, a
            list of dicts); an array with a row for each example, whose inputs are in the order of
            training; images as uint8, (n, rows, columns) or (n, channels, rows, columns); for a
            transformer a text, or several of one length: bytes, or the numbers of a tokenizer.
        schema: the one that the members had, as a file's path or its content. Columns of words need it.

        NaN, None and empty fields are missing values."""
        if self.task == "language":
            return self._tokens_of(examples)
        if _tables.is_table(examples):
            array = _tables.inputs_of(examples, schema)
        else:
            array = np.asarray(examples)
        if array.ndim == 1:
            array = array[:, None]
        if array.dtype == np.uint8 and array.ndim in (3, 4):
            if array.ndim == 3:
                array = array[:, None]
            inputs = torch.from_numpy(array.astype(np.float32)) / 255
        else:
            inputs = torch.from_numpy(array.astype(np.float64))
        self._check(inputs)
        return inputs if self._spec.scales_inputs else inputs.float()

    def _tokens_of(self, examples: Any) -> torch.Tensor:
        if hasattr(examples, "tolist"):
            examples = examples.tolist()
        is_one = isinstance(examples, (bytes, bytearray)) or isinstance(examples[0], int)
        texts = [examples] if is_one else examples
        tokens = torch.tensor([list(text[-self.input_shape[0] :]) for text in texts])
        if int(tokens.max()) >= self.outputs:
            raise ValueError(
                f"model '{self.spec}' takes tokens from 0 to {self.outputs - 1}, and these have "
                f"{int(tokens.max())}"
            )
        return tokens

    def _check(self, inputs: torch.Tensor) -> None:
        shape = tuple(inputs.shape[1:])
        is_dense = self._spec.family == "mlp"
        fits = math.prod(shape) == self.input_shape[0] if is_dense else shape == self.input_shape
        if not fits:
            raise ValueError(
                f"model '{self.spec}' takes examples of {_shown(self.input_shape)} values, and these "
                f"have {_shown(shape)}"
            )
        if not self._spec.scales_inputs and bool(torch.isnan(inputs).any()):
            raise ValueError(
                f"model '{self.spec}' takes no missing values, because it does not scale its inputs"
            )

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """What `fl-client predict` prints: the probability of each class, (n, classes); or values in the
        targets' own unit, (n, targets), as float64; of a transformer the probability of each next token,
        (n, length, vocab). `inputs` come from prepare()."""
        self.eval()
        with torch.no_grad():
            outputs = torch.cat([self(part) for part in inputs.split(AT_ONCE)])
        if self.task != "regression":
            return outputs.double().softmax(-1).float()
        if not self._spec.scales_targets:
            return outputs.double()
        target = self.target
        deviation = target.running_var.double().clamp_min(VARIANCE_MIN).sqrt()
        return outputs.double() * deviation + target.running_mean.double()


def load(file: _tensors.Path, text: str | None = None) -> BuiltinModel:
    """fl.load_builtin()."""
    tensors = _tensors.read(file)
    spec = parse(_text_of(tensors, text))
    module = BuiltinModel(spec)
    own = {
        name: value
        for name, value in module.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    _check_layout(tensors, own, spec)
    with torch.no_grad():
        for name, value in own.items():
            values = _tensors.as_float32(tensors, name)
            if not np.isfinite(values).all():
                raise ValueError(f"{tensors.path}: {name} has values that are not finite")
            value.copy_(torch.from_numpy(values.copy()))
    module.eval()
    return module


def _text_of(tensors: _tensors.TensorFile, given: str | None) -> str:
    """The model that the file says or the user names."""
    said = tensors.metadata.get("model", "")
    is_custom = said.startswith("custom:")
    if given is not None:
        if said in ("", given) or is_custom:
            return given
        raise ValueError(f"{tensors.path} holds the model '{said}', not '{given}': leave out spec")
    if not said:
        raise ValueError(
            f"{tensors.path} does not say which built-in model it holds: give spec=, as --model of "
            "fl-server had it"
        )
    if is_custom:
        raise ValueError(
            f"{tensors.path} holds '{said}', a model of a program of yours: load(file, module) reads it"
        )
    return said


def _check_layout(tensors: _tensors.TensorFile, own: dict[str, torch.Tensor], spec: Spec) -> None:
    wrong = []
    for name, value in own.items():
        if name not in tensors:
            wrong.append(f"{name} is missing")
        elif tensors.spec(name).shape != tuple(value.shape):
            has = list(tensors.spec(name).shape)
            wrong.append(f"{name} has shape {has}, expected {list(value.shape)}")
    for name in tensors:
        of_method = name.startswith(CONTROL) and name[len(CONTROL) :] in own
        if name not in own and not of_method and not name.endswith("num_batches_tracked"):
            wrong.append(f"{name} is not in the model")
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(
            f"{tensors.path} does not hold the model '{spec.text}': {'; '.join(wrong[:5])}{more}. Take a "
            "file that fl-server export has written, or name the model that the file does hold: spec="
        )


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


class Scaling(nn.Module):  # type: ignore[misc]
    """Mean and variance of each value. Inputs are scaled by them, and a missing one becomes the mean;
    those of targets are only kept."""

    def __init__(self, values: int, is_input: bool):
        super().__init__()
        self._is_input = is_input
        self.register_buffer("running_mean", torch.zeros(values))
        self.register_buffer("running_var", torch.ones(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._is_input:
            return x
        scaled = (x - self.running_mean) / self.running_var.clamp_min(VARIANCE_MIN).sqrt()
        return torch.nan_to_num(scaled.float(), 0.0)


class Apply(nn.Module):  # type: ignore[misc]
    """A function as a layer without tensors."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(x)


def _pool_relu(x: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(x, 2).relu()


def _mean_of_pixels(x: torch.Tensor) -> torch.Tensor:
    return x.mean((2, 3))


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """He 2016, with shortcuts that have no parameters (option A)."""

    def __init__(self, before: int, channels: int):
        super().__init__()
        stride = 1 if before == channels else 2
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self._added = channels - before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self._added:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self._added))
        return (y + x).relu()


class Positions(nn.Module):  # type: ignore[misc]
    """Adds a learned vector for each place in the context."""

    def __init__(self, context: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(context, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[: x.shape[1]]


class ExpertsLayer(nn.Module):  # type: ignore[misc]
    """One of the two dense layers of all experts of a block."""

    def __init__(self, experts: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(experts, outputs))

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return functional.linear(x, self.weight[expert], self.bias[expert])


class Mixture(nn.Module):  # type: ignore[misc]
    """A router sends each token to `top` of the experts, whose outputs it adds up with its weights."""

    def __init__(self, width: int, experts: int, top: int):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.fc1 = ExpertsLayer(experts, width, 4 * width)
        self.fc2 = ExpertsLayer(experts, 4 * width, width)
        self._experts, self._top = experts, top

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(self._top, -1)
        if self._top > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(x)
        for expert in range(self._experts):
            is_here = (chosen == expert).any(-1)
            made = self.fc2(functional.gelu(self.fc1(x[is_here], expert)), expert)
            weight = torch.where(chosen == expert, weights, torch.zeros_like(weights)).sum(-1)
            total[is_here] += made * weight[is_here].unsqueeze(-1)
        return total


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Radford 2019 (GPT-2): a norm before the attention and one before the dense layers, in whose place
    there may be experts."""

    def __init__(self, spec: Spec):
        super().__init__()
        width = spec.width
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)  # Queries, keys and values.
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        if spec.experts:
            self.experts = Mixture(width, spec.experts, spec.top)
        else:
            self.fc1 = nn.Linear(width, 4 * width)
            self.fc2 = nn.Linear(4 * width, width)
        self._spec = spec

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.projection(self._attend(self.norm1(x)))
        z = self.norm2(y)
        return y + (self.experts(z) if self._spec.experts else self.fc2(functional.gelu(self.fc1(z))))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        split = self.attention(x).view(n, length, 3, self._spec.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self._spec.heads)
        is_later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(is_later, -math.inf).softmax(-1) @ value
        return mixed.transpose(1, 2).reshape(x.shape)


def _layers(spec: Spec) -> Iterable[tuple[str, nn.Module]]:
    makers: dict[str, Callable[[Spec], Iterable[tuple[str, nn.Module]]]] = {
        "mlp": _dense, "lenet": _lenet, "cnn": _cnn, "resnet": _resnet, "transformer": _transformer,
    }  # fmt: skip
    yield from makers[spec.family](spec)
    if spec.scales_targets:
        yield "target", Scaling(spec.outputs, is_input=False)


def _dense(spec: Spec) -> Iterable[tuple[str, nn.Module]]:
    yield "flatten", nn.Flatten()
    if spec.scales_inputs:
        yield "input", Scaling(spec.input[0], is_input=True)
    before = spec.input[0]
    for number, width in enumerate(spec.hidden, 1):
        yield f"fc{number}", nn.Linear(before, width)
        yield f"relu{number}", nn.ReLU()
        before = width
    yield f"fc{len(spec.hidden) + 1}" if spec.hidden else "fc", nn.Linear(before, spec.outputs)


def _lenet(_: Spec) -> Iterable[tuple[str, nn.Module]]:
    yield "conv1", nn.Conv2d(1, 6, 5)
    yield "pool1", Apply(_pool_relu)
    yield "conv2", nn.Conv2d(6, 16, 5)
    yield "pool2", Apply(_pool_relu)
    yield "flatten", nn.Flatten()
    yield "fc1", nn.Linear(256, 120)
    yield "relu1", nn.ReLU()
    yield "fc2", nn.Linear(120, 84)
    yield "relu2", nn.ReLU()
    yield "fc3", nn.Linear(84, 10)


def _cnn(spec: Spec) -> Iterable[tuple[str, nn.Module]]:
    channels, rows, columns = spec.input
    yield "conv1", nn.Conv2d(channels, 32, 5, padding=2)
    yield "pool1", Apply(_pool_relu)
    yield "conv2", nn.Conv2d(32, 64, 5, padding=2)
    yield "pool2", Apply(_pool_relu)
    yield "flatten", nn.Flatten()
    yield "fc1", nn.Linear(64 * (rows // 2 // 2) * (columns // 2 // 2), 512)
    yield "relu1", nn.ReLU()
    yield "fc2", nn.Linear(512, spec.outputs)


def _resnet(spec: Spec) -> Iterable[tuple[str, nn.Module]]:
    yield "conv1", nn.Conv2d(spec.input[0], 16, 3, 1, 1, bias=False)
    yield "bn1", nn.BatchNorm2d(16)
    yield "relu1", nn.ReLU()
    channels = 16
    for block in range(3 * spec.blocks):
        before, channels = channels, 16 << (block // spec.blocks)
        yield f"block{block + 1}", ResidualBlock(before, channels)
    yield "pool", Apply(_mean_of_pixels)
    yield "fc", nn.Linear(channels, spec.outputs)


def _transformer(spec: Spec) -> Iterable[tuple[str, nn.Module]]:
    tokens = nn.Embedding(spec.outputs, spec.width)
    yield "tokens", tokens
    yield "positions", Positions(spec.input[0], spec.width)
    for block in range(spec.layers):
        yield f"block{block + 1}", TransformerBlock(spec)
    yield "norm", nn.LayerNorm(spec.width)
    yield "logits", TiedLogits(tokens)


class TiedLogits(nn.Module):  # type: ignore[misc]
    """The embedding of tokens also gives the logits. It is no part of this module, so that it has one
    name."""

    def __init__(self, tokens: nn.Embedding):
        super().__init__()
        self._tokens = [tokens]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._tokens[0].weight)
