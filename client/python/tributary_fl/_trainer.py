# SPDX-License-Identifier: Apache-2.0
"""What fl-client asks of a trainer, in Python's terms. docs/design/trainer-protocol.md has the
messages that these classes stand for."""

from __future__ import annotations

import abc
import math
import time
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Mapping, Sequence, Union

from . import _tensors
from ._tensors import Tensor, TensorFile
from ._version import __version__

PROGRESS_PAUSE_S = 1.0
SUPPORTS = ("optimizer", "proximal", "correction", "gradient", "initial", "clip_norm")


class Error(RuntimeError):
    """fl-client has ended with an error, or could not be started. The message is its own."""


class Cancelled(Exception):
    """The request that is worked on is not needed any more. Let it pass through."""


class Diverged(ArithmeticError):
    """The loss is not finite: this says something about the weights, not about the program."""


def check_finite(loss: float) -> float:
    """Returns the loss, or raises Diverged."""
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss}")
    return loss


def told_count(predictions: float, examples: int) -> float | None:
    """How a report says it: None where each example is one prediction."""
    return None if predictions == examples else predictions


@dataclass(frozen=True)
class MetricInfo:
    """A metric as the server hears of it. The name is any text of at most 64 bytes, but not "loss",
    and not beginning with "own_". `better` is "higher" or "lower". `combine` says how the values of
    several clients make one: "mean", "log_mean" (perplexity), or "none". None: as is right for a
    name that the server knows (accuracy, mae, ...: docs/guide/operate.md), else "higher" and
    "mean"."""

    name: str
    better: str | None = None
    combine: str | None = None

    def message(self) -> dict[str, str]:
        return {name: said for name, said in vars(self).items() if said is not None}


