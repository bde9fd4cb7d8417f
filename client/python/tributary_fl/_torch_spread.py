# SPDX-License-Identifier: Apache-2.0
"""How a model is spread over the ranks of a program: here whole on each of them, in
_torch_sharded.py in parts. All that differs between the two stands behind Spread."""

from __future__ import annotations

import abc
import contextlib
from typing import Any, ContextManager, Iterator, Sequence, TypeVar, Union

import torch

from ._ranks import Ranks
from ._tensors import TensorFile
from ._torch_names import unwrapped
from ._torch_tensors import Named, freeze, frozen_digest, load_all, store_all
from ._trainer import Task

T = TypeVar("T")
Device = Union[str, torch.device, None]


class Spread(abc.ABC):
    """All ranks call load(), store(), add_up() and in_step() in the same order. `tensors` are what
    this rank has of them. A file is rank 0's; the other ranks have None."""

    module: Any
    """The model without what lets ranks train together: a rank may use it alone."""
    measures_together = False
    """Whether all ranks take part in an evaluation. Else rank 0 measures alone."""
    gradient_parts = 1
    """The number of ranks whose mean a gradient is after a backward pass of the whole gradient."""

    @abc.abstractmethod
    def put_on(self, device: Device) -> torch.device:
        """Moves the model to the device. Returns where it is."""

    @abc.abstractmethod
    def frozen_digest(self) -> str:
        """Rank 0's: of the parameters that are not trained, as in _torch_tensors."""

    @abc.abstractmethod
    def load(self, tensors: Named, file: TensorFile | None) -> None:
        """Sets the tensors of all ranks to those of the file."""

    @abc.abstractmethod
    def store(self, tensors: Named, file: TensorFile | None) -> None:
        """Writes the tensors to the file."""

    @abc.abstractmethod
    def add_up(self, gradients: Sequence[torch.Tensor]) -> None:
        """Makes sums over all ranks of what backward passes of the whole gradient have left."""

    @abc.abstractmethod
    def without_exchange(self) -> ContextManager[Any]:
        """In this context a backward pass leaves its gradients on their ranks, for a later one."""

    def most(self, own: int) -> int:
        """The most batches that a rank has: a rank with fewer repeats its last one. Where ranks
        need not run in step, this rank's number."""
        return own

    def in_step(self, batches: Iterator[T]) -> Iterator[tuple[T, bool]]:
        """The batches, and whether each one counts. A rank that has run out of them repeats its
        last one, which does not count, while others have more and need it for each pass."""
        last: T | None = None
        while True:
            own = next(batches, None)
            if not self.most(int(own is not None)):
                return
            last = last if own is None else own
            if last is None:
                raise ValueError("this rank has no examples, but others have: give each rank some")
            yield last, own is not None

    def of_rank_0(self, batches: Iterator[T], task: Task) -> Iterator[T]:
        """Rank 0's batches, on each rank that measures."""
        return batches


class Whole(Spread):
    """A model on the only rank, or a DistributedDataParallel."""

    def __init__(self, model: Any, ranks: Ranks | None, frozen: Sequence[str]):
        kind = torch.nn.parallel.DistributedDataParallel
        parallel = next((part for part in unwrapped(model) if isinstance(part, kind)), None)
        if ranks is not None and parallel is None:
            raise TypeError(
                f"this program has {ranks.count} ranks: give the Trainer a model in a "
                "torch.nn.parallel.DistributedDataParallel, or one that "
                "torch.distributed.fsdp.fully_shard has sharded (the model itself, not only its "
                "layers)"
            )
        if parallel is not None and frozen:
            raise ValueError(
                "frozen: set requires_grad=False before you make the DistributedDataParallel"
            )
        freeze(model, frozen)
        self._model, self._parallel, self._ranks = model, parallel, ranks
        self.module = model if parallel is None else parallel.module

    def put_on(self, device: Device) -> torch.device:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._model.to(place)
        return place

    def frozen_digest(self) -> str:
        return frozen_digest(self.module)

    def load(self, tensors: Named, file: TensorFile | None) -> None:
        if file is not None:
            load_all(tensors, file)
        if self._ranks is not None:
            self._ranks.give([tensor for _, tensor in tensors])

    def store(self, tensors: Named, file: TensorFile | None) -> None:
        if file is not None:
            store_all(tensors, file)

    def add_up(self, gradients: Sequence[torch.Tensor]) -> None:
        if self._ranks is not None:
            self._ranks.add_up(gradients)

    def without_exchange(self) -> ContextManager[Any]:
        context: ContextManager[Any] = contextlib.nullcontext()
        if self._parallel is not None and self._ranks is not None:
            context = self._parallel.no_sync()
        return context
