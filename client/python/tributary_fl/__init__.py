# SPDX-License-Identifier: Apache-2.0
"""Tributary, federated learning on data that stay where they are.

    import tributary_fl as fl
    from tributary_fl.torch import Trainer

    fl.run(Trainer(model, train_data, eval_data=held_out), join=TOKEN)

run() takes part in a federation. `tributary_fl.torch` and `tributary_fl.numpy` have trainers,
`tributary_fl.metrics` what these measure. history() and track() read what a server has recorded.
`tributary_fl.codec` has the codecs."""

from __future__ import annotations

from ._run import run
from ._trainer import (
    Cancelled, Diverged, Error, EvalReport, Hello, MetricInfo, OptimizerSettings, Settings, Task,
    Trainer, TrainReport,
)  # fmt: skip
from ._version import __version__
from ._history import History, history, track

__all__ = [
    "Cancelled", "Diverged", "Error", "EvalReport", "Hello", "History", "MetricInfo",
    "OptimizerSettings", "Settings", "Task", "TrainReport", "Trainer", "__version__", "history",
    "run", "track",
]  # fmt: skip
