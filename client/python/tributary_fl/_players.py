# SPDX-License-Identifier: Apache-2.0
"""The clients that a process plays for fl-sim."""

from __future__ import annotations

import collections
from typing import Any, Callable, Union

from ._trainer import EvalReport, Hello, Task, Trainer, TrainReport

TRAINERS_KEPT = 16  # By one process, so that memory does not grow with the number of clients.

TrainerFactory = Callable[[int], Trainer]
Evaluator = Union[Trainer, Callable[[], Trainer]]


class Players(Trainer):
    """Makes the trainer of a client when a request for it comes, and keeps those that were used
    last. A request for no client is the evaluator's, or client 0's."""

    def __init__(self, factory: TrainerFactory, evaluator: Evaluator | None = None):
        self._factory = factory
        self._make_evaluator = evaluator
        self._evaluator: Trainer | None = None
        self._trainers: collections.OrderedDict[int, Trainer] = collections.OrderedDict()
        self._hello: Hello | None = None

    def hello(self) -> Hello:
        if self._hello is None:
            self._hello = self._first_hello()
        return self._hello

    def on_client(self, task: Task) -> dict[str, Any]:
        """The members of `done` for the request `client`."""
        said = self._trainer_of(task).hello()
        _check_same(said, self.hello(), f"client {task.request['client']}")
        return {"train_examples": said.train_examples, "holdout_examples": said.holdout_examples}

    def on_train(self, task: Task) -> TrainReport:
        return self._trainer_of(task).on_train(task)

    def on_evaluate(self, task: Task) -> EvalReport:
        return self._trainer_of(task).on_evaluate(task)

    def on_gradient(self, task: Task) -> None:
        self._trainer_of(task).on_gradient(task)

    def on_initial(self, task: Task) -> None:
        self._trainer_of(task).on_initial(task)

    def _first_hello(self) -> Hello:
        said = self._client(0).hello()
        metrics, examples = list(said.metrics), 0
        evaluator = self._central()
        if evaluator is not None:
            central = evaluator.hello()
            _check_same(central, said, "the evaluator")
            examples = central.holdout_examples
            names = {metric.name for metric in central.metrics}
            metrics = [*central.metrics, *(m for m in metrics if m.name not in names)]
        return Hello(
            said.tensors, 0, examples, metrics, said.supports, said.frozen, plays_clients=True
        )

    def _trainer_of(self, task: Task) -> Trainer:
        number = task.request.get("client")
        if number is None:
            central = self._central() if task.kind == "evaluate" else None
            return central or self._client(0)
        trainer = self._client(number)
        trainer.state_folder = task.request["state"]
        return trainer

    def _central(self) -> Trainer | None:
        if self._evaluator is None and self._make_evaluator is not None:
            made = self._make_evaluator
            self._evaluator = made if isinstance(made, Trainer) else made()
        return self._evaluator

    def _client(self, number: int) -> Trainer:
        trainer = self._trainers.get(number)
        if trainer is None:
            while len(self._trainers) >= TRAINERS_KEPT:
                self._trainers.popitem(last=False)
            trainer = self._trainers[number] = self._factory(number)
        self._trainers.move_to_end(number)
        return trainer


def _check_same(said: Hello, first: Hello, who: str) -> None:
    """All of them must have one model."""
    if list(said.tensors) != list(first.tensors) or said.frozen != first.frozen:
        raise ValueError(f"{who} has another model (tensors or frozen weights) than client 0")
