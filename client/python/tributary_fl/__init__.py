# SPDX-License-Identifier: Apache-2.0
"""Tributary, federated learning on data that stay where they are.

    import tributary_fl as fl
    from tributary_fl.torch import Trainer

    fl.run(Trainer(model, train_data, eval_data=held_out), join=TOKEN)

run() takes part in a federation; simulate() runs a whole one on this machine.
`tributary_fl.torch` and `tributary_fl.numpy` have trainers, `tributary_fl.metrics` what these
measure. history() and track() read what a server has recorded; load() reads its models, and
load_builtin() those of them that are built in, ready to predict.
`tributary_fl.codec` has the codecs, `tributary_fl.hooks` uses them in DistributedDataParallel."""

from __future__ import annotations

import os
from typing import Any

from ._run import run
from ._trainer import (
    Cancelled, Diverged, Error, EvalReport, Hello, MetricInfo, OptimizerSettings, Settings, Task,
    Trainer, TrainReport,
)  # fmt: skip
from ._version import __version__
from ._history import History, history, track
from ._simulate import simulate

__all__ = [
    "Cancelled", "Diverged", "Error", "EvalReport", "Hello", "History", "MetricInfo",
    "OptimizerSettings", "Settings", "Task", "TrainReport", "Trainer", "__version__", "history",
    "load", "load_builtin", "run", "simulate", "track",
]  # fmt: skip


def load(checkpoint: str | os.PathLike[str], module: Any = None, strict: bool = True) -> Any:
    """Reads a model that the server has written, STATE/checkpoints/round-NNNNNN.safetensors.

    module: a torch.nn.Module, which gets the weights (a tied tensor under any of its names) and is
        returned; or None: returns {name: numpy array}.
    strict: the file must have all that the module trains, and nothing that the module has not."""
    if module is None:
        from ._tensors import as_float32, read

        file = read(checkpoint)
        return {name: as_float32(file, name).copy() for name in file}
    from .torch import load as load_into

    load_into(checkpoint, module, strict)
    return module


def load_builtin(file: str | os.PathLike[str], spec: str | None = None) -> Any:
    """A built-in model of fl-client as a torch.nn.Module with the weights of a safetensors file: one that
    `fl-server export` has written, or a checkpoint of the server. Needs PyTorch.

        model = fl.load_builtin("model.safetensors")
        probabilities = model.predict(model.prepare(table, schema="patients.json"))

    prepare() makes inputs of tables, arrays or images as the clients did; predict() returns what
    `fl-client predict` prints. The module itself maps prepared inputs to logits, or to values with mean
    0 and variance 1, and can be trained on; its attributes `spec`, `task`, `input_shape` and `outputs`
    say what it is.

    spec: the model as --model of fl-server had it, for a file that does not say so itself."""
    from ._builtin import load as load_module

    return load_module(file, spec)
