# SPDX-License-Identifier: Apache-2.0
"""A trainer for models whose weights are numpy arrays: numpy itself, scikit-learn and the like."""

from __future__ import annotations

import abc
from typing import Any, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from . import _tensors, _trainer
from ._trainer import EvalReport, Hello, MetricInfo, Settings, Task, TrainReport

__all__ = ["EvalReport", "MetricInfo", "Settings", "Task", "TrainReport", "Trainer"]


class Trainer(_trainer.Trainer):
    """Subclass it and write `train`; also `evaluate` where there are held-out examples, and
    `gradient` where a method needs it.

    weights: the model's tensors by name, of float32, float64 or float16: their shapes, and the
        initial weights that `initial` gives.
    train_examples, holdout_examples: how many there are.
    metrics: what `evaluate` measures besides the loss, the main one first: names, or MetricInfo
        where lower values are better and the name is none that the server knows.
    supports: what `train` can do, of "optimizer", "proximal", "correction" and "clip_norm".
        "gradient" and "initial" are known from the methods that there are.
    frozen: a hexadecimal digest of weights that belong to the model and never change.
    dtype: the number format of the arrays that `train`, `evaluate` and `gradient` get, as np.float64
        for scikit-learn, whose models refuse weights in another format than their data. None: each
        array has that of `weights`. What they return may have any; on the wire it is float32."""

    def __init__(
        self,
        weights: Mapping[str, npt.NDArray[Any]],
        train_examples: int,
        holdout_examples: int = 0,
        *,
        metrics: Sequence[str | MetricInfo] = (),
        supports: Sequence[str] = (),
        frozen: str = "",
        dtype: npt.DTypeLike | None = None,
    ):
        self._dtype: Any = dtype
        self._initial = {name: array.copy() for name, array in weights.items()}
        self._tensors = [
            _tensors.Tensor(name, array.shape, _format(name, array))
            for name, array in weights.items()
        ]
        can_gradient = type(self).gradient is not Trainer.gradient
        known = (*supports, "initial", *(["gradient"] if can_gradient else []))
        self._hello = Hello(
            self._tensors,
            train_examples,
            holdout_examples,
            [
                metric if isinstance(metric, MetricInfo) else MetricInfo(metric)
                for metric in metrics
            ],
            [word for word in _trainer.SUPPORTS if word in known],
            frozen,
        )

    @abc.abstractmethod
    def train(self, weights: dict[str, npt.NDArray[Any]], task: Task) -> TrainReport:
        """Trains from `weights` and leaves the result in the same dictionary: change the arrays, or
        put others in. `task.settings` has the run's settings. Call `task.progress(step)` in each
        step."""

    def evaluate(self, weights: Mapping[str, npt.NDArray[Any]], task: Task) -> EvalReport:
        """Measures `weights` on the held-out examples."""
        raise NotImplementedError("this trainer can't evaluate")

    def gradient(
        self, weights: Mapping[str, npt.NDArray[Any]], task: Task
    ) -> Mapping[str, npt.NDArray[Any]]:
        """The gradient of the mean loss over all training examples, plus task.settings.weight_decay
        * weights, by the weights' names."""
        raise NotImplementedError("this trainer can't compute the gradient of all examples")

    def initial(self, seed: int) -> Mapping[str, npt.NDArray[Any]]:
        """Initial weights: a function of the seed, which is in [0, 2^64)."""
        return self._initial

    def hello(self) -> Hello:
        return self._hello

    def on_train(self, task: Task) -> TrainReport:
        weights = self._weights(task)
        report = self.train(weights, task)
        self._write(task, weights)
        return report

    def on_evaluate(self, task: Task) -> EvalReport:
        return self.evaluate(self._weights(task), task)

    def on_gradient(self, task: Task) -> None:
        self._write(task, self.gradient(self._weights(task), task))

    def on_initial(self, task: Task) -> None:
        self._write(task, self.initial(task.seed))

    def _weights(self, task: Task) -> dict[str, npt.NDArray[Any]]:
        """The round's weights as compiled code of other packages takes them: aligned and in order."""
        return {name: np.require(a, self._dtype, ["A", "C"]) for name, a in task.weights().items()}

    def _write(self, task: Task, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        out = task.out(self._tensors)
        for tensor in self._tensors:
            if arrays[tensor.name].shape != tensor.shape:
                raise ValueError(
                    f"tensor '{tensor.name}' has shape {arrays[tensor.name].shape}, "
                    f"expected {tensor.shape}"
                )
            out[tensor.name][...] = arrays[tensor.name]


def _format(name: str, array: npt.NDArray[Any]) -> str:
    formats = {"float32": "F32", "float64": "F64", "float16": "F16"}
    if array.dtype.name not in formats:
        raise TypeError(f"tensor '{name}' is of {array.dtype}: use float32, float64 or float16")
    return formats[array.dtype.name]
