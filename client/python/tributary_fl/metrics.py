# SPDX-License-Identifier: Apache-2.0
"""What a trainer measures besides the loss.

A metric is a function of (outputs, targets) that returns the mean over a batch's examples, or that
mean and the number of what it is a mean over (where targets are masked, say); or an object made by
one of the functions below. All take torch tensors or numpy arrays. Targets of classes that are -100
are masked: they do not count. A class of your own needs the members of Metric."""

from __future__ import annotations

import math
from typing import Any, Callable, Protocol, Union, runtime_checkable

import numpy as np
import numpy.typing as npt

from ._trainer import MetricInfo, MetricValue

__all__ = [
    "Metric", "accuracy", "auroc", "f1", "mae", "mse", "perplexity", "r2", "top_k",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Function = Callable[[Any, Any], Any]
MASKED = -100  # As a target: what torch's cross_entropy leaves out, too.


@runtime_checkable
class Metric(Protocol):
    """Measures batch after batch, for one evaluation at a time."""

    @property
    def better(self) -> str | None:
        """"higher" or "lower"; None: as the metric's name says, else "higher"."""

    @property
    def combine(self) -> str | None:
        """How the server makes one value of those of several clients: "mean", "log_mean" or "none";
        None: as the metric's name says, else "mean"."""

    def reset(self) -> None:
        """Begins an evaluation."""

    def update(self, outputs: Any, targets: Any) -> None:
        """Takes a batch."""

    def result(self) -> MetricValue:
        """The value, which weighs as many examples as there were; or the value and its weight."""


MetricLike = Union[Metric, Function]


class _Mean:
    """The mean of a function of batches, each of which weighs what the function says, or as many
    examples as it has."""

    def __init__(self, function: Function, better: str | None, combine: str | None = "mean"):
        self.better, self.combine = better, combine
        self._function = function
        self.reset()

    def reset(self) -> None:
        self._sum, self._count, self._examples = 0.0, 0.0, 0

    def update(self, outputs: Any, targets: Any) -> None:
        found = self._function(outputs, targets)
        value, count = found if isinstance(found, tuple) else (found, len(targets))
        if count:  # A mean over nothing is not a number.
            self._sum += float(value) * float(count)
        self._count += float(count)
        self._examples += len(targets)

    def result(self) -> MetricValue:
        value = self._sum / self._count if self._count else math.nan
        return value if self._count == self._examples else (value, self._count)


def as_metric(metric: MetricLike) -> Metric:
    """The metric itself, or one made of a function. A function may have an attribute `better`;
    without it, it is what the metric's name says."""
    if isinstance(metric, Metric):
        return metric
    if metric is accuracy:
        return _Mean(_accuracy, "higher")
    return _Mean(metric, getattr(metric, "better", None), None)


def info(name: str, metric: Metric) -> MetricInfo:
    """What the server is told of a metric."""
    return MetricInfo(name, metric.better, metric.combine)


def _array(values: Any) -> npt.NDArray[Any]:
    """A torch tensor, wherever it is, as a numpy array."""
    if hasattr(values, "detach"):
        values = values.detach()
        if values.is_floating_point():
            values = values.double()
        values = values.cpu().numpy()
    return np.asarray(values)


def _predicted(outputs: Any, targets: Any) -> Any:
    """The class of the largest output (classes along dimension 1), or, where there is one output
    for each target, whether it is above 0, as a logit of class 1."""
    if outputs.ndim > targets.ndim and outputs.shape[1] > 1:
        return outputs.argmax(1)
    return outputs.reshape(targets.shape) > 0


def accuracy(outputs: Any, targets: Any) -> float:
    """The fraction of right answers. outputs: a score for each class along dimension 1, or one
    logit for each target. targets: the classes' numbers."""
    return _accuracy(outputs, targets)[0]


def _accuracy(outputs: Any, targets: Any) -> tuple[float, int]:
    right, count = int((_predicted(outputs, targets) == targets).sum()), _unmasked(targets)
    return right / max(1, count), count


def _unmasked(targets: Any) -> int:
    return int((targets != MASKED).sum())


def top_k(k: int) -> Metric:
    """The fraction of examples whose class is among the k largest outputs. outputs: [N, classes].
    targets: [N]. Of equal outputs, those that are larger only count as before it."""

    def fraction(outputs: Any, targets: Any) -> tuple[float, int]:
        scores, classes = _array(outputs), _array(targets)
        is_counted = classes != MASKED
        scores, classes = scores[is_counted], classes[is_counted]
        own = np.take_along_axis(scores, classes[:, None], axis=1)
        is_right: npt.NDArray[np.bool_] = (scores > own).sum(axis=1) < k
        return int(is_right.sum()) / max(1, len(classes)), len(classes)

    return _Mean(fraction, "higher")


class _Ratio:
    """1 - or just numerator / denominator, both summed over examples: exact over all clients,
    because the denominator is the value's weight."""

    combine = "mean"

    def __init__(
        self, count: Callable[[Any, Any], tuple[float, float]], better: str, one_minus: bool
    ):
        self.better, self._count, self._one_minus = better, count, one_minus
        self.reset()

    def reset(self) -> None:
        self._above, self._below = 0.0, 0.0

    def update(self, outputs: Any, targets: Any) -> None:
        above, below = self._count(outputs, targets)
        self._above += above
        self._below += below

    def result(self) -> MetricValue:
        value = self._above / self._below if self._below else 0.0
        return (1 - value if self._one_minus else value), self._below


def f1(label: int = 1) -> Metric:
    """F1 of one class against all others, exact over all examples of all clients. outputs and
    targets: as of accuracy()."""

    def count(outputs: Any, targets: Any) -> tuple[float, float]:
        classes = _array(targets)
        said = (_array(_predicted(outputs, targets)) == label) & (classes != MASKED)
        true = classes == label
        hits = float((said & true).sum())
        return 2 * hits, float(said.sum()) + float(true.sum())

    return _Ratio(count, "higher", one_minus=False)


def mae() -> Metric:
    """The mean absolute error, over all numbers of an example. Lower is better."""
    return _Mean(lambda outputs, targets: _mean(np.abs(_errors(outputs, targets))), "lower")


def mse() -> Metric:
    """The mean squared error, over all numbers of an example. Lower is better."""
    return _Mean(lambda outputs, targets: _mean(np.square(_errors(outputs, targets))), "lower")


def _mean(errors: Floats) -> tuple[float, int]:
    return (float(errors.mean()) if errors.size else 0.0), errors.size


def _errors(outputs: Any, targets: Any) -> Floats:
    true: Floats = _array(targets).astype(np.float64)
    errors: Floats = _array(outputs).astype(np.float64).reshape(true.shape) - true
    return errors


class _OwnR2:
    """R2 against this client's own mean: the server's mean of several is no R2 of all."""

    better, combine = "higher", "none"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._errors = 0.0
        self._true: list[Floats] = []

    def update(self, outputs: Any, targets: Any) -> None:
        self._errors += float(np.square(_errors(outputs, targets)).sum())
        self._true.append(_array(targets).astype(np.float64).ravel())

    def result(self) -> MetricValue:
        true = np.concatenate(self._true) if self._true else np.zeros(0)
        spread = float(np.square(true - true.mean()).sum()) if true.size else 0.0
        return 1 - self._errors / spread if spread else math.nan


def r2(center: float | None = None) -> Metric:
    """The coefficient of determination, 1 - sum of squared errors / sum of (target - center)^2.

    With a center that all clients share, such as 0 for standardized targets, it is exact over all
    examples. With None each client takes the mean of its own targets, and no mean over clients is
    the R2 of all: it is reported for each client."""
    if center is None:
        return _OwnR2()

    def count(outputs: Any, targets: Any) -> tuple[float, float]:
        spread = np.square(_array(targets).astype(np.float64) - center).sum()
        return float(np.square(_errors(outputs, targets)).sum()), float(spread)

    return _Ratio(count, "higher", one_minus=True)


class _Perplexity:
    better, combine = "lower", "log_mean"

    def __init__(self, ignore: int):
        self._ignore = ignore
        self.reset()

    def reset(self) -> None:
        self._loss, self._tokens = 0.0, 0

    def update(self, outputs: Any, targets: Any) -> None:
        scores: Floats = np.moveaxis(_array(outputs).astype(np.float64), 1, -1)
        scores = scores.reshape(-1, scores.shape[-1])
        tokens = _array(targets).reshape(-1)
        is_counted = tokens != self._ignore
        scores, tokens = scores[is_counted], tokens[is_counted]
        scores = scores - scores.max(axis=1, keepdims=True, initial=-np.inf)
        own = np.take_along_axis(scores, tokens[:, None], axis=1)[:, 0]
        self._loss += float((np.log(np.exp(scores).sum(axis=1)) - own).sum())
        self._tokens += len(tokens)

    def result(self) -> MetricValue:
        if not self._tokens:
            return math.nan, 0.0
        return math.exp(min(700.0, self._loss / self._tokens)), float(self._tokens)


def perplexity(ignore: int = -100) -> Metric:
    """exp of the mean cross-entropy over tokens; each weighs the same, on whichever client it is.
    outputs: logits [N, classes] or [N, classes, length], as torch's cross_entropy takes them.
    targets: the tokens, [N] or [N, length]; those equal to `ignore` do not count."""
    return _Perplexity(ignore)


class _Auroc:
    better, combine = "higher", "none"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._scores: list[Floats] = []
        self._is_one: list[npt.NDArray[np.bool_]] = []

    def update(self, outputs: Any, targets: Any) -> None:
        scores = _array(outputs).astype(np.float64)
        if scores.ndim == 2 and scores.shape[1] == 2:
            scores = scores[:, 1] - scores[:, 0]
        classes = _array(targets).reshape(-1)
        is_counted = classes != MASKED
        self._scores.append(scores.reshape(-1)[is_counted])
        self._is_one.append(classes[is_counted] == 1)

    def result(self) -> MetricValue:
        if not self._scores:
            return math.nan
        scores, is_one = np.concatenate(self._scores), np.concatenate(self._is_one)
        ones = int(is_one.sum())
        pairs = ones * (len(scores) - ones)
        if not pairs:
            return math.nan
        # The rank sum of Mann and Whitney. Equal scores share their mean rank.
        _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        rank = np.cumsum(count) - (count - 1) / 2
        return float((rank[place][is_one].sum() - ones * (ones + 1) / 2) / pairs)


def auroc() -> Metric:
    """The area under the ROC curve. outputs: a score for each example, or the logits of two
    classes, [N, 2]. targets: 0 or 1. It keeps all scores of an evaluation. No mean over clients is
    the area of all: it is reported for each client."""
    return _Auroc()
