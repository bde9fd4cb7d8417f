# SPDX-License-Identifier: Apache-2.0
"""Tributary, federated learning on data that stay where they are.

    import tributary_fl as fl
    from tributary_fl.torch import Trainer

    fl.run(Trainer(model, train_data, eval_data=held_out), join=TOKEN)

run() takes part in a federation; simulate() runs a whole one on this machine.
`tributary_fl.torch` and `tributary_fl.numpy` have trainers, `tributary_fl.metrics` what these
measure. history() and track() read what a server has recorded; load() reads its models.
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
    "load", "run", "simulate", "track",
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