@dataclass(frozen=True)
class Hello:
    """What a trainer says of itself: the tensors that are trained and sent, the numbers of its
    examples, its metrics (the main one first), what it can do (of SUPPORTS), the digest of its
    frozen weights ("": none), and whether it plays many clients."""

    tensors: Sequence[Tensor]
    train_examples: int
    holdout_examples: int = 0
    metrics: Sequence[MetricInfo] = ()
    supports: Sequence[str] = ()
    frozen: str = ""
    plays_clients: bool = False

    def message(self) -> dict[str, Any]:
        return {
            "type": "hello",
            "protocol": 1,
            "tensors": [
                {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
                for tensor in self.tensors
            ],
            "train_examples": self.train_examples,
            "holdout_examples": self.holdout_examples,
            "metrics": [metric.message() for metric in self.metrics],
            "supports": list(self.supports),
            "frozen": self.frozen,
            **({"clients": True} if self.plays_clients else {}),
        }


@dataclass(frozen=True)
class OptimizerSettings:
    """The run's optimizer: "sgd", "nesterov", "adam" or "adamw". `beta1`, `beta2` and `epsilon`
    belong to the last two."""

    name: str = "sgd"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclass(frozen=True)
class Settings:
    """How the run wants a client to train in this round."""

    epochs: int = 1
    """Passes over the data. 0: as many as fit into `seconds`."""
    steps: int = 0
    """Above 0: this many optimizer steps replace the epochs."""
    seconds: float = 0.0
    """Above 0: begin no step but the first after this time."""
    batch_size: int = 64
    """Examples in a mini-batch."""
    accumulate: int = 1
    """Mini-batches whose mean gradient makes one step."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    """Above 0: the gradient of the loss is shortened to this length where it is longer, over all
    parameters together, before other terms are added."""
    proximal_mu: float = 0.0
    """FedProx: proximal_mu * (w - w_start) is added to each gradient."""
    seed: int = 0
    """Of 64 bits, for all random choices."""

    @staticmethod
    def of(message: Mapping[str, Any]) -> Settings:
        """The settings of a message. ValueError: one is missing, or is not known here. Training
        without it, or with a default, would be another training than the run asks for."""
        _check_names("setting", message, _names(Settings))
        optimizer = message["optimizer"]
        is_sgd = optimizer.get("name", "sgd") in ("sgd", "nesterov")  # It has a name alone.
        names = ["name"] if is_sgd else _names(OptimizerSettings)
        _check_names("member of optimizer", optimizer, names)
        return Settings(**{**message, "optimizer": OptimizerSettings(**optimizer)})

    def steps_max(self, epoch_steps: int) -> float:
        """The most steps that may be taken, where one pass over the data takes `epoch_steps`."""
        return self.steps or self.epochs * epoch_steps or math.inf


def _names(kind: Any) -> list[str]:
    return [member.name for member in fields(kind)]


def _check_names(what: str, message: Mapping[str, Any], names: Sequence[str]) -> None:
    """ValueError unless the message has exactly these names."""
    missing = [name for name in names if name not in message]
    if missing:
        raise ValueError(
            f"fl-client has sent no {what} '{missing[0]}': it is older than this tributary_fl "
            f"{__version__}; install the same release of both"
        )
    unknown = [name for name in message if name not in names]
    if unknown:
        raise ValueError(
            f"fl-client has sent the {what} '{unknown[0]}', which this tributary_fl "
            f"{__version__} does not know; install the same release of both"
        )


@dataclass(frozen=True)
class TrainReport:
    """What a training has come to. `loss` is the mean over all predictions made. `examples`: None for
    the number that Hello has. `predictions`: how many predictions these examples have, which is what
    the loss weighs beside other clients' losses; None: as many as examples."""

    steps: int
    loss: float
    examples: int | None = None
    predictions: float | None = None

    def message(self) -> dict[str, Any]:
        loss = check_finite(float(self.loss))
        message: dict[str, Any] = {"wrote": "weights", "steps": int(self.steps), "loss": loss}
        if self.examples is not None:
            message["examples"] = int(self.examples)
        if self.predictions is not None:
            message["predictions"] = float(self.predictions)
        return message


MetricValue = Union[float, "tuple[float, float]"]  # A value, or a value and its weight.


@dataclass(frozen=True)
class EvalReport:
    """What an evaluation has found. `loss` is the mean over the examples' predictions. A metric's
    value may have a weight of its own, as in {"f1": (0.8, 33)}. `predictions`: as in TrainReport."""

    examples: int
    loss: float
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    predictions: float | None = None

    def message(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for name, value in self.metrics.items():
            if isinstance(value, tuple):
                # Nothing was counted: there is no value to tell.
                if value[1] > 0 and math.isfinite(value[0]):
                    metrics[name] = {"value": float(value[0]), "weight": float(value[1])}
            elif math.isfinite(value):
                metrics[name] = float(value)
        loss = check_finite(float(self.loss))
        message = {"examples": int(self.examples), "loss": loss, "metrics": metrics}
        if self.predictions is not None:
            message["predictions"] = float(self.predictions)
        return message


class Task:
    """One request of fl-client while a trainer works on it."""

    def __init__(
        self,
        request: Mapping[str, Any],
        is_cancelled: Callable[[], bool] = lambda: False,
        send: Callable[[dict[str, Any]], object] = lambda message: None,
    ):
        self.request = request
        self.kind: str = request["type"]
        self.run: str = request.get("run", "")
        """Of which run this is: 16 hexadecimal digits."""
        self.round: int = request.get("round", 0)
        has_settings = self.kind in ("train", "gradient") or "settings" in request
        self.settings = Settings.of(request.get("settings", {})) if has_settings else Settings()
        self.begin = time.monotonic()
        self._is_cancelled = is_cancelled
        self._send = send
        self._next_progress = 0.0

    @property
    def seed(self) -> int:
        """For all random choices, in [0, 2^64)."""
        return int(self.request.get("seed", self.settings.seed))

    def weights(self) -> TensorFile:
        """The weights to begin from, in the number formats of Hello. Valid until the answer."""
        return _tensors.read(self.request["weights"])

    def correction(self) -> TensorFile | None:
        """What is to be added to each gradient, in float32."""
        path = self.request.get("correction")
        return _tensors.read(path) if path else None

    def out(self, tensors: Sequence[Tensor]) -> TensorFile:
        """The file to write the result to."""
        return _tensors.create(self.request["out"], tensors)

    def seconds(self) -> float:
        """The time since the request came."""
        return time.monotonic() - self.begin

    def may_begin(self, step: int, epoch_steps: int) -> bool:
        """Whether step 0, 1, ... is to be taken, by the settings' steps, epochs and seconds."""
        is_late = 0 < self.settings.seconds <= self.seconds()
        return step < self.settings.steps_max(epoch_steps) and (step == 0 or not is_late)

    def first_epoch(self, epoch_steps: int) -> int:
        """The number of this round's first pass over the data, counted from 0 as if this client had
        trained in all rounds before: the same when a round is trained again. If only the time of a
        round is limited, the next round's number is higher by one."""
        steps = self.settings.steps_max(epoch_steps)
        passes = 1 if steps == math.inf else math.ceil(steps / max(1, epoch_steps))
        return max(0, self.round - 1) * passes

    @property
    def cancelled(self) -> bool:
        return self._is_cancelled()

    def check(self) -> None:
        """Raises Cancelled if the request is not needed any more. Call it in each step."""
        if self.cancelled:
            raise Cancelled

    def progress(
        self, step: int, steps: int | None = None, loss: Callable[[], float] | None = None
    ) -> None:
        """Tells fl-client that the trainer is alive, at most once a second, and raises Cancelled as
        check() does. `loss` is only called for a message that is sent."""
        self.check()
        now = time.monotonic()
        if now < self._next_progress:
            return
        self._next_progress = now + PROGRESS_PAUSE_S
        message = {"type": "progress", "id": self.request.get("id"), "step": step}
        if steps is not None:
            message["steps"] = steps
        if loss is not None:
            message["loss"] = check_finite(loss())
        self._send(message)


class Trainer(abc.ABC):
    """A model and its data. `tributary_fl.torch.Trainer` and `tributary_fl.numpy.Trainer` are made
    for use; subclass this one for another framework."""

    state_folder = "fl-client-state"
    """Where what must last longer than this process is kept. `tributary_fl.run` sets it."""

    is_follower: Any = False
    """Whether this process is a rank that gets its work from another; `run` then calls follow()."""

    def follow(self) -> None:
        """Works with the rank that speaks to fl-client, until its finish()."""

    def finish(self) -> None:
        """Lets the followers end. The run is over."""

    @abc.abstractmethod
    def hello(self) -> Hello:
        """What this trainer has and can do."""

    @abc.abstractmethod
    def on_train(self, task: Task) -> TrainReport:
        """Trains from task.weights() and writes all tensors of Hello to task.out(): the trained
        weights, not the difference."""

    def on_evaluate(self, task: Task) -> EvalReport:
        """Measures task.weights() on the held-out examples."""
        raise NotImplementedError("this trainer can't evaluate")

    def on_gradient(self, task: Task) -> None:
        """Writes the gradient of the mean loss over all training examples, plus weight_decay *
        weights, to task.out(); zeros for running means and variances."""
        raise NotImplementedError("this trainer can't compute the gradient of all examples")

    def on_initial(self, task: Task) -> None:
        """Writes initial weights, a function of task.seed, to task.out()."""
        raise NotImplementedError("this trainer can't make initial weights")
