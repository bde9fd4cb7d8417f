# SPDX-License-Identifier: Apache-2.0
"""How a model is spread over the ranks of a program."""

from __future__ import annotations

import abc
import contextlib
from typing import Any, ContextManager, Sequence, Union

import torch

from ._ranks import Ranks
from ._tensors import TensorFile
from ._torch_tensors import Named, freeze, frozen_digest, load_all, store_all

Device = Union[str, torch.device, None]


class Spread(abc.ABC):
    """All ranks call load(), store() and add_up() in the same order. `tensors` are what
    this rank has of them. A file is rank 0's; the other ranks have None."""

    module: Any
    """The module that has the parameters under their own names."""

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


class Whole(Spread):
    """A model on the only rank, or a DistributedDataParallel."""

    def __init__(self, model: Any, ranks: Ranks | None, frozen: Sequence[str]):
        is_parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        if ranks is not None and not is_parallel:
            raise TypeError(
                f"this program has {ranks.count} ranks: give the Trainer a model in a "
                "torch.nn.parallel.DistributedDataParallel"
            )
        if is_parallel and frozen:
            raise ValueError(
                "frozen: set requires_grad=False before you make the DistributedDataParallel"
            )
        freeze(model, frozen)
        self._model, self._ranks = model, ranks
        self.module = model.module if is_parallel else model

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
        if self._ranks is not None:
            context = self._model.no_sync()
        return context
