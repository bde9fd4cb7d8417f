# SPDX-License-Identifier: Apache-2.0
"""A trainer for any torch.nn.Module."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import traceback
from typing import Any, Callable, Iterator, Mapping, Sequence, TypeVar, Union

import torch

from . import _trainer, metrics as _metrics
from ._bar import progress_bar
from ._channel import flush, say
from ._ranks import Ranks, SharedTask, ranks_here
from ._tensors import TensorFile
from ._torch_counts import known_count
from ._torch_data import Data, batch_examples, groups, moved
from ._torch_gradients import Gradients, dense
from ._torch_modes import Modes, evaluation_mode, explained_batch_norm
from ._torch_named import Inputs, Loss, loss_of, predicted, split, targets_name
from ._torch_optimizer import KeptOptimizer
from ._torch_sharded import Sharded, is_sharded
from ._torch_spread import Spread, Whole
from ._torch_steps import (
    counted, grad_scaler, run_optimizer, seed_all, take_step, takes_sparse, three_of,
)  # fmt: skip
from ._torch_tensors import (
    Named, freeze, load, load_all, own, real, save, spec, travelling,
)  # fmt: skip
from ._trainer import (
    Cancelled, Diverged, EvalReport, Hello, Settings, Task, TrainReport, check_finite, told_count,
)  # fmt: skip

__all__ = ["EvalReport", "Settings", "Task", "TrainReport", "Trainer", "load", "save"]

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
Model = Union[torch.nn.Module, Callable[[], torch.nn.Module]]
Report = TypeVar("Report")
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer(_trainer.Trainer):
    """Trains a module on this client's examples, and measures it on others.

    model: a torch.nn.Module, or a function without arguments that makes one. With a function,
        initial weights are a function of the seed; with a module they are those that it has now.
        torch.compile, DataParallel and the like change no names of its tensors. Parts that are in
        evaluation mode now stay so in training: BatchNorms do not change their statistics there,
        dropouts drop nothing. Only a model that is in it as a whole, as from_pretrained() gives it,
        is put into training mode, but for layers whose parameters are all frozen.
    train_data: a Dataset, a DataLoader, a tuple (inputs, targets) or a dict of tensors or arrays, or
        a list of dicts. A batch is (inputs, targets), or (input, input, ..., targets), or a dict as
        the models of Hugging Face take it, with its targets under "labels". A DataLoader keeps its
        own batch size and order; set_epoch() of its sampler or data set is called. None: this client
        only measures.
    loss: loss(outputs, targets), the mean over a batch's predictions. None: of a batch that is a
        dict the model's own, if it returns one; else cross-entropy.
    predictions: a function of a batch's targets that says how many predictions the loss is a mean
        over, where batches of as many examples may have unlike numbers: in texts of several
        lengths, with masked targets, with weights (then their sum). Means of several batches, ranks
        and clients weigh by it, and a batch without any adds nothing. None: known of torch's
        cross-entropy and negative log likelihood, and of models of Hugging Face (labels that are
        -100 do not count, nor does the first one of a ...ForCausalLM), else the batch's examples.
    optimizer: a function of the parameters that makes an optimizer, as in
        `lambda parameters: torch.optim.SGD(parameters, 0.01)`. None: the run's, with the run's
        learning rate, momentum and weight decay. With one of your own, methods that count steps
        (scaffold, fednova, feddyn) can't be used.
    eval_data: what is measured on, as train_data.
    metrics: by name, the main one first: functions of (outputs, targets) or objects, as those of
        tributary_fl.metrics.
    device: "cuda", "cpu", ...; None: the GPU where there is one.
    autocast: "bf16" or "fp16": the number format of forward and backward pass.
    accumulate: batches whose mean gradient makes one step; None: as the run asks for.
    keep_optimizer: keep the optimizer's state (moments) from round to round, also over a restart of
        this program: in files in the client's state folder. Then, too, the methods that count steps
        can't be used.
    frozen: patterns of names of parameters that do not change and do not travel, as in
        ["encoder.*"]; where they fit a BatchNorm's statistics, these do not change either. So are
        parameters with requires_grad=False.
    workers: processes that load examples of a Dataset.
    collate: makes a batch of a list of examples of a Dataset, as DataLoader's collate_fn.
    examples, eval_examples: how many there are, for data without a length.
    eval_batch_size: examples in a batch of an evaluation.

    In a program that torchrun starts, after torch.distributed.init_process_group(): the model is a
    DistributedDataParallel, or one that fully_shard (FSDP2) has sharded. train_data are this rank's
    part, and a batch is one of each rank. Only rank 0 speaks to fl-client and needs eval_data. It
    measures alone; a sharded model is measured by all ranks, each on rank 0's batches, so that an
    `evaluate` of your own runs on all of them.

    For what does not fit, override `train_step(batch)`, which returns the mean loss over the batch,
    and `eval_step(batch)`, which returns that, the outputs and the targets; or the whole of `train`
    and `evaluate`."""

    def __init__(
        self,
        model: Model,
        train_data: Any = None,
        *,
        loss: Loss | None = None,
        optimizer: MakeOptimizer | None = None,
        eval_data: Any = None,
        metrics: Mapping[str, _metrics.MetricLike] | None = None,
        device: str | torch.device | None = None,
        autocast: str | torch.dtype | None = None,
        accumulate: int | None = None,
        keep_optimizer: bool = False,
        frozen: Sequence[str] = (),
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        examples: int | None = None,
        eval_examples: int | None = None,
        eval_batch_size: int = 256,
        predictions: Callable[[Any], Any] | None = None,
    ):
        is_module = isinstance(model, torch.nn.Module)
        self._factory: Callable[[], Any] | None = None if is_module else model
        self._frozen = tuple(frozen)
        self.model: Any = model if is_module else model()
        self._ranks = ranks_here(alone=is_sharded(self.model))
        self._speaks = self._ranks is None or self._ranks.is_first
        self._spread = _spread(self.model, self._ranks, self._frozen)
        self.device = self._spread.put_on(device)
        self._module: torch.nn.Module = self._spread.module
        self._modes = Modes(self.model)
        self.loss: Loss = loss or torch.nn.functional.cross_entropy
        self._has_loss = loss is not None
        self._count = predictions or known_count(self.loss)
        self._is_count_given = predictions is not None
        self.eval_batch_size = eval_batch_size
        self._tensors = travelling(self._module)
        self._specs = [spec(name, tensor) for name, tensor in self._tensors]
        self._named = [(name, p) for name, p in self._tensors if isinstance(p, torch.nn.Parameter)]
        self._parameters = [parameter for _, parameter in self._named]
        self._initial = (
            None if self._factory else [(n, real(t).cpu().clone()) for n, t in self._tensors]
        )
        self._train_data = _data(train_data, examples, workers, collate)
        self._eval_data = _data(eval_data, eval_examples, workers, collate)
        self._examples = self._train_data.examples if self._train_data else 0
        if self._ranks is not None:  # Of all ranks together.
            self._examples = int(self._ranks.sums([self._examples])[0])
        self._metrics = {name: _metrics.as_metric(m) for name, m in (metrics or {}).items()}
        self._make_optimizer = optimizer
        self._autocast_type = AUTOCAST[autocast] if isinstance(autocast, str) else autocast
        self._accumulate = accumulate
        self._keeps_optimizer = keep_optimizer

    # What to override.

    def inputs_and_targets(self, batch: Any) -> tuple[Inputs, Any]:
        """What the model takes, as separate arguments or as named ones, and what the loss compares
        with."""
        return split(batch, self._module)

    def batch_examples(self, batch: Any) -> int:
        """How many examples a batch has."""
        return batch_examples(batch)

    def batch_predictions(self, batch: Any) -> float:
        """How many predictions the mean loss over a batch is a mean over: its weight. Asked before
        the batch is moved to the device."""
        if self._count is None or not self._has_known_targets(batch):
            return self.batch_examples(batch)
        targets = self.inputs_and_targets(batch)[1]
        if isinstance(batch, Mapping) and not (self._has_loss or self._is_count_given):
            targets = predicted(targets, self._module)
        count = self._count(targets)
        return self.batch_examples(batch) if count is None else float(count)

    def train_step(self, batch: Any) -> torch.Tensor:
        """The mean loss over a batch, which is on the device; with its graph, for backward(). If it is
        a mean over something else than batch_predictions() says, override that, too."""
        return self._forward(batch)[0]

    def eval_step(self, batch: Any) -> tuple[torch.Tensor, Any, Any]:
        """Three things: the mean loss over a batch, and the outputs and the targets, which metrics
        compare. Without metrics these two may be None."""
        return self._forward(batch)

    def train(self, task: Task) -> TrainReport:
        """Trains self.model, which has the round's weights already, and leaves the result in it."""
        data, settings = self._require(self._train_data), task.settings
        accumulate = self._accumulate or settings.accumulate
        epoch_steps = math.ceil(data.batches(settings.batch_size) / accumulate)
        if self._ranks is not None:
            epoch_steps = self._ranks.most(epoch_steps)
        shuffle = torch.Generator().manual_seed(task.seed)
        first = task.first_epoch(epoch_steps)
        passes = (data.one_pass(settings.batch_size, shuffle, n) for n in itertools.count(first))
        steps = groups(passes, accumulate)
        takes = self._make_optimizer is not None or takes_sparse(settings)
        gradients = Gradients(self._named, self._spread, task, self._speaks, takes)
        optimizer = self._optimizer(task)
        scaler = grad_scaler(self.device) if self._autocast_type == torch.float16 else None
        # On the device, so that no step waits for it.
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        examples, predictions, step = 0.0, 0.0, 0
        steps_max = settings.steps_max(epoch_steps)

        def loss() -> float:
            return float(loss_sum) / predictions if predictions else 0.0

        with progress_bar(f"round {task.round}", steps_max) as bar:
            while task.may_begin(step, epoch_steps):
                told = None if steps_max == math.inf else int(steps_max)
                task.progress(step, told, loss if step else None)
                batches = next(steps)
                examples += sum(self.batch_examples(batch) for batch in batches)
                gradients.zero(optimizer)
                predictions += self._add_gradients(batches, scaler, loss_sum)
                if scaler is not None:
                    scaler.unscale_(optimizer)
                gradients.finish()
                take_step(optimizer, scaler)
                step += 1
                if bar is not None:
                    bar.update(1)
        if self._ranks is not None:
            seen = [float(loss_sum), examples, predictions]
            total, examples, predictions = self._ranks.sums(seen)
            loss_sum.fill_(total)
        mean = check_finite(loss())
        if self._keeps_optimizer:
            self._kept(task).save(optimizer)
        # As many as one pass over the data has.
        of_pass = predictions * self._examples / max(1, examples)
        return TrainReport(step, mean, predictions=told_count(of_pass, self._examples))

    def evaluate(self, task: Task) -> EvalReport:
        """Measures self.model, which has the weights already."""
        metrics = self._metrics if self._speaks else {}  # What other ranks say is not heard.
        for metric in metrics.values():
            metric.reset()
        loss_sum, examples, predictions = 0.0, 0, 0.0
        with evaluation_mode(self.model), torch.no_grad():
            for number, batch in enumerate(self._eval_batches(task)):
                task.progress(number)
                with self.autocast():
                    loss, outputs, targets = three_of(self.eval_step(moved(batch, self.device)))
                count = self.batch_predictions(batch)
                loss_sum += float(loss) * count if count else 0.0
                examples += self.batch_examples(batch)
                predictions += count
                for metric in metrics.values():
                    metric.update(outputs, targets)
        found = {name: metric.result() for name, metric in metrics.items()}
        mean = check_finite(loss_sum / predictions if predictions else 0.0)
        return EvalReport(examples, mean, found, told_count(predictions, examples))

    def supports(self) -> list[str]:
        """What fl-client may ask for: words of the trainer protocol. A class with a `train` of its
        own that keeps to the run's settings says so here."""
        words = [] if self._make_optimizer or self._keeps_optimizer else ["optimizer"]
        words += ["proximal", "correction", "clip_norm"]
        if type(self).train is not Trainer.train:
            words = []
        return [*words, *(["gradient"] if self._train_data else []), "initial"]

    # What such methods may use.

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of forward passes."""
        if self._autocast_type is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any]
        context = torch.autocast(self.device.type, dtype=self._autocast_type)
        return context

    # What the protocol asks.

    def hello(self) -> Hello:
        return Hello(
            self._specs,
            self._examples,
            self._eval_data.examples if self._eval_data else 0,
            [_metrics.info(name, metric) for name, metric in self._metrics.items()],
            self.supports(),
            self._spread.frozen_digest(),
        )

    def on_train(self, task: Task) -> TrainReport:
        return self._with_all_ranks(self._train_round, task)

    def on_evaluate(self, task: Task) -> EvalReport:
        if self._spread.measures_together:
            return self._with_all_ranks(self._measure, task)
        with self._alone():
            load_all(self._tensors, task.weights())
            return self.evaluate(task)

    def on_gradient(self, task: Task) -> None:
        self._with_all_ranks(self._whole_gradient, task)

    def on_initial(self, task: Task) -> None:
        self._with_all_ranks(self._initial_weights, task)

    @property
    def is_follower(self) -> bool:
        return not self._speaks

    def follow(self) -> None:
        assert self._ranks is not None
        work: dict[str, Callable[[Task], Any]] = {
            "train": self.on_train,
            "evaluate": self.on_evaluate,
            "gradient": self.on_gradient,
            "initial": self.on_initial,
        }
        while (request := self._ranks.hear()) is not None:
            # Rank 0 raises the same, and says so to fl-client.
            with contextlib.suppress(Cancelled, Diverged):
                work[request["type"]](SharedTask(self._ranks, request))

    def finish(self) -> None:
        if self._ranks is not None and self._ranks.is_first:
            self._ranks.say(None)

    # What the ranks do together.

    def _with_all_ranks(self, work: Callable[[Task], Report], task: Task) -> Report:
        if self._ranks is None:
            return work(task)
        if self._ranks.is_first:
            task = SharedTask.tell(self._ranks, task)
        try:
            return work(task)
        except (Cancelled, Diverged):
            raise
        except BaseException:
            # The other ranks wait for this one: torchrun ends them, and fl-client starts anew.
            try:
                say(traceback.format_exc())
                flush()
            finally:
                os._exit(1)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Here self.model does not wait for other ranks."""
        parallel, self.model = self.model, self._module
        try:
            yield
        finally:
            self.model = parallel

    def _load(self, task: Task) -> None:
        self._spread.load(self._tensors, task.weights() if self._speaks else None)

    def _out(self, task: Task) -> TensorFile | None:
        return task.out(self._specs) if self._speaks else None

    def _begin(self, task: Task) -> None:
        """Weights and seed of a request."""
        seed_all((task.seed + (self._ranks.rank if self._ranks else 0)) % 2**64)
        self._load(task)
        self._modes.train()

    def _train_round(self, task: Task) -> TrainReport:
        self._begin(task)
        report = self.train(task)
        self._spread.store(self._tensors, self._out(task))
        return report

    def _measure(self, task: Task) -> EvalReport:
        self._load(task)
        return self.evaluate(task)

    def _whole_gradient(self, task: Task) -> None:
        data = self._require(self._train_data)
        self._begin(task)
        self.model.zero_grad()
        batches = self._spread.in_step(data.one_pass(self.eval_batch_size, None))
        predictions = 0.0
        with self._alone():
            for number, (batch, counts) in enumerate(batches):
                task.progress(number)
                count = self.batch_predictions(batch) if counts else 0.0
                if not count and self._ranks is None:  # The loss may be 0/0.
                    continue
                loss = self._training_loss(batch)
                predictions += count
                weight = count * self._spread.gradient_parts / self._examples
                torch.autograd.backward(counted(loss, count) * weight)
        gradients = [
            torch.zeros_like(tensor) if tensor.grad is None else dense(tensor.grad)
            for _, tensor in self._tensors
        ]
        self._spread.add_up(gradients)
        if self._ranks is not None:
            (predictions,) = self._ranks.sums([predictions])
        # The number of all predictions is known only now.
        scale = self._examples / predictions if predictions else 0.0
        out, decay = self._out(task), task.settings.weight_decay
        for (name, tensor), gradient in zip(self._tensors, gradients):
            if isinstance(tensor, torch.nn.Parameter):
                gradient = (own(gradient) * scale).add(own(tensor), alpha=decay)
            self._spread.store([(name, gradient)], out)
        self.model.zero_grad()

    def _initial_weights(self, task: Task) -> None:
        seed_all(task.seed)
        tensors: Named = self._initial or []
        if self._factory is not None:
            module: Any = self._factory()
            freeze(module, self._frozen)
            tensors = travelling(module)
        self._spread.store(tensors, self._out(task))

    # Parts of train() and evaluate().

    def _forward(self, batch: Any) -> tuple[torch.Tensor, Any, Any]:
        """The mean loss over a batch, the outputs and the targets."""
        inputs, targets = self.inputs_and_targets(batch)
        return loss_of(self.model, self._module, inputs, targets, self.loss, self._has_loss)

    def _has_known_targets(self, batch: Any) -> bool:
        """Whether inputs_and_targets() can tell the targets whose number is a batch's weight."""
        if isinstance(batch, Mapping):
            reads_as_here = type(self).inputs_and_targets is Trainer.inputs_and_targets
            trains_as_here = reads_as_here and type(self).train_step is Trainer.train_step
            is_known = not reads_as_here or targets_name(batch) is not None
            return is_known and (trains_as_here or self._is_count_given)
        return isinstance(batch, (tuple, list)) and len(batch) > 1

    def _require(self, data: Data | None) -> Data:
        if data is None:
            raise ValueError("this trainer was made without such data (train_data, eval_data)")
        return data

    def _eval_batches(self, task: Task) -> Iterator[Any]:
        batches: Iterator[Any] = iter(())
        if self._speaks:
            batches = self._require(self._eval_data).one_pass(self.eval_batch_size, None)
        return self._spread.of_rank_0(batches, task)

    def _add_gradients(self, batches: list[Any], scaler: Any, total: torch.Tensor) -> float:
        """Sets the gradients, which are zero, to those of the mean loss over all predictions of the
        batches, of all ranks together. Adds each of this rank's losses to the total, and returns
        their number."""
        counts = [self.batch_predictions(batch) for batch in batches]
        predictions = sum(counts)
        more = self._spread.most(len(batches)) - len(batches)
        batches, counts = batches + batches[-1:] * more, counts + [0.0] * more
        # The ranks' gradients are averaged, so each takes its part of the ranks' mean number.
        all_counts = predictions
        if self._ranks is not None:
            all_counts = self._ranks.sums([predictions])[0] / self._ranks.count
        for number, (batch, count) in enumerate(zip(batches, counts)):
            if not count and self._ranks is None:  # The loss may be 0/0.
                continue
            is_last = number + 1 == len(batches)
            # The ranks exchange their gradients once in a step.
            with contextlib.nullcontext() if is_last else self._spread.without_exchange():
                loss = self._training_loss(batch)
                weight = count / all_counts if all_counts else 0.0
                part = loss if weight == 1 else counted(loss, count) * weight
                torch.autograd.backward(part if scaler is None else scaler.scale(part))
            if count:
                total.add_(loss.detach(), alpha=count)
        if not predictions and self._ranks is None:
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter)
            if scaler is not None:
                scaler.scale(total)  # Else it refuses the step.
        return predictions

    def _training_loss(self, batch: Any) -> torch.Tensor:
        explained = explained_batch_norm(self._module, lambda: self.batch_examples(batch))
        with self.autocast(), explained:
            return self.train_step(moved(batch, self.device))

    def _optimizer(self, task: Task) -> torch.optim.Optimizer:
        make = self._make_optimizer
        optimizer = (
            make(self._parameters) if make else run_optimizer(self._parameters, task.settings)
        )
        if self._keeps_optimizer:
            self._kept(task).load(optimizer)
        return optimizer

    def _kept(self, task: Task) -> KeptOptimizer:
        return KeptOptimizer(
            self.state_folder, task, self._ranks, is_sharded=isinstance(self._spread, Sharded)
        )


def _spread(model: Any, ranks: Ranks | None, frozen: Sequence[str]) -> Spread:
    if ranks is not None and is_sharded(model):
        return Sharded(model, ranks, frozen)
    return Whole(model, ranks, frozen)


def _data(data: Any, examples: int | None, workers: int, collate: Any) -> Data | None:
    return None if data is None else Data(data, examples, workers, collate)
